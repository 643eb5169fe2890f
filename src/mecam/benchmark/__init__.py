"""The benchmark: an experiment, its runs on an engine, the tables. Tables need no torch: nothing is imported before."""
