"""What tests of benchmarks share: a cache for all processes, and an engine that starts none."""

from collections.abc import Iterator
from functools import partial

import pytest

from mecam.data.shapes import shapes
from tests.benchmark.folders import run_here


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The embedded set, packed once for all processes of a file, whose runs have one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MECAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run local engines in this process, on few images: each worker would import torch. test_local.py tests workers."""
    monkeypatch.setattr("mecam.data.open.shapes.shapes", partial(shapes, per_class=8))
    monkeypatch.setattr("mecam.benchmark.local.LocalEngine.run", run_here)
