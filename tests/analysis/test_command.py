"""The commands on finished runs, as they are typed."""

import itertools
import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from mecam.analysis._figure import ENDINGS, new_figure, save
from mecam.analysis.runs import objective_of, virtual_domain_of
from mecam.cli import app
from mecam.recipe import Recipe
from mecam.report.measured import read_curvature, read_surface
from mecam.runs import RunFolder
from mecam.training.loop import train

TINY = {"target": "photo", "steps": 6, "evaluate_every": 6, "batch": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("runs")
    recipes = {"adam": {}, "mecam": {"track": 1}}
    return {
        name: train(Recipe(**{**TINY, "optimizer": name, **values}), out, device="cpu").path
        for name, values in recipes.items()
    }


def mecam(*words: object) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_curvature_of_two_runs_one_of_which_was_tracked(runs: dict[str, Path], tmp_path: Path) -> None:
    options = ["--images", 12, "--radii", "0.05,0.2", "--sharpness", "--plot", tmp_path / "c.png"]
    result = mecam("curvature", *runs.values(), *options)
    assert result.exit_code == 0, result.stderr
    for words in ("ASAM's sharpness", "on the virtual domain", "mecam, while training", "Proposition 3.5"):
        assert words in result.stdout
    assert "adam, while training" not in result.stdout
    plots = [tmp_path / "c.png", tmp_path / "c-training-mecam.png"]
    assert result.stdout.splitlines()[-2:] == [str(plot) for plot in plots]
    assert all(plot.exists() for plot in plots)
    printed = json.loads(mecam("curvature", *runs.values(), *options[:4], "--format", "json").stdout)
    assert printed["runs"]["mecam"]["training"]["records"] == 7
    assert "training" not in printed["runs"]["adam"]
    for name, path in runs.items():
        shown = read_curvature(path, 0)
        assert shown is not None
        assert shown["curvature"] == pytest.approx(printed["runs"][name]["curvature"], rel=1e-2)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rows over two targets and two seeds, and what else there is in the --out of a benchmark."""
    out = tmp_path_factory.mktemp("bench")
    tiny = {**TINY, "steps": 1, "evaluate_every": 1}
    for optimizer, target, seed in itertools.product(("adam", "mecam"), ("photo", "art"), (0, 1)):
        train(Recipe(**{**tiny, "optimizer": optimizer, "target": target, "seed": seed}), out, device="cpu")
    (out / "bench.log").write_text("done\n")
    (out / "report.html").write_text("<html>")
    (out / "landscape").mkdir()
    return out


QUICK = ("--images", 6, "--radii", "0.05,0.5")


def test_table_5_from_a_folder_of_runs(bench: Path) -> None:
    result = mecam("curvature", bench, *QUICK, "--compare", "paper")
    assert result.exit_code == 0, result.stderr
    assert mecam("curvature", *sorted(bench.iterdir()), *QUICK, "--compare", "paper").stdout == result.stdout
    facts, metric, *_ = result.stdout.split("\n\n")
    assert [line.split()[:2] for line in facts.splitlines()[1:]] == [["adam", "4"], ["mecam", "4"]]
    _, header, *lines = metric.splitlines()
    assert header.split() == ["rho=0.05", "rho=0.5"]
    assert [" ".join(line.split()[:2]) for line in lines if "paper" in line] == ["paper: ERM", "paper: MeCAM"]
    assert lines[1].split()[2:] == ["0.086", "33.5"]
    assert lines[3].split()[2:] == ["7.50e-03", "2.5"]
    assert metric.count("*") == 2
    for words in ("ResNet-50 on PACS", "does not state the split", "Ours: resnet8 on shapes, train split"):
        assert words in result.stdout
    printed = json.loads(mecam("curvature", bench, *QUICK, "--compare", "paper", "--format", "json").stdout)
    for optimizer, row in printed["rows"].items():
        each = [run["curvature"] for name, run in printed["runs"].items() if name.startswith(optimizer)]
        assert (row["runs"], row["targets"], row["seeds"], len(each)) == (4, ["art", "photo"], [0, 1], 4)
        np.testing.assert_allclose(row["curvature"]["mean"], np.mean(each, axis=0))
        np.testing.assert_allclose(row["curvature"]["std"], np.std(each, axis=0))
    assert printed["rows"]["mecam"]["published"] == {"MeCAM": [7.5e-3, 2.5]}
    assert [sum(marks) for marks in zip(*(row["best"] for row in printed["rows"].values()), strict=True)] == [1, 1]


def test_rows_per_run_and_runs_that_cannot_be_ranked(bench: Path) -> None:
    result = mecam("curvature", bench, *QUICK, "--per-run")
    places = itertools.product(("adam", "mecam"), ("art", "photo"), (0, 1))
    names = [f"{optimizer}, {target}, seed {seed}" for optimizer, target, seed in places]
    assert [line[: len(name)] for line, name in zip(result.stdout.splitlines()[1:9], names, strict=True)] == names
    assert "No row has a star: the rows differ in targets or seeds." in result.stdout
    adam, mecam_ = sorted(bench.glob("*photo*adam*seed0*")), sorted(bench.glob("*photo*mecam*"))
    fewer = mecam("curvature", *adam, *mecam_, *QUICK).stdout
    assert "No row has a star: the rows differ in targets or seeds." in fewer
    assert "*" not in fewer.replace("No row has a star", "")
    pair = mecam("curvature", *adam, mecam_[0], *QUICK).stdout
    assert "*: the smallest in its column." in pair
    assert "±" not in pair
    wrong = mecam("curvature", bench, "--compare", "others")
    assert (wrong.exit_code, wrong.stderr) == (2, "mecam: compare='others' is not supported; use 'paper'\n")


def test_runs_that_cannot_be_measured_are_named(bench: Path, tmp_path: Path) -> None:
    first, second, third = sorted(bench.glob("*adam*"))[:3]
    for path in (first, second, third):
        shutil.copytree(path, tmp_path / path.name)
    (tmp_path / second.name / "done.json").unlink()
    (tmp_path / third.name / "model.safetensors").unlink()
    result = mecam("curvature", tmp_path, *QUICK)
    assert result.exit_code == 0, result.stderr
    assert f"{tmp_path / second.name} is left out: it is not finished" in result.stdout
    assert "model.safetensors is missing" in result.stdout
    drawn = mecam(
        "landscape", tmp_path / first.name, tmp_path / second.name, "--steps", 2, "--images", 2, "--out", tmp_path
    )
    assert f"{tmp_path / second.name} is left out: it is not finished" in drawn.stdout
    alone = mecam("curvature", tmp_path / second.name)
    assert alone.exit_code == 2
    assert alone.stderr.startswith(
        f"mecam: there is no finished run: {tmp_path / second.name} is left out: it is not fin"
    )
    for command in ("curvature", "landscape", "spectrum", "verify"):
        nowhere = mecam(command, tmp_path / "nowhere")
        assert (nowhere.exit_code, nowhere.stderr.count("\n")) == (2, 1)
        assert "nowhere, which does not exist; give the folder of a run" in nowhere.stderr


def test_dropout_leaves_no_verdict_on_tracked_runs(tmp_path: Path) -> None:
    values = {**TINY, "optimizer": "mecam", "track": 1, "dropout": 0.5}
    shared = {**values, "optimizer_settings": {"shared_noise": True}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folders = [train(Recipe(**recipe), tmp_path, device="cpu").path for recipe in (values, shared)]
    independent, replayed = (mecam("curvature", folder, *QUICK).stdout for folder in folders)
    assert "No verdict: every pass drew its own dropout masks" in independent
    assert "--set optimizer_settings.shared_noise=true or --set dropout=0" in independent
    assert "this run shows" not in independent
    assert "median |ratio| in 7 records" in independent
    assert "this run shows" in replayed
    printed = json.loads(mecam("curvature", *folders, *QUICK, "--format", "json").stdout)["runs"].values()
    assert sorted((run["training"]["noisy"], run["training"]["verdict"] is None) for run in printed) == [
        (False, False), (True, True),
    ]  # fmt: skip


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


def test_spectrum_reports_what_it_looked_at(runs: dict[str, Path]) -> None:
    result = mecam("spectrum", runs["adam"], "--images", 3, "--top", 1, "--draws", 2)
    assert result.exit_code == 0, result.stderr
    assert "over 3 images of train" in result.stdout
    assert "eigenvalues of the largest magnitude" in result.stdout
    assert "over 2 draws" in result.stdout


@pytest.mark.parametrize(("command", "option"), [("curvature", "--plot"), ("spectrum", "--density")])
def test_a_figure_that_cannot_be_written_is_refused_before_the_work(command: str, option: str, tmp_path: Path) -> None:
    for name in ("a.foo", "a"):
        result = mecam(command, tmp_path / "no run", option, tmp_path / name)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        ends = "its name must end in .png, .svg, .pdf, .eps, .jpg"
        assert result.stderr == f"mecam: a figure cannot be written to {tmp_path / name}; {ends}\n"


@pytest.mark.parametrize("ending", [*ENDINGS, ".PNG"])
def test_every_ending_that_is_offered_is_a_format(ending: str, tmp_path: Path) -> None:
    assert save(new_figure(), tmp_path / f"a{ending}").stat().st_size > 0


def test_landscape_names_its_files_and_gives_the_page_a_surface(runs: dict[str, Path], tmp_path: Path) -> None:
    result = mecam("landscape", *runs.values(), "--steps", 3, "--images", 4, "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    *files, sample = map(Path, result.stdout.splitlines())
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
        outcome = mecam(command, broken.path, "--images", 2)
        assert outcome.exit_code == 2
        assert outcome.stderr.startswith(f"mecam: {broken.path}: ")
        assert "finite" in outcome.stderr or "is nan" in outcome.stderr
    outcome = mecam("landscape", broken.path, "--images", 2, "--steps", 3, "--out", tmp_path)
    assert (outcome.exit_code, outcome.stderr.count("\n")) == (2, 1)
    assert "no loss is finite" in outcome.stderr


def test_further_measures_are_columns(runs: dict[str, Path]) -> None:
    options = ["--images", 6, "--radii", "0.1", "--measure", "average,gaussnewton"]
    result = mecam("curvature", runs["adam"], *options)
    assert result.exit_code == 0, result.stderr
    for words in ("λ(G)", "tr G", "average sharpness", "adaptive average sharpness"):
        assert words in result.stdout
    printed = json.loads(mecam("curvature", runs["adam"], *options, "--format", "json").stdout)["runs"]
    (run,) = printed.values()
    assert set(run["measures"]) == {"λ(G)", "tr G"}
    assert len(run["average"]) == len(run["adaptive_average"]) == 1
