"""Landscapes of finished runs, as files."""

from pathlib import Path

import numpy as np
import pytest

from mecam.analysis.compare_landscapes import compare, through
from mecam.analysis.landscape import read
from mecam.analysis.runs import objective_of
from mecam.data.shapes import shapes
from mecam.progress import Event
from mecam.recipe import Recipe
from mecam.report.measured import read_surface
from mecam.training.loop import train

TINY = {"steps": 1, "evaluate_every": 1, "batch": 2, "target": "photo"}
DATA = shapes(per_class=3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("runs")
    recipes = {name: Recipe(**{**TINY, "optimizer": name}) for name in ("adam", "sam", "mecam")}
    return {name: train(recipe, out / name, device="cpu", data=DATA).path for name, recipe in recipes.items()}


def test_each_run_gets_its_grid_and_its_surface_on_the_page_and_all_one_figure(runs: dict[str, Path], tmp_path: Path):
    seen: list[Event] = []
    landscapes, files = compare(runs, tmp_path / "out", images=16, steps=3, data=DATA, progress=seen.append)
    assert {path.name for path in files[:4]} == {
        f"landscape-{kind}.{ending}" for kind in ("contour", "surface") for ending in ("png", "svg")
    }
    assert {file.parent for file in files[4:]} == set(runs.values())
    assert {event.task for event in seen} == {f"{name}, landscape" for name in runs}
    surfaces = [read_surface(path, 0) for path in runs.values()]
    assert len({(surface["split"], surface["directions"]) for surface in surfaces if surface is not None}) == 1
    for name, path in runs.items():
        objective = objective_of(path, "train", limit=16, data=DATA)
        assert landscapes[name].loss[1, 1] == pytest.approx(objective.value(), rel=1e-4)
        (raw,) = path.glob("landscape-*.npz")
        np.testing.assert_array_equal(read(raw).loss, landscapes[name].loss)


def test_along_eigenvectors_in_one_dimension(runs: dict[str, Path], tmp_path: Path):
    one = {"adam": runs["adam"]}
    seen: list[Event] = []
    for start in (0, 3):  # the second call finds all of it done
        seen.clear()
        landscapes, files = compare(
            one, tmp_path, kind="eigenvectors", dimensions=1, images=4, steps=3, radius=0.5, data=DATA,
            progress=seen.append,
        )  # fmt: skip
        assert landscapes["adam"].loss.shape == (1, 3)
        assert [path.name for path in files[:2]] == ["landscape-line.png", "landscape-line.svg"]
        assert seen[0] == Event("adam, eigenvalues", 1, None, "products")
        points = [(event.done, event.total) for event in seen if event.task == "adam, landscape"]
        assert (points[0], points[-1]) == ((start, 3), (3, 3))


def test_the_plane_through_three_runs(runs: dict[str, Path], tmp_path: Path):
    landscapes, files = through(runs, tmp_path, images=8, steps=3, data=DATA)
    assert landscapes["plane"].loss.shape == (3, 3)
    np.testing.assert_array_equal(read(files[4]).loss, landscapes["plane"].loss)
    assert len(landscapes["plane"].setting["points"]) == 3
    with pytest.raises(ValueError, match="got 2"):
        through({name: runs[name] for name in ("adam", "sam")}, tmp_path)


def test_words_that_mean_nothing_are_refused(runs: dict[str, Path], tmp_path: Path):
    with pytest.raises(ValueError, match="no directions 'diagonal'; there are random, eigenvectors, and plane"):
        compare(runs, tmp_path, kind="diagonal")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps=1"):
        compare(runs, tmp_path, steps=1)
