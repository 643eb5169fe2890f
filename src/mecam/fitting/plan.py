"""The recipes of a fit, with every value explicit, and what is kept of it in its folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mecam.defaults import PROTOCOL
from mecam.models.registry import find as find_backbone
from mecam.recipe import READING, Recipe, RecipeError
from mecam.runs import RunError, write_atomic
from mecam.storage.checksums import read_sealed, seal
from mecam.storage.files import Write

FILE = "fit.json"
GIVEN = ("data", "backbone", "weights", "seed", *READING)


@dataclass(frozen=True)
class Plan:
    """The request and the decisions of a fit. The same command resumes it."""

    data: str
    backbone: str
    weights: str | None = None
    seed: int = 0
    skip_unreadable: bool = False
    layout: str | None = None
    domain_from: str | None = None
    allow_missing_classes: bool = False
    minutes: float | None = None  # the budget as it was given
    tuning: dict[str, Any] | None = None  # recipe entries of fine-tuning; empty: not within the budget; None: undecided
    fingerprint: str | None = None  # of the data; None: not opened yet

    def probe(self, target: str | None) -> Recipe:
        """Return the recipe of a head on frozen features."""
        return self._recipe(target, trainable="head")

    def tuned(self, target: str | None, head: Path) -> Recipe:
        """Return the recipe of fine-tuning all weights from a model with a trained head."""
        weights = str(head.resolve())
        return self._recipe(target, weights=weights, lr=PROTOCOL["lr"], lr_schedule="cosine", **(self.tuning or {}))

    def _recipe(self, target: str | None, **entries: Any) -> Recipe:
        return Recipe(target=target, **({name: getattr(self, name) for name in GIVEN} | entries))

    def write(self, out: Path, write: Write = write_atomic) -> None:
        write(out / FILE, seal(asdict(self)))

    @classmethod
    def read(cls, out: Path) -> Plan | None:
        """Return the plan in a folder; None if there is none."""
        file = out / FILE
        if not file.exists():
            return None
        values = read_sealed(file)
        try:
            return cls(**values)
        except TypeError as error:
            raise RunError(f"{file} was written by another version of mecam ({error}); give another --out") from error


def begin(out: Path, given: Plan) -> Plan:
    """Return the plan in this folder, or the given one in an empty folder; refuse a folder with something else.

    A data set that has changed since is something else, once it has been opened.
    """
    there = Plan.read(out)
    if there is None:
        if (out / "run.json").exists():
            raise RunError(f"{out} holds a run that is not of mecam fit; give another --out")
        return given
    for name in GIVEN:
        old, new = getattr(there, name), getattr(given, name)
        if old != new:
            raise RunError(f"{out} holds a fit with {name}={old}, and now it is {new}; give another --out")
    if None not in (there.fingerprint, given.fingerprint) and there.fingerprint != given.fingerprint:
        raise RunError(
            f"{out} holds a fit on other images or labels: {given.data} has changed since; give another --out"
        )
    tuning = there.tuning if there.minutes == given.minutes else None  # another budget: fine-tuning is decided anew
    return replace(given, tuning=tuning)


def check_backbone(backbone: str, weights: str | None) -> None:
    """Refuse a backbone that would start from random weights."""
    entry = find_backbone(backbone)
    if weights is None and not entry.pretrained:
        raise RecipeError(
            f"mecam fit starts from pretrained weights, and {backbone} has none of its own; give --weights FILE, or "
            "another backbone, such as --backbone lite0"
        )
    if weights is None:
        entry.build(True)  # an ImportError names what to install
