"""Size a run for this machine: the batch by its memory, the steps by a time budget.

A recipe does not depend on the machine. `mecam train` writes what is decided here into the recipe, as explicit values,
and keeps it in OUT/train.json, so that the same command resumes the same run.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mecam import methods, ranks
from mecam.data.domains import DomainSet, source_domains
from mecam.optim.registry import find as find_optimizer
from mecam.progress import clock
from mecam.recipe import Recipe, RecipeError, names_in
from mecam.runs import write_atomic
from mecam.storage.checksums import read_sealed, seal
from mecam.training.build import check_parts, starts_at_random
from mecam.training.footprint import available_memory, memory_of_step
from mecam.training.machine import Machine
from mecam.training.speed import HEAD_STEP, Cost, cost_of

FILE = "train.json"
MARGIN = 0.9  # share of a budget that is planned with
FEWEST = 10  # steps of a run
WANTED = 300  # steps from which a larger batch is worth more than more steps
LEAST_BATCH = 4  # images per domain to which --minutes lowers the batch for that
EVALUATING = 0.2  # largest share of a budget for evaluations
LONG = 3600.0  # seconds
SMALL = 1e9  # pixels of a run that is never long
SHARE_OF_MEMORY = 0.9
TRAINED = {"all": "all weights", "head": "the head", "last": "the last layers", "norms": "norms and head"}


@dataclass(frozen=True)
class Length:
    """The requested length of a run. An equal request is the same run.

    Args:
        recipe: the recipe before anything is decided.
        minutes: time budget; None: the recipe's steps.
        given: names of entries that were given and stay as they are.
    """

    recipe: Recipe
    minutes: float | None
    given: frozenset[str]

    def __post_init__(self) -> None:
        if self.minutes is not None and not (self.minutes > 0 and math.isfinite(self.minutes)):
            raise RecipeError(f"minutes={self.minutes:g} is not allowed; it must be positive and finite")
        if self.minutes is not None and "steps" in self.given:
            raise RecipeError("minutes sets the steps; leave out one of minutes and steps")

    def recall(self, out: Path) -> Recipe | None:
        """Return the recipe that was decided for an equal request in this folder; None if there is none."""
        asked = self._asked()
        return next((Recipe.from_dict(one["recipe"]) for one in _kept(out) if one["asked"] == asked), None)

    def keep(self, out: Path, recipe: Recipe) -> None:
        """Keep the recipe that was decided for this request."""
        out.mkdir(parents=True, exist_ok=True)
        kept = [*_kept(out), {"asked": self._asked(), "recipe": recipe.to_dict()}]
        write_atomic(out / FILE, seal({"decided": kept}))

    def _asked(self) -> dict[str, Any]:
        values = json.loads(json.dumps(self.recipe.to_dict()))
        return {"recipe": values, "minutes": self.minutes, "given": sorted(self.given)}


def _kept(out: Path) -> list[dict[str, Any]]:
    """Return the decisions in this folder, one per request."""
    decided: list[dict[str, Any]] = read_sealed(out / FILE)["decided"] if (out / FILE).exists() else []
    return decided


@dataclass(frozen=True)
class Sized:
    """A run sized for this machine."""

    recipe: Recipe
    sources: int
    images: int  # of all domains
    cost: Cost | None = None  # None: not measured
    reason: str = ""  # why the batch is smaller

    @property
    def seconds(self) -> float | None:
        """Return how long the run takes."""
        return None if self.cost is None else self.cost.seconds(self.recipe.steps, self.recipe.evaluate_every)

    @property
    def is_long(self) -> bool:
        return (self.seconds or 0.0) > LONG

    def line(self) -> str:
        """Describe the run and its time."""
        recipe = self.recipe
        what = TRAINED.get(recipe.trainable, recipe.trainable)
        size = "" if recipe.image_size is None else f" of {recipe.image_size} pixels"
        time = ""
        if self.cost is not None and self.seconds is not None:
            time = f": about {clock(self.seconds)}, {_duration(self.cost.step)} per step"
        return (
            f"{recipe.backbone}, {what}: {recipe.steps:,} steps of {self.sources} x {recipe.batch} images{size}, "
            f"{recipe.optimizer}{time}{self.reason}"
        )

    def cheaper(self, again: Callable[..., Recipe]) -> list[tuple[dict[str, Any], str]]:
        """Return up to three shorter trainings: options of the command, and their time. No options: `mecam fit`.

        Args:
            again: returns the recipe with other entries; it may refuse them.
        """
        assert self.cost is not None
        shorter: list[tuple[dict[str, Any], str]] = []
        recipe, cost = self.recipe, self.cost
        pretrained = not starts_at_random(recipe)
        if pretrained and recipe.data != Recipe.data:
            shorter.append(({}, "a head on the frozen backbone, and its expected accuracy in a new domain"))
        options: list[dict[str, Any]] = [{"trainable": "head"}] if pretrained else []
        options += [{"minutes": 60}, {"batch": min(8, recipe.batch), "steps": min(500, recipe.steps)}]
        for option in options:
            entries = {name: value for name, value in option.items() if name != "minutes"}
            with suppress(RecipeError):
                check_parts(other := again(**entries))
                if other.trainable == "head":
                    seconds = cost.final + other.steps * HEAD_STEP
                else:
                    seconds = replace(cost, step=cost.step * other.batch / recipe.batch).seconds(
                        other.steps, max(other.evaluate_every, other.steps // 5)
                    )
                shorter.append((option, f"about {clock(60 * option['minutes'] if 'minutes' in option else seconds)}"))
        return shorter[:3]


def size(length: Length, machine: Machine, data: DomainSet, *, measure: bool = False) -> Sized:
    """Size a run for this machine, and measure its time where it may be long.

    The batch is lowered if a step does not fit into memory. With `minutes`, the steps are those that fit.

    Args:
        measure: measure the time in any case; otherwise that of large runs on a CPU.
    """
    recipe, given = length.recipe, length.given
    sources = len(source_domains(data, recipe.target, names_in(recipe.sources)))
    images = sum(len(data.labels(domain)) for domain in range(len(data.domains)))
    sized = Sized(recipe, sources, images)
    pixels = sources * recipe.batch * (recipe.image_size or 224) ** 2 * (recipe.steps + 1)
    large = pixels * find_optimizer(recipe.optimizer).passes > SMALL and recipe.trainable != "head"
    if large and "batch" not in given:
        sized = _fit_memory(sized, machine, data)
    if length.minutes is not None:
        return _fit_time(sized, machine, data, length.minutes, given)
    if measure or (large and machine.device.type == "cpu" and ranks.count() == 1):
        return replace(sized, cost=cost_of(sized.recipe, machine, data))
    return sized


def decided(length: Length, out: Path, machine: Machine, data: DomainSet) -> Recipe:
    """Return the recipe that was decided for this request in the folder; decide it the first time."""
    recipe: Recipe | None = ranks.from_first(length.recall(out))
    if recipe is None:
        recipe = size(length, machine, data).recipe
        if machine.writes:
            length.keep(out, recipe)
    return recipe


def _fit_memory(sized: Sized, machine: Machine, data: DomainSet) -> Sized:
    """Halve the batch until a step fits into the memory that is available."""
    available = available_memory(machine.device)
    if available is None or ranks.count() > 1:
        return sized
    usable = SHARE_OF_MEMORY * available
    recipe = sized.recipe
    fixed, per_batch = memory_of_step(recipe, machine, data)
    batches = _halved(recipe)
    batch = next((batch for batch in batches if fixed + batch * per_batch <= usable), batches[-1])
    if batch == recipe.batch:
        return sized
    needed = fixed + recipe.batch * per_batch
    reason = f"; {recipe.batch} images per domain take about {needed / 1e9:.1f} GB, and {usable / 1e9:.1f} GB are free"
    return replace(sized, recipe=replace(recipe, batch=batch), reason=reason)


def _fit_time(sized: Sized, machine: Machine, data: DomainSet, minutes: float, given: Collection[str]) -> Sized:
    """Choose the steps that fit into the minutes, and schedules and evaluations with them."""
    start, recipe = time.monotonic(), sized.recipe
    if "batch" not in given and recipe.trainable != "head" and ranks.count() == 1:
        recipe = _lower_batch(recipe, machine, data, 60 * minutes)
    cost = cost_of(recipe, machine, data)
    seconds = ranks.from_first(60 * minutes - (time.monotonic() - start))  # measuring takes its time, too
    every = recipe.evaluate_every if "evaluate_every" in given else None
    steps = _steps(cost, seconds, every)
    if steps < FEWEST:
        needed = cost.start + cost.final + 2 * cost.evaluation + (FEWEST + 1) * cost.step + 60 * minutes - seconds
        raise RecipeError(
            f"--minutes {minutes:g} leaves time for fewer than {FEWEST} steps of {_duration(cost.step)}; give "
            f"--minutes {math.ceil(needed / MARGIN / 60)} or more, --trainable head, or a smaller --backbone, --batch "
            "or --image-size"
        )
    changes: dict[str, Any] = {"steps": steps}
    if every is None:
        affordable = math.floor(EVALUATING * seconds / cost.evaluation) if cost.evaluation else steps
        evaluations = min(recipe.steps // recipe.evaluate_every + 1, affordable)
        changes["evaluate_every"] = math.ceil(steps / max(1, evaluations - 1))
    for name in {"warmup", "rho_warmup"} - set(given):
        changes[name] = min(steps, round(getattr(recipe, name) * steps / max(1, recipe.steps)))
    return replace(sized, recipe=replace(recipe, **changes), cost=cost)


def _lower_batch(recipe: Recipe, machine: Machine, data: DomainSet, seconds: float) -> Recipe:
    """Halve the batch until enough steps fit into a budget, by the time of the smallest one."""
    batches = _halved(recipe, LEAST_BATCH)
    cost = cost_of(replace(recipe, batch=batches[-1]), machine, data)

    def are_enough(batch: int) -> bool:
        return _steps(replace(cost, step=cost.step * batch / batches[-1]), seconds, None) >= WANTED

    return replace(recipe, batch=next(filter(are_enough, batches), batches[-1]))


def _halved(recipe: Recipe, least: int = 1) -> list[int]:
    """Return the batch, its half, ... that the method can take and that can be split into its parts."""
    least = max(least, methods.METHODS.find(recipe.method).images)
    batches = [recipe.batch]
    while (half := batches[-1] // 2) >= least and half % recipe.accumulate == 0:
        batches.append(half)
    return batches


def _steps(cost: Cost, seconds: float, every: int | None) -> int:
    """Return the steps that fit into a budget, after evaluations every `every` steps or for a share of the budget."""
    evaluations, step = 2 * cost.evaluation, cost.step
    if every is None:
        evaluations = max(evaluations, EVALUATING * seconds if cost.evaluation else 0.0)
    else:
        step += cost.evaluation / every
    return max(0, math.floor((MARGIN * seconds - cost.start - cost.final - evaluations) / step) - 1)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
