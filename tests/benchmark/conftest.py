"""What tests of benchmarks share: a cache for all processes, and an engine that starts none."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mecam.benchmark.jobs import Queue
from mecam.benchmark.worker import work
from mecam.progress import Event, Progress
from mecam.recipe import Recipe


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The embedded set, packed once for all processes of a file, whose runs have one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MECAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run local engines in this process: each worker would import torch. test_local.py tests workers."""

    def run(engine: Any, recipes: Sequence[Recipe], out: Path, progress: Progress) -> None:
        queue = Queue(recipes, engine.budget)
        while (recipe := queue.take()) is not None:
            work(recipe, out, "cpu", progress, after=engine.after)
        for recipe in queue.rest():
            progress(Event(recipe.run_id, kind="stopped", text="not begun"))

    monkeypatch.setattr("mecam.benchmark.local.LocalEngine.run", run)
