"""Refuse a hyperparameter outside its range, naming the value and the range."""


def probability(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must lie in [0, 1], got {value!r}")
    return value


def positive(name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return value


def domain_count(value: int | None) -> int | None:
    if value is not None and value < 2:
        raise ValueError(f"domains must be at least 2, or None for a random partner, got {value!r}")
    return value
