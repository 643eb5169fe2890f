"""The interface of engines, and what they share: the queue of runs, retries and stopping."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mecam.progress import Event, Progress
from mecam.recipe import Recipe

if TYPE_CHECKING:
    from mecam.benchmark.estimate import Budget
    from mecam.data.domains import DomainSet
    from mecam.runs import RunFolder

ELSEWHERE_EVERY = 2.0  # seconds between two checks of a run that another benchmark has claimed
AfterRun = Callable[["RunFolder", "DomainSet", str], None]  # a finished run, claimed; its data; the device; must pickle


class Queue:
    """The runs of a benchmark that wait for an engine.

    Args:
        budget: leave aside the runs that do not fit. None: all fit.
    """

    def __init__(self, recipes: Sequence[Recipe], budget: Budget | None) -> None:
        self.waiting, self.budget = deque(recipes), budget
        self.claimed: deque[tuple[float, Recipe]] = deque()  # by another process; with the time of the next check
        self.late: list[Recipe] = []  # runs that do not fit the budget

    def __bool__(self) -> bool:
        """Return whether there is a run to take, now or later."""
        return bool(self.waiting or self.claimed)

    def take(self) -> Recipe | None:
        """Remove the next run that fits and return it; None if there is none now."""
        while self.claimed and self.claimed[0][0] < time.monotonic():
            self.waiting.append(self.claimed.popleft()[1])
        while self.waiting:
            recipe = self.waiting.popleft()
            if self.budget is None or self.budget.fits(recipe):
                return recipe
            self.late.append(recipe)
        return None

    def is_over(self) -> bool:
        """Return whether the budget is used up."""
        return self.budget is not None and self.budget.left() <= 0

    def check_later(self, recipe: Recipe) -> None:
        """Put back a run that another process has claimed."""
        self.claimed.append((time.monotonic() + ELSEWHERE_EVERY, recipe))

    def rest(self) -> list[Recipe]:
        """Return all runs that were not taken."""
        return [*self.waiting, *(recipe for _, recipe in self.claimed), *self.late]


class Driver(ABC):
    """One benchmark on an engine: a queue, the runs that workers have, and how they are started and stopped."""

    def __init__(self, recipes: Sequence[Recipe], progress: Progress, *, budget: Budget | None, retries: int) -> None:
        self.queue, self.progress, self.retries = Queue(recipes, budget), progress, retries
        self.lost: Counter[str] = Counter()  # attempts whose worker was lost
        self.stopping = False

    def drive(self) -> None:
        """Hand out the runs until all have ended, the budget is used up or a signal arrives."""
        from mecam.training.interrupt import StopSignals  # imports torch, which workers import on their own

        with StopSignals() as signals:
            while self.is_busy() or (self.queue and not self.stopping):
                if (signals.received or self.queue.is_over()) and not self.stopping:
                    self.stopping = True
                    self.stop()
                if not self.stopping:
                    self.hand_out()
                self.listen()

    def lose(self, recipe: Recipe, why: str, worker: str = "") -> None:
        """Retry a run whose worker was lost."""
        self.lost[recipe.run_id] += 1
        if self.stopping:
            self.progress(Event(recipe.run_id, kind="stopped", text="not finished", worker=worker))
        elif self.lost[recipe.run_id] > self.retries:
            self.progress(Event(recipe.run_id, kind="failed", text=why, worker=worker))
        else:
            self.queue.waiting.append(recipe)

    @abstractmethod
    def is_busy(self) -> bool:
        """Return whether there are runs to listen to."""

    @abstractmethod
    def hand_out(self) -> None:
        """Start runs of the queue on free workers."""

    @abstractmethod
    def stop(self) -> None:
        """Ask the runs to save themselves and end."""

    @abstractmethod
    def listen(self) -> None:
        """Wait a moment for events, report them, and handle runs that have ended."""


class Engine(Protocol):
    """Runs recipes. Every recipe ends in one event of progress.ENDED; a failure of one does not stop the others."""

    def run(self, recipes: Sequence[Recipe], out: Path, progress: Progress) -> None: ...
