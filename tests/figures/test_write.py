"""`mecam figures` from a benchmark to files."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image
from typer.testing import CliRunner

import mecam
from mecam.benchmark import results
from mecam.cli import app
from mecam.data.shapes import shapes
from mecam.figures import FIGURES, iterations, write
from mecam.figures.write import images
from mecam.progress import Event
from tests.benchmark.folders import run_here, write_run

EXPERIMENT = """
[common]
target = "sketch"
seed = 0
batch = 2
image_size = 16
evaluate_every = 1

[[runs]]
optimizer = ["adam", "sam", "mecam"]
steps = [1, 2]

[[runs]]
optimizer = "mecam"
steps = 1
optimizer_settings = { alpha = [0.1, 0.2], beta = [0.05, 0.1] }

[[runs]]
optimizer = "mecam"
steps = 1
optimizer_settings = { rho = 0.2 }
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("figures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MECAM_CACHE", str(folder / "cache"))
        patch.setattr("mecam.data.open.shapes.shapes", partial(shapes, per_class=8))
        patch.setattr("mecam.benchmark.local.LocalEngine.run", run_here)
        (folder / "tiny.toml").write_text(EXPERIMENT)
        outcome = mecam.bench(folder / "tiny.toml", out=folder / "results", workers=1, device="cpu")
        assert not outcome.failed
        yield folder / "results"


def figures(out: Path, folder: Path) -> list[str]:
    result = CliRunner().invoke(app, ["figures", str(out), "--out", str(folder)])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_every_figure_of_a_benchmark_is_written(out: Path, tmp_path: Path) -> None:
    lines = figures(out, tmp_path)
    assert len(lines) == len(FIGURES)
    left_out = next(line for line in lines if "is left out" in line)
    assert left_out.startswith("Figure 4 is left out: no loss landscape was saved; run mecam landscape ")
    words = left_out.partition("run mecam ")[2].split()
    result = CliRunner().invoke(app, [*words, "--steps", "3", "--images", "8", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert not any("is left out" in line for line in figures(out, tmp_path))
    for name in FIGURES:
        with Image.open(tmp_path / f"{name}.png") as image:
            image.load()
            assert image.width > 500
        assert ElementTree.parse(tmp_path / f"{name}.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(tmp_path.iterdir())) == 2 * len(FIGURES)


def test_the_last_selection_on_the_way_is_the_accuracy_of_the_run(out: Path) -> None:
    for result in results.read(out)[0]:
        selected = iterations.selected(iterations._evaluations(result), result.recipe)
        assert selected[-1] == (result.recipe.steps, result.accuracy)


def test_the_same_runs_give_the_same_bytes(out: Path) -> None:
    finished = results.read(out)[0]
    assert images("figure3", out, finished) == images("figure3", out, finished)


def test_an_empty_folder_leaves_the_one_that_needs_no_runs(tmp_path: Path) -> None:
    lines = figures(tmp_path, tmp_path / "figures")
    assert [line for line in lines if "is left out" not in line] == [
        f"Figure 2: {tmp_path}/figures/figure2.png, {tmp_path}/figures/figure2.svg"
    ]
    assert all(f"--out {tmp_path}" in line for line in lines if "is left out" in line)


def test_names_are_not_formulas_and_runs_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, data="a $x_$ <b>&", target="t $\\frac{")
    (write_run(tmp_path, 0.5, optimizer="sam") / "run.json").write_text("{")
    events: list[Event] = []
    written = {figure.name: figure for figure in write(tmp_path, tmp_path / "figures", progress=events.append)}
    assert written["figure1"].files
    assert [event.kind for event in events] == ["warning"]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["figures", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "there is no folder" in result.output
