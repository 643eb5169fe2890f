"""The CUDA graphs of a run."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

from mecam.optim.graphs import Captured


@dataclass
class Captures:
    """The unit of work that a run captures, and its graphs."""

    what: Literal["steps", "passes", "nothing"]
    graphs: dict[Hashable, Captured] = field(default_factory=dict)  # by kind of step
    forward: Captured | None = None  # for evaluations
