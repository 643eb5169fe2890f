"""The protocol's split of each domain into a training part and a held-out part."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mecam.data.domains import DomainSet
from mecam.splits import Part, Split

HOLDOUT = 0.2
Indices = NDArray[np.int64]


def seed_hash(*args: Any) -> int:
    """Return md5(str(args)) mod 2^31, the tuple as Python prints it: a seed from several."""
    return int(hashlib.md5(str(args).encode(), usedforsecurity=False).hexdigest(), 16) % 2**31


def split(size: int, *, trial: int, domain: int, holdout: float = HOLDOUT) -> dict[Part, Indices]:
    """Shuffle range(size) by seed_hash(trial, domain); the first int(holdout * size) are held out."""
    # plain ints: str((np.int64(0), 0)) is another string, and another split
    order = list(range(size))
    np.random.RandomState(seed_hash(int(trial), int(domain))).shuffle(order)
    indices = np.array(order, dtype=np.int64)
    count = int(holdout * size)
    return {Part.TRAINING: indices[count:], Part.HELD_OUT: indices[:count]}


def split_domains(data: DomainSet, *, trial: int, holdout: float = HOLDOUT) -> dict[Split, Indices]:
    """Split every domain of a data set; the values are indices into the split's domain."""
    return {
        Split(name, part): indices
        for domain, name in enumerate(data.domains)
        for part, indices in split(len(data.labels(domain)), trial=trial, domain=domain, holdout=holdout).items()
    }
