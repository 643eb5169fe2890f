"""No averaging."""

from __future__ import annotations

from typing import ClassVar

from mecam.averaging.base import Averaging


class NoAveraging(Averaging):
    """Keep the model's own weights at the step that validation selects."""

    name: ClassVar[str] = "none"
