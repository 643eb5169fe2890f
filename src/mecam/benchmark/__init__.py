"""The benchmark: an experiment, its runs on an engine, the tables."""

from mecam.benchmark.bench import Outcome, bench, missing, plan

__all__ = ["Outcome", "bench", "missing", "plan"]
