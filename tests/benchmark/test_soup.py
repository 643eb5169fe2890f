"""mecam soup: weights of runs, averaged."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mecam.benchmark.results import read
from mecam.benchmark.soup import soup
from mecam.cli import app
from mecam.data.shapes import shapes
from mecam.data.splits import seed_hash
from mecam.recipe import Recipe, recipe_of
from mecam.runs import RunError, RunFolder
from mecam.serving import load_model
from mecam.training import train
from mecam.training.build import build_network
from mecam.training.rerun import rerun

DATA = shapes(per_class=4)
SMALL = {"steps": 3, "evaluate_every": 3, "batch": 4, "image_size": 16, "target": "sketch"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    for values in ({"seed": 0}, {"seed": 1}, {"optimizer": "sam"}, {"lr": 1e-6}):
        train(Recipe(**{**SMALL, **values}), out, device="cpu", data=DATA)  # type: ignore[arg-type]
    return out


@pytest.fixture(autouse=True)
def _small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mecam.benchmark.soup.reopen", lambda *_: DATA)


def runs_in(folder: Path) -> list[RunFolder]:
    return [RunFolder(path) for path in sorted(folder.iterdir())]


def validation_of(folder: RunFolder) -> float:
    splits = folder.read_result()["splits"]
    values = [own["accuracy"] for name, own in splits.items() if name.endswith("out") and "sketch" not in name]
    return float(sum(values) / len(values))


def test_it_is_the_mean_of_the_weights_and_the_runs_stay_as_they_are(results: Path, tmp_path: Path) -> None:
    before = {file: file.read_bytes() for file in results.rglob("*") if file.is_file()}
    printed = CliRunner().invoke(app, ["soup", str(results), "--out", str(tmp_path / "my soup"), "--device", "cpu"])
    assert f"next: mecam predict '{tmp_path / 'my soup'}' PHOTO.jpg" in printed.stdout
    assert printed.exit_code == 0, printed.output
    assert "averaged 4 runs\naccuracy on the domain left out: " in printed.output
    each = [folder.read_model()[0] for folder in runs_in(results)]
    for name, value in RunFolder(tmp_path / "my soup").read_model()[0].items():
        if value.is_floating_point():
            expected = torch.stack([weights[name].double() for weights in each]).mean(0)
            torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-7)
    assert {file: file.read_bytes() for file in results.rglob("*") if file.is_file()} == before


def test_the_soup_is_a_model(results: Path, tmp_path: Path) -> None:
    made = soup([results], tmp_path / "soup", device="cpu")
    model = load_model(tmp_path / "soup")
    indices = torch.arange(len(DATA.labels(3)))
    assert model.classes == DATA.classes
    assert RunFolder(tmp_path / "soup").read_result()["soup"] == [f.read_run()["id"] for f in runs_in(results)]
    pictures = DATA.images(3, indices.numpy()).permute(0, 2, 3, 1).numpy()
    stored = RunFolder(tmp_path / "soup").read_predictions()
    predicted = model.probabilities(list(pictures)).argmax(1)
    assert torch.equal(predicted[stored["index"]], stored["predicted"])
    assert made.accuracy == (stored["predicted"] == stored["label"]).double().mean().item()


def test_a_soup_is_no_member_of_the_next_one(results: Path, tmp_path: Path) -> None:
    first = soup([results], tmp_path / "first", device="cpu")
    assert soup([results, tmp_path / "first"], tmp_path / "next", device="cpu").members == first.members


def test_a_greedy_soup_is_no_worse_than_its_best_run(results: Path, tmp_path: Path) -> None:
    of_one_seed = [folder.path for folder in runs_in(results) if "seed0" in folder.path.name]
    made = soup(of_one_seed, tmp_path / "soup", greedy=True, device="cpu")
    assert len(made.members) + len(made.left_out) == 3
    assert validation_of(made.folder) >= max(validation_of(RunFolder(path)) for path in of_one_seed) - 1e-9


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_interpolation_takes_the_point_of_best_validation(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    tuned = runs_in(results)[0]
    ours = tuned.read_model()[0]["head.weight"].double()
    initial = (
        torch.manual_seed(seed_hash(0, "weights")) and build_network(recipe_of(tuned.path), 7).head.weight.double()
    )
    point = initial * share + ours * (1 - share)

    def validation(_: object, weights: dict[str, torch.Tensor]) -> float:
        return -round((weights["head.weight"].double() - point).abs().max().item(), 6)

    monkeypatch.setattr("mecam.benchmark.soup._validation", validation)
    made = soup([tuned.path], tmp_path / "soup", interpolate=True, device="cpu")
    assert made.initial_share == share == made.folder.read_result()["initial_share"]
    torch.testing.assert_close(
        made.folder.read_model()[0]["head.weight"].double(), point.detach(), rtol=1e-5, atol=1e-7
    )
    assert (ours - initial).abs().max() > 1e-4


def test_interpolation_is_no_worse_on_validation(results: Path, tmp_path: Path) -> None:
    tuned = runs_in(results)[0]
    options = ["--interpolate", "--out", str(tmp_path / "soup"), "--device", "cpu"]
    printed = CliRunner().invoke(app, ["soup", str(tuned.path), *options])
    assert printed.exit_code == 0, printed.output
    assert "averaged 1 run\nshare of the initial weights: " in printed.output
    assert validation_of(RunFolder(tmp_path / "soup")) >= validation_of(tuned) - 1e-9


def test_what_does_not_fit_together_is_refused(results: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--greedy takes runs of one seed"):
        soup([results], tmp_path / "soup", greedy=True, device="cpu")
    with pytest.raises(RunError, match="--interpolate takes runs of one seed"):
        soup([results], tmp_path / "soup", interpolate=True, device="cpu")
    with pytest.raises(RunError, match="a soup takes at least 2 finished runs, got 1"):
        soup(runs_in(results)[:1], tmp_path / "soup", device="cpu")
    other = train(Recipe(**{**SMALL, "method": "mtl"}), tmp_path, device="cpu", data=DATA)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="has another network than"):
        soup([runs_in(results)[0], other], tmp_path / "soup", device="cpu")
    elsewhere = train(Recipe(**{**SMALL, "target": "art"}), tmp_path, device="cpu", data=DATA)  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"leave out different domains \(sketch, art\), so their sources differ; give"):
        soup([runs_in(results)[0], elsewhere], tmp_path / "soup", device="cpu")
    soup([results], tmp_path / "soup", device="cpu")
    with pytest.raises(RunError, match="holds a run already; give another --out"):
        soup([results], tmp_path / "soup", device="cpu")


def test_a_soup_is_no_run_of_a_recipe(results: Path, tmp_path: Path) -> None:
    for folder in runs_in(results)[:2]:
        (tmp_path / folder.path.name).symlink_to(folder.path)
    before, _ = read(tmp_path)
    made = soup([tmp_path], tmp_path / "soup", device="cpu")
    after, problems = read(tmp_path)
    assert [result.path for result in after] == [result.path for result in before]
    assert problems == [f"{made.folder.path} is left out: it is a soup of 2 runs, not a run of a recipe"]
    with pytest.raises(RunError, match="is a soup of 2 runs, which no recipe trains; repeat its mecam soup command"):
        rerun(made.folder, tmp_path / "again", data=DATA)
