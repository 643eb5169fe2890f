"""Train image classifiers that hold up in domains they have never seen."""

__version__ = "0.1.0"
