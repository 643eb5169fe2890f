"""Two processes under torchrun, on CPUs: the run of one process, shared."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from mecam.cli import app
from mecam.data.open import open_data
from mecam.data.splits import split_domains
from mecam.models import fold_frozen
from mecam.serving import load_model
from mecam.splits import Part
from mecam.training.evaluate import BATCH, evaluate
from tests.serving.runs import TINY, write_images

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# several commands in one launch: most of a launch is imports
COMMANDS = """
import sys
from mecam._garbage import collect_rarely
from mecam.cli import app

collect_rarely()
for line in open(sys.argv[1]):
    app(line.rstrip("\\n").split("\\t"), standalone_mode=False)
"""
# nothing random, and nothing that depends on the other images of a process
SETTINGS = ("augment=false", "dropout=0", "freeze_bn=true", "virtual=none", "selection=last", "precision=fp32")
STILL = [word for setting in SETTINGS for word in ("--set", setting)]
# SGD at the base: Adam divides by the root of its second moments, so where a gradient is near zero its step turns a
# difference in the last bit into one of the size of the learning rate
OPTIMIZERS = {"sgd": [], "mecam": ["--set", "base=sgd"]}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MECAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        environment.setenv("OMP_NUM_THREADS", "1")
        yield


@dataclass(frozen=True)
class Pair:
    """Where two launches of two processes have left their runs, and what they said."""

    out: Path
    stopped: str  # stderr of the launch that got a SIGTERM
    stderr: str  # of the one after it, which went on, and trained more
    stdout: str


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    out = tmp_path_factory.mktemp("runs")
    write_images(out / "images")
    stopped = stop([*TORCHRUN, "-m", "mecam.cli", *long(out), "--out", str(out / "two long")])
    commands = [[*long(out), "--out", str(out / "two long")]]
    commands += [[*short(name), "--out", str(out / f"two {name}")] for name in OPTIMIZERS]
    commands += [[*long(out), "--out", str(out / "two undisturbed")]]
    (out / "commands").write_text("".join("\t".join(command) + "\n" for command in commands))
    (out / "script.py").write_text(COMMANDS)
    launch = [*TORCHRUN, str(out / "script.py"), str(out / "commands")]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return Pair(out, stopped, done.stderr, done.stdout)


def stop(launch: list[str]) -> str:
    """Send the launcher a SIGTERM after step 10; what was on stderr."""
    with subprocess.Popen(launch, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("step 10 "):
                process.send_signal(signal.SIGTERM)
        assert process.wait(120) != 0
    return "".join(lines)


def long(out: Path) -> list[str]:
    words = ["train", "--data", str(out / "images"), *TINY, "--steps", "40", "--set", "evaluate_every=10"]
    return [*words, *STILL]


def short(optimizer: str) -> list[str]:
    words = ["train", "--target", "sketch", "--steps", "2", "--set", "batch=4", "--set", "evaluate_every=2"]
    return [*words, "--optimizer", optimizer, *OPTIMIZERS[optimizer], *STILL]


def single(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr


def run_folder(out: Path) -> Path:
    (found,) = (file.parent for file in out.glob("*/run.json"))
    return found


def test_two_processes_train_as_one(pair: Pair, tmp_path: Path) -> None:
    found = {}
    for name in OPTIMIZERS:
        single([*short(name), "--out", str(tmp_path / name)])
        folder = run_folder(pair.out / f"two {name}")
        assert json.loads((folder / "run.json").read_text())["environment"]["ranks"] == 2
        weights = load_file(run_folder(tmp_path / name) / "model.safetensors")
        found[name] = load_file(folder / "model.safetensors")
        for key, tensor in weights.items():
            torch.testing.assert_close(found[name][key], tensor, rtol=0, atol=1e-5)
    sgd, mecam = (found[name]["head.weight"] for name in OPTIMIZERS)
    assert (sgd - mecam).abs().max() > 1e-3  # far more than rounding: they did train


def test_one_process_talks(pair: Pair) -> None:
    said = [line.partition(":")[0] for line in pair.stderr.splitlines() if line.startswith("step ")]
    undisturbed = [f"step {step} of 40" for step in (0, 10, 20, 30, 40)]
    assert said[-9:] == [*2 * ["step 0 of 2", "step 2 of 2"], *undisturbed]
    assert said[:-9] in (undisturbed[2:], undisturbed[3:])
    assert len(pair.stdout.splitlines()) == 2 + 2 * 2  # two paths; and twice an accuracy and a path


def test_two_processes_evaluate_as_one(pair: Pair) -> None:
    folder, data = run_folder(pair.out / "two mecam"), open_data("shapes")
    model = load_model(folder)
    fold_frozen(model.network)  # as in training: the last bits are those of this order of operations
    training = {own: indices for own, indices in split_domains(data, trial=0).items() if own.part is Part.TRAINING}
    assert min(map(len, training.values())) > BATCH, "the second process has no batch to evaluate"
    found = evaluate(
        model.network,
        data,
        training,
        model.preprocessing,
        device=torch.device("cpu"),
    )
    splits = json.loads((folder / "done.json").read_text())["result"]["splits"]
    for own, metrics in found.items():
        assert splits[str(own)] == json.loads(json.dumps(asdict(metrics))), own


def test_a_stopped_pair_is_saved_and_resumes_bit_for_bit(pair: Pair) -> None:
    received, stop = (line for line in pair.stopped.splitlines() if line.startswith("mecam: "))  # one of the two talks
    assert received.startswith("mecam: SIGTERM received; saving after the current step")
    expected = "mecam: stopped by SIGTERM after step {}; the run is saved. The same command resumes it."
    assert stop in {expected.format(step) for step in (10, 20)}
    stopped, undisturbed = (run_folder(pair.out / name) for name in ("two long", "two undisturbed"))
    for file in ("model.safetensors", "records.jsonl"):
        assert (stopped / file).read_bytes() == (undisturbed / file).read_bytes()
