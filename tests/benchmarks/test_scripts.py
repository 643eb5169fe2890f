"""The scripts run and print well-formed tables. How fast anything is, no test asks; memory can be counted."""

import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mecam.methods import trm
from mecam.optim import OPTIMIZERS, SAGM

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
METHODS = [name for name, entry in OPTIMIZERS.items() if entry.sharpness_aware is not None and not entry.stands_for]
TINY = ["--network", "resnet8", "--batch", "4", "--repeats", "2", "--threads", "1"]
FACTS = ["machine", "versions", "commit", "setting", "repeats"]


def run(script: str, *options: str) -> str:
    """Run a script as a process, as it is typed."""
    command = [sys.executable, str(BENCHMARKS / script), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """A function like `run` in this process, which need not import torch again."""

    def run_here(script: str, *options: str) -> str:
        monkeypatch.setattr(sys, "argv", [str(BENCHMARKS / script), *options])
        capsys.readouterr()
        runpy.run_path(sys.argv[0], run_name="__main__")
        return capsys.readouterr().out

    monkeypatch.syspath_prepend(BENCHMARKS)
    threads = torch.get_num_threads()
    yield run_here
    torch.set_num_threads(threads)


def facts(text: str) -> list[str]:
    return [line[2:].partition(":")[0] for line in text.splitlines() if line.startswith("- ")]


def table(text: str) -> dict[str, list[str]]:
    """The cells after the first of every row, by the first."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert len({len(row) for row in rows}) == 1
    assert rows[1] == ["---", *["---:"] * (len(rows[0]) - 1)]
    return {name: cells for name, *cells in rows[2:]}


def test_step_time(tmp_path: Path) -> None:
    text = run("step_time.py", *TINY, "--out", str(tmp_path / "table.md"))
    assert (tmp_path / "table.md").read_text() == text
    assert f"python benchmarks/step_time.py {' '.join(TINY)}" in text.replace(str(BENCHMARKS.parent) + "/", "")
    assert facts(text) == [*FACTS, "load"]
    found = table(text)
    assert list(found) == [*METHODS, "mecam+mixstyle", "pytorch_optimizer.SAM"]
    for passes, ratio, quartiles, milliseconds in found.values():
        low, high = map(float, quartiles.split(" to "))
        assert 1 <= int(passes) <= 4
        assert 0 < low <= float(ratio) <= high
        assert float(milliseconds) > 0
    assert "sam over pytorch_optimizer.SAM, round by round: " in text


@pytest.mark.parametrize(
    "options",
    [
        ["--frozen-bn", "--channels-last", "--precision", "bf16"],
        ["--hooks", "--small-input", "--clock", "cpu", "--burst", "2"],
    ],
)
def test_step_time_in_other_settings(options: list[str], run_here: Callable[..., str]) -> None:
    assert list(table(run_here("step_time.py", *TINY, "--optimizers", "sam,mecam+mixstyle", *options))) == [
        "sam",
        "mecam+mixstyle",
    ]


def test_unknown_optimizers_are_refused(run_here: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_here("step_time.py", "--optimizers", "sam,samm")
    assert "there is no samm; known are sam, " in capsys.readouterr().err


def test_a_loop_of_your_own(run_here: Callable[..., str]) -> None:
    small = ["--network", "resnet18", "--size", "32", "--batch", "2", "--steps", "1"]
    found = table(run_here("own_loop.py", "--device", "cpu", *small, "--ways", "folded, captured"))
    assert [cell == "-" for cell in found["folded, captured"]][:6] == [False, False, False, False, True, True]


@pytest.fixture
def own_loop(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return runpy.run_path(str(BENCHMARKS / "own_loop.py"))


def test_peers_of_a_loop_take_two_passes(own_loop: dict[str, Any]) -> None:
    for name in own_loop["PEERS"]:
        weight, passes = torch.nn.Parameter(torch.ones(3)), []
        optimizer = own_loop["OPTIMIZERS"][name]([weight], None)

        def closure(optimizer: Any = optimizer, weight: Any = weight, passes: list[float] = passes) -> Any:
            optimizer.zero_grad()
            loss = weight.square().sum()
            loss.backward()
            passes.append(loss.item())
            return loss

        optimizer.step(closure)
        assert passes == [3.0, pytest.approx((3**0.5 + 0.05) ** 2, rel=1e-2)], name


def test_the_plain_loop_of_sagm_is_sagm(own_loop: dict[str, Any]) -> None:
    gradients = []
    for build in (own_loop["OPTIMIZERS"]["SAGM, plain loop"], lambda p, _: SAGM(p, torch.optim.Adam)):
        weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
        optimizer = build([weight], None)

        def closure(optimizer: Any = optimizer, weight: Any = weight) -> Any:
            optimizer.zero_grad()
            loss = weight.pow(4).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        gradients.append(optimizer.state[weight]["exp_avg"])
    torch.testing.assert_close(*gradients)


def test_a_gpu_is_busy_while_anything_runs(own_loop: dict[str, Any]) -> None:
    events = [("kernel", 1000, 500), ("kernel", 1200, 100), ("gpu_memcpy", 1400, 300), ("kernel", 3000, 1000)]
    found = own_loop["busy"]([{"cat": kind, "ts": start, "dur": time} for kind, start, time in events])
    assert found == (pytest.approx(1.7), 3)


def test_memory_is_within_its_bounds(tmp_path: Path, run_here: Callable[..., str]) -> None:
    text = run_here("memory.py", "--layers", "8", "--width", "256", "--out", str(tmp_path / "table.md"))
    assert (tmp_path / "table.md").read_text() == text
    assert facts(text) == FACTS
    buffers = {name: float(cells[0]) for name, cells in table(text).items()}
    assert list(buffers) == ["adam", *METHODS, "pytorch_optimizer.SAM"]
    activations = 0.05
    assert all(buffers[name] <= 2 + activations for name in ("sam", "asam", "sagm"))
    assert all(buffers[name] <= 3 + activations for name in ("mecam", "crsam"))


def test_the_largest_eigenvalue_is_within_its_bar(tmp_path: Path, run_here: Callable[..., str]) -> None:
    tiny = ["--backbone", "resnet8", "--images", "12", "--few", "6", "--steps", "2"]
    text = run_here("curvature_check.py", *tiny, "--out", str(tmp_path / "table.md"))
    assert (tmp_path / "table.md").read_text() == text
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert [row[6] for row in rows[2:]] == ["dense", "Lanczos", "residual"]
    assert {row[-1] for row in rows[2:]} == {"within the bar"}


SMALL = [
    "--device",
    "cpu",
    "--backbone",
    "resnet8",
    "--image-size",
    "32",
    "--stored",
    "32",
    "--images",
    "280",
    "--batch",
    "4",
]


def test_steps_of_every_kind(run_here: Callable[..., str]) -> None:
    text = run_here("gpu.py", *SMALL, "--rounds", "1", "--burst", "2", "--optimizers", "sam", "--methods", "mixup")
    found = table(text)
    assert list(found) == ["erm, adam", "erm, sam", "mixup, adam"]
    for milliseconds, ratio, bare, *_ in found.values():
        assert min(float(milliseconds), float(ratio), float(bare)) > 0


def test_several_runs() -> None:
    small = ["--device", "cpu", "--batch", "2", "--images", "32", "--seconds", "0.1", "--counts", "1", "2"]
    text = run("several_runs.py", *small, "--cases", "resnet8:16", "resnet8:32")
    rows = [line.split(" | ")[:2] for line in text.splitlines() if line.startswith("| resnet8")]
    assert rows == [[f"| resnet8, {size} px", count] for size in (16, 32) for count in "12"]


def test_the_time_of_a_run(run_here: Callable[..., str]) -> None:
    found = table(run_here("run_time.py", "--steps", "2"))
    seconds = [float(cells[0]) for cells in found.values()]
    assert len(seconds) == 5
    assert abs(sum(seconds[:-1]) - seconds[-1]) < 0.5


def test_costs_of_methods_include_annealed_penalties(
    run_here: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, losses = [], trm._losses

    def counted(*tensors: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return losses(*tensors)

    monkeypatch.setattr(trm, "_losses", counted)
    small = ["--backbone", "resnet8", "--image-size", "16", "--batch", "2", "--rounds", "1", "--burst", "1"]
    assert "| trm | " in run_here("method_cost.py", "--methods", "trm", *small)
    assert len(calls) == 3, "in two steps of warm-up and one on the clock"


def test_a_step_on_a_cpu(run_here: Callable[..., str]) -> None:
    text = run_here("cpu.py", "--batch", "4", "--rounds", "1", "--burst", "1", "--ways", "contiguous", "bf16")
    assert "| mecam: Python between the passes |" in text
    assert "| contiguous | " in text


def test_several_gpus(run_here: Callable[..., str]) -> None:
    text = run_here("several_gpus.py")
    assert (BENCHMARKS / "results" / "several_gpus.md").read_text().splitlines()[2:] == text.splitlines()[2:]
    for alone, *cells in (list(map(float, cells)) for cells in table(text).values()):
        after, overlapped = cells[0], cells[2]
        assert overlapped < after
        assert alone > 0


def test_roofline(run_here: Callable[..., str]) -> None:
    (cells,) = table(run_here("roofline.py", "--networks", "resnet50")).values()
    assert 2.2 < float(cells[0]) < 2.4  # TFLOP: 4.1 billion multiplications and additions forward, twice that backward


def test_cpu_memory(run_here: Callable[..., str]) -> None:
    small = ["--batch", "1", "--steps", "1", "--rounds", "1", "--threads", "1"]
    text = run_here("cpu_memory.py", *small, "--ways", "kept and folded")
    assert list(table(text)) == ["glibc's defaults", "kept and folded"]
