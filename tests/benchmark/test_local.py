"""The local engine with real processes: runs, failures, deaths, two benchmarks on one folder, interruption."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mecam.benchmark import local
from mecam.benchmark.experiment import missing, run_missing, runs_of
from mecam.benchmark.local import LocalEngine
from mecam.benchmark.results import read
from mecam.benchmark.worker import log_tail, work
from mecam.progress import Event, silent
from mecam.recipe import Recipe
from mecam.runs import RunFolder
from mecam.runs.timing import TIMING
from tests.benchmark.folders import stop_run, with_threads

TINY = {"steps": 2, "evaluate_every": 1, "batch": 4, "image_size": 16}
pytestmark = pytest.mark.usefixtures("cache")


def recipes(*targets: str, **values: object) -> list[Recipe]:
    return [Recipe(**{"target": target, **TINY, **values}) for target in targets]


def test_what_is_missing_runs_and_failures_do_not_stop_the_rest(tmp_path: Path) -> None:
    good = recipes("art", "photo")
    bad = recipes("art", backbone="lite0", weights="nowhere.pth")
    [homeless] = recipes("sketch")
    (tmp_path / homeless.run_id).write_text("a file where its folder should be")
    events: list[Event] = []
    engine = LocalEngine(workers=2, device="cpu")
    outcome = run_missing([*good, *bad, homeless], tmp_path, engine=engine, progress=events.append)
    assert sorted(outcome.done) == sorted(r.run_id for r in good)
    assert sorted(outcome.failed) == sorted([bad[0].run_id, homeless.run_id])
    assert homeless.run_id in outcome.failed[homeless.run_id]
    assert "nowhere.pth" in outcome.failed[bad[0].run_id]
    assert "nowhere.pth" in log_tail(tmp_path, bad[0].run_id)
    assert "source validation" in log_tail(tmp_path, good[0].run_id)
    assert json.loads((tmp_path / good[0].run_id / TIMING).read_text())["steps"] == 3
    assert {event.kind for event in events} == {"started", "progress", "done", "failed"}
    assert missing([*good, *bad], tmp_path) == bad
    again = run_missing(good, tmp_path, engine=LocalEngine(device="cpu"))
    assert (again.before, again.done) == (2, [])


def test_the_last_event_describes_the_weights_selected(tmp_path: Path) -> None:
    [recipe] = recipes("art", steps=6, lr=0.03)
    events: list[Event] = []
    work(recipe, tmp_path, "cpu", events.append)
    result = RunFolder(tmp_path / recipe.run_id).read_result()
    assert result["selected_step"] < recipe.steps
    assert events[-1].kind == "done"
    assert f"art (unseen) {100 * result['target_accuracy']:.1f} %" in events[-1].text
    assert events[-2].text != events[-1].text  # the last step's


def test_a_run_whose_process_is_killed_goes_on_in_another(tmp_path: Path) -> None:
    killed = []

    def kill(event: Event) -> None:
        if event.kind == "progress" and not killed:
            killed.append(event.task)
            [process] = multiprocessing.active_children()
            process.kill()

    [recipe] = recipes("art", steps=30, evaluate_every=10)
    outcome = run_missing([recipe], tmp_path / "killed", engine=LocalEngine(workers=1, device="cpu"), progress=kill)
    assert (outcome.done, outcome.failed, len(killed)) == ([recipe.run_id], {}, 1)
    with with_threads(1):
        work(recipe, tmp_path / "whole", "cpu", silent)
    for name in ("model.safetensors", "records.jsonl", "done.json"):
        found = [(tmp_path / folder / recipe.run_id / name).read_bytes() for folder in ("killed", "whole")]
        assert found[0] == found[1], name


def test_a_run_that_resumes_with_other_threads_says_so_once(tmp_path: Path) -> None:
    changed, same = recipes("art", "photo", steps=3)
    stop_run(tmp_path, changed, 2)
    stop_run(tmp_path, same, 1)
    events: list[Event] = []
    outcome = run_missing(
        [changed, same], tmp_path, engine=LocalEngine(workers=1, device="cpu"), progress=events.append
    )
    said = "this run was trained with threads=2 and resumes with threads=1: results may differ in the last bits"
    assert [(event.task, event.text) for event in events if event.kind == "warning"] == [(changed.run_id, said)]
    assert outcome.warnings == {changed.run_id: said}
    assert len(outcome.done) == 2
    assert said in log_tail(tmp_path, changed.run_id)


BENCH = """
import sys
from pathlib import Path
from mecam.benchmark.experiment import run_missing
from mecam.benchmark.local import LocalEngine
from mecam.recipe import Recipe
values = {"steps": int(sys.argv[2]), "evaluate_every": 5, "batch": 4, "image_size": 16}
if __name__ == "__main__":
    recipes = [Recipe(target=target, **values) for target in ("art", "photo", "sketch")]
    print("ready", flush=True)
    outcome = run_missing(recipes, Path(sys.argv[1]), engine=LocalEngine(workers=1, device="cpu"))
    print(len(outcome.done), len(outcome.failed), len(outcome.stopped))
