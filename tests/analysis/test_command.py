"""The commands on finished runs, as they are typed."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from mecam.analysis._figure import ENDINGS, new_figure, save
from mecam.analysis.runs import objective_of, virtual_domain_of
from mecam.cli import app
from mecam.recipe import make
from mecam.report.measured import read_curvature, read_surface
from mecam.runs import RunFolder
from mecam.training.loop import train

TINY = {"target": "photo", "steps": 6, "evaluate_every": 6, "batch": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("runs")
    recipes = {"adam": {}, "mecam": {"track": 1}}
    return {
        name: train(make({**TINY, "optimizer": name, **values}), out, device="cpu").path
        for name, values in recipes.items()
    }


def mecam(*words: object) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_curvature_of_two_runs_one_of_which_was_tracked(runs: dict[str, Path], tmp_path: Path) -> None:
    options = ["--images", 12, "--radii", "0.05,0.2", "--sharpness", "--plot", tmp_path / "c.png"]
    said = mecam("curvature", *runs.values(), *options)
    assert said.exit_code == 0, said.stderr
    for words in ("ASAM's sharpness", "on the virtual domain", "mecam, while it was trained", "Proposition 3.5"):
        assert words in said.stdout
    assert "adam, while it was trained" not in said.stdout
    plots = [tmp_path / "c.png", tmp_path / "c-training-mecam.png"]
    assert said.stdout.splitlines()[-2:] == [str(plot) for plot in plots]
    assert all(plot.exists() for plot in plots)
    found = json.loads(mecam("curvature", *runs.values(), *options[:4], "--format", "json").stdout)
    assert found["mecam"]["training"]["records"] == 7
    assert "training" not in found["adam"]
    for name, path in runs.items():
        shown = read_curvature(path, 0)
        assert shown is not None
        assert shown.curvature == pytest.approx(found[name]["curvature"], rel=1e-2)


def test_the_virtual_domain_is_on_in_mixed_batches_alone(runs: dict[str, Path]) -> None:
    apart, together = (objective_of(runs["adam"], limit=60, mixed=mixed, batch=20) for mixed in (False, True))
    assert virtual_domain_of(runs["adam"], apart) is None
    f = apart.value()
    assert together.value() == pytest.approx(f, rel=1e-5)  # the same images
    assert together.count == sum(len(labels) for _, labels in together.batches) == 60
    domain = virtual_domain_of(runs["adam"], together)
    assert domain is not None
    assert together.value() == pytest.approx(f, rel=1e-5)
    with domain.active():
        assert together.value() != pytest.approx(f, rel=1e-5)


def test_spectrum_says_what_it_looked_at(runs: dict[str, Path]) -> None:
    said = mecam("spectrum", runs["adam"], "--images", 3, "--top", 1, "--draws", 2)
    assert said.exit_code == 0, said.stderr
    assert "over 3 images of train" in said.stdout
    assert "eigenvalues of the largest magnitude" in said.stdout
    assert "over 2 draws" in said.stdout


@pytest.mark.parametrize(("command", "option"), [("curvature", "--plot"), ("spectrum", "--density")])
def test_a_figure_that_cannot_be_written_is_refused_before_the_work(command: str, option: str, tmp_path: Path) -> None:
    for name in ("a.foo", "a"):
        said = mecam(command, tmp_path / "no run", option, tmp_path / name)
        assert (said.exit_code, said.stderr.count("\n")) == (2, 1)
        ends = "its name must end in .png, .svg, .pdf, .eps, .jpg"
        assert said.stderr == f"mecam: a figure cannot be written to {tmp_path / name}; {ends}\n"


@pytest.mark.parametrize("ending", [*ENDINGS, ".PNG"])
def test_every_ending_that_is_offered_is_a_format(ending: str, tmp_path: Path) -> None:
    assert save(new_figure(), tmp_path / f"a{ending}").stat().st_size > 0


def test_landscape_names_its_files_and_gives_the_page_a_surface(runs: dict[str, Path], tmp_path: Path) -> None:
    said = mecam("landscape", *runs.values(), "--steps", 3, "--images", 4, "--out", tmp_path)
    assert said.exit_code == 0, said.stderr
    *files, sample = map(Path, said.stdout.splitlines())
    assert str(sample) == "loss over 4 images of train"
    assert [file.suffix for file in files] == [".png", ".svg", ".png", ".svg", ".npz", ".npz"]
    assert all(file.exists() for file in files)
    assert all(read_surface(path, 0) is not None for path in runs.values())
    wrong = mecam("landscape", runs["adam"], "--dimensions", 3)
    assert (wrong.exit_code, wrong.stderr) == (2, "mecam: --dimensions 3 is not allowed; 1 or 2\n")


def test_weights_that_are_not_finite(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["adam"], tmp_path / "broken")
    broken = RunFolder(tmp_path / "broken")
    result, (weights, facts) = broken.read_result(), broken.read_model()
    broken.write_model(
        {name: weight * torch.inf if weight.dim() > 1 else weight for name, weight in weights.items()}, facts
    )
    broken.finish(result)
    for command in ("curvature", "spectrum"):
        said = mecam(command, broken.path, "--images", 2)
        assert said.exit_code == 2
        assert said.stderr.startswith(f"mecam: {broken.path}: ")
        assert "finite" in said.stderr or "is nan" in said.stderr
    said = mecam("landscape", broken.path, "--images", 2, "--steps", 3, "--out", tmp_path)
    assert (said.exit_code, said.stderr.count("\n")) == (2, 1)
    assert "no loss is finite" in said.stderr
