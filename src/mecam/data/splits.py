"""The protocol's split of a domain into a training part and a held-out part."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

HOLDOUT = 0.2


@dataclass(frozen=True, eq=False)
class Split:
    """Indices into a domain: the training part ("in") and the held-out part ("out"), in the order they were drawn."""

    training: NDArray[np.int64]
    held_out: NDArray[np.int64]


def seed_hash(*args: Any) -> int:
    """md5(str(args)) mod 2^31, the tuple as Python prints it: a seed from several."""
    return int(hashlib.md5(str(args).encode(), usedforsecurity=False).hexdigest(), 16) % 2**31


def split(size: int, *, trial: int, domain: int, holdout: float = HOLDOUT) -> Split:
    """Shuffle range(size) by seed_hash(trial, domain); the first int(holdout * size) are held out."""
    if not 0 <= holdout < 1:
        raise ValueError(f"holdout must lie in [0, 1), got {holdout!r}")
    if size < 0:
        raise ValueError(f"size must not be negative, got {size!r}")
    # plain ints: str((np.int64(0), 0)) is another text, and another split
    order = list(range(size))
    np.random.RandomState(seed_hash(int(trial), int(domain))).shuffle(order)
    indices = np.array(order, dtype=np.int64)
    count = int(holdout * size)
    return Split(training=indices[count:], held_out=indices[:count])