"""


def start(script: Path, out: Path, steps: int) -> subprocess.Popen[str]:
    script.write_text(BENCH)
    command = [sys.executable, str(script), str(out), str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_two_benchmarks_on_one_folder_share_the_work(tmp_path: Path) -> None:
    out = tmp_path / "out"
    both = [start(tmp_path / "bench.py", out, 20) for _ in range(2)]
    said = [process.communicate(timeout=120)[0].split() for process in both]
    assert [words[2:] for words in said] == [["0", "0"]] * 2
    results, problems = read(out)
    assert (len(results), problems) == (3, [])
    assert all(result.accuracy is not None for result in results)
    for result in results:
        steps = [json.loads(line)["step"] for line in (result.path / "records.jsonl").read_text().splitlines()]
        assert steps == [0, 5, 10, 15, 20]
        assert (result.path / "log.txt").read_text().count("step 20:") == 1  # nobody ran it a second time


@pytest.mark.parametrize("group", [True, False])
def test_a_stopped_benchmark_is_saved(group: bool, tmp_path: Path) -> None:
    """Ctrl-C reaches the whole process group; SIGTERM the benchmark alone."""
    out = tmp_path / "out"
    process = start(tmp_path / "bench.py", out, 400)
    deadline = time.monotonic() + 60
    while not list(out.glob("*/records.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT) if group else process.send_signal(signal.SIGTERM)
    words = process.communicate(timeout=60)[0].split()
    assert words[1:] == ["0", "0", "3"]
    [begun] = out.glob("*/checkpoint")
    assert any(begun.iterdir())


def test_ctrl_c_while_a_worker_starts_begins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait, interrupted = local.wait, []

    def listen(pipes: list[Any], timeout: float) -> list[Any]:
        if not interrupted:  # the worker has its recipe in the pipe, and imports torch
            interrupted.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return wait(pipes, timeout)

    monkeypatch.setattr(local, "wait", listen)
    runs = recipes("art", "photo", steps=100_000)
    outcome = run_missing(runs, tmp_path, engine=LocalEngine(workers=1, device="cpu"))
    assert (outcome.done, outcome.failed) == ([], {})
    assert sorted(outcome.stopped) == sorted(recipe.run_id for recipe in runs)


def test_targets_unfold_from_the_data() -> None:
    found = runs_of([{"target": "all", "optimizer": ["adam", "sam"], **TINY}])
    assert [r.target for r in found[:4]] == ["art", "cartoon", "photo", "sketch"]
    assert len(found) == 8


def test_workers_must_be_some() -> None:
    with pytest.raises(ValueError, match="workers=0"):
        LocalEngine(workers=0)


def test_a_script_that_its_processes_cannot_import_is_told_why(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import mecam\n"
        f"done = mecam.bench(target='art', steps=1, image_size=16, seeds=[0], workers=1, out={str(tmp_path)!r})\n"
        "print(*done.failed.values())\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=True)
    assert "its process died" in done.stdout
    assert "RuntimeError: the processes of mecam.bench import this file" in done.stderr
    assert 'put the call of mecam.bench below if __name__ == "__main__":' in done.stderr
    assert "freeze_support" not in done.stderr
