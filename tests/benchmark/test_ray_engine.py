"""The Ray engine on a real cluster of two nodes: lost nodes, failures, shipped data, claims, interruption."""

import importlib.util
import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mecam.benchmark import _parcel
from mecam.benchmark import ray_engine as module
from mecam.benchmark.experiment import missing, run_missing
from mecam.benchmark.ray_engine import RayEngine
from mecam.benchmark.results import read
from mecam.benchmark.tables import rows
from mecam.benchmark.worker import log_tail, work
from mecam.data.open import cache_folder
from mecam.data.pack import pack
from mecam.progress import Event, silent
from mecam.recipe import Recipe
from mecam.runs import ClaimedError, RunError, RunFolder, claim
from mecam.runs.timing import TIMING
from mecam.training import environment, train
from tests.benchmark.folders import stop_run, with_threads
from tests.data.folders import make_folder

# Ray takes its time to notice that a node is gone, more so on a busy machine
pytestmark = [pytest.mark.usefixtures("cache"), pytest.mark.timeout(600)]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: mecam[ray]")
TINY = {"steps": 2, "evaluate_every": 1, "batch": 4, "image_size": 16}
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster(cache: None) -> Iterator[Any]:  # noqa: ARG001  # nodes inherit its settings
    """A cluster of one node."""
    ray = module._import_ray()
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def connected(cluster: Any) -> None:
    """A connection for several tests: Ray's processes stay, with torch in them. The engine uses what it finds."""
    ray = module._import_ray()
    if not ray.is_initialized():
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")


@pytest.fixture
def unconnected() -> None:
    module._import_ray().shutdown()


def recipes(*targets: str, **values: object) -> list[Recipe]:
    return [Recipe(**{"target": target, **TINY, **values}) for target in targets]


def same_files(one: Path, other: Path, runs: list[Recipe]) -> None:
    """But for those that tell of the machine, the time and the number of attempts."""
    apart = ("run.json", "sessions.jsonl", "log.txt", "timing.json", "claim")
    for recipe in runs:
        found = [
            {
                file.name: file.read_bytes()
                for file in (out / recipe.run_id).iterdir()
                if file.is_file() and file.name.partition("-")[0] not in apart
            }
            for out in (one, other)
        ]
        assert {"model.safetensors", "predictions.safetensors", "records.jsonl", "done.json"} <= found[0].keys()
        assert found[0].keys() == found[1].keys()
        assert [name for name in found[0] if found[0][name] != found[1][name]] == [], recipe.run_id


@needs_ray
@pytest.mark.usefixtures("unconnected")
def test_a_killed_node_changes_nothing_in_the_table(
    tmp_path: Path, cluster: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = recipes("art", "cartoon", "photo", "sketch", steps=70, evaluate_every=70)
    second = cluster.add_node(**NODE)
    events: list[Event] = []

    def watch(event: Event) -> None:
        events.append(event)
        there = event.worker.endswith(second.node_id[:6])
        if there and event.kind == "progress" and event.done == 0 and second in cluster.worker_nodes:
            cluster.remove_node(second, allow_graceful=False)

    outcome = run_missing(runs, tmp_path / "ray", engine=RayEngine(cluster.address), progress=watch)
    assert capfd.readouterr() == ("", "")
    assert (sorted(outcome.done), outcome.failed) == (sorted(r.run_id for r in runs), {})
    started = Counter(event.task for event in events if event.kind == "started")
    assert sorted(started.values()) == [1, 1, 1, 2]  # one was lost with its node
    with with_threads(1):  # as on the cluster: sums do not depend on their number then
        for recipe in runs:
            work(recipe, tmp_path / "local", "cpu", silent)
    tables = [rows(read(tmp_path / engine)[0]) for engine in ("ray", "local")]
    assert tables[0] == tables[1]
    assert tables[0][0].cells["average"].runs == 4
    same_files(tmp_path / "ray", tmp_path / "local", runs)
    for recipe in runs:
        folder = RunFolder(tmp_path / "ray" / recipe.run_id)
        folder.verify()
        assert [session["step"] for session in folder.read_sessions()] == [0]


@needs_ray
@pytest.mark.usefixtures("unconnected")
def test_ray_is_started_and_ended_where_there_is_no_cluster(tmp_path: Path) -> None:
    import ray

    former = signal.getsignal(signal.SIGTERM)
    outcome = run_missing(recipes("sketch"), tmp_path, engine=RayEngine())
    assert (len(outcome.done), outcome.failed) == (1, {})
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) == former


@needs_ray
@pytest.mark.usefixtures("connected")
def test_a_recipe_that_fails_by_itself_is_tried_once(tmp_path: Path) -> None:
    good, bad = recipes("art", "photo"), recipes("art", backbone="lite0", weights="nowhere.pth")
    events: list[Event] = []
    outcome = run_missing([*bad, *good], tmp_path, engine=RayEngine(), progress=events.append)
    assert sorted(outcome.done) == sorted(recipe.run_id for recipe in good)
    assert list(outcome.failed) == [bad[0].run_id]
    assert "nowhere.pth" in outcome.failed[bad[0].run_id]
    assert "nowhere.pth" in log_tail(tmp_path, bad[0].run_id)
    assert [e.kind for e in events if e.task == bad[0].run_id] == ["started", "failed"]
    assert "source validation" in log_tail(tmp_path, good[0].run_id)
    assert json.loads((tmp_path / good[0].run_id / TIMING).read_text())["steps"] == 3
    assert missing([*good, *bad], tmp_path) == bad


@needs_ray
@pytest.mark.usefixtures("connected")
def test_a_run_that_resumes_with_other_threads_says_so_once(tmp_path: Path) -> None:
    changed, same = recipes("art", "photo", steps=3)
    stop_run(tmp_path, changed, 2)
    stop_run(tmp_path, same, 1)
    outcome = run_missing([changed, same], tmp_path, engine=RayEngine(shared=True))
    said = "this run was trained with threads=2 and resumes with threads=1: results may differ in the last bits"
    assert outcome.warnings == {changed.run_id: said}
    assert [session["step"] for session in RunFolder(tmp_path / changed.run_id).read_sessions()] == [0, 2]
    assert len(outcome.done) == 2


@needs_ray
@pytest.mark.usefixtures("connected")
def test_data_that_a_node_does_not_see_is_shipped_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_parcel, "PIECE", 1000)
    store = pack(make_folder(tmp_path / "images"), tmp_path / "store")
    # a path of this process alone: no other works in this folder
    values = {"data": "/proc/self/cwd/store", "backbone": "resnet8", "pretrained": False}
    runs = [recipe for seed in (0, 1) for recipe in recipes(store.domains[0], seed=seed, **values)]
    outcome = run_missing(runs, tmp_path / "ray", engine=RayEngine(cpus=0.5))  # both at once
    assert (len(outcome.done), outcome.failed) == (2, {})
    shipped = cache_folder() / "stores" / store.fingerprint
    for file in (tmp_path / "store").iterdir():
        assert (shipped / file.name).read_bytes() == file.read_bytes()
    written = (shipped / "data.bin").stat()
    more = recipes(store.domains[0], optimizer="sam", track=1, **values)
    assert len(run_missing(more, tmp_path / "ray", engine=RayEngine()).done) == 1
    assert (shipped / "data.bin").stat().st_ino == written.st_ino
    for recipe in (*runs, *more):
        train(recipe, tmp_path / "here", device="cpu")
    same_files(tmp_path / "ray", tmp_path / "here", [*runs, *more])
    assert (tmp_path / "ray" / more[0].run_id / "tracking.jsonl").read_text().count("\n") == 3


@needs_ray
@pytest.mark.usefixtures("connected")
def test_a_run_is_claimed_while_it_is_in_flight(tmp_path: Path) -> None:
    [recipe] = recipes("photo")
    folder = tmp_path / recipe.run_id
    kinds: list[str] = []
    with ExitStack() as other:
        other.enter_context(claim(folder))

        def watch(event: Event) -> None:
            kinds.append(event.kind)
            if event.kind == "elsewhere":
                other.close()
            if event.kind == "progress":
                with pytest.raises(ClaimedError), claim(folder):
                    pass

        run_missing([recipe], tmp_path, engine=RayEngine(), progress=watch)
    assert (kinds[:2], {*kinds[2:-1]}, kinds[-1]) == (["elsewhere", "started"], {"progress"}, "done")
    with claim(folder):
        pass


@needs_ray
@pytest.mark.usefixtures("connected")
@pytest.mark.parametrize("shared", [False, True])
def test_a_signal_stops_runs_and_a_shared_folder_keeps_them(tmp_path: Path, shared: bool) -> None:
    runs = recipes("art", "photo", steps=300, evaluate_every=300)  # seconds, so that the signal finds it at work
    events: list[Event] = []

    def watch(event: Event) -> None:
        if event.kind == "progress" and "progress" not in {e.kind for e in events}:  # a second signal kills
            os.kill(os.getpid(), signal.SIGTERM)
        events.append(event)

    outcome = run_missing(runs, tmp_path / "ray", engine=RayEngine(shared=shared), progress=watch)
    assert (outcome.done, outcome.failed) == ([], {})
    assert sorted(outcome.stopped) == sorted(recipe.run_id for recipe in runs)
    started = {event.task for event in events if event.kind == "started"}
    begun = [recipe for recipe in runs if recipe.run_id in started]
    assert [(tmp_path / "ray" / recipe.run_id / "checkpoint").exists() for recipe in begun] == [shared]
    if shared:
        events.clear()
        run_missing(begun, tmp_path / "ray", engine=RayEngine(shared=True), progress=events.append)
        assert min(event.done for event in events if event.kind == "progress") > 0
        train(begun[0], tmp_path / "here", device="cpu")
        same_files(tmp_path / "ray", tmp_path / "here", begun)


@needs_ray
@pytest.mark.usefixtures("connected")
def test_runs_that_fit_on_no_node_are_refused_here_and_wait_on_a_cluster() -> None:
    engine = RayEngine(cpus=1000)
    with pytest.raises(ValueError, match="1000 CPUs and 0 GPUs: the largest has 1 CPUs and 0 GPUs; reserve less"):
        engine._check_room(alone=True)
    with pytest.warns(UserWarning, match="wait until such a node joins"):
        engine._check_room(alone=False)


@needs_ray
@pytest.mark.parametrize(
    ("options", "message"),
    [({"cpus": 0}, "needs some of a CPU or a GPU"), ({"device": "cuda"}, "gpus=0: Ray would give a run no GPU")],
)
def test_resources_that_no_run_can_use_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RayEngine(**options)


@pytest.mark.attack("Hosts")
@needs_ray
@pytest.mark.usefixtures("unconnected")
def test_an_address_at_which_nothing_answers_is_named_at_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RuntimeError, match=f"does not answer at {address} .*refused.*ray status.*RAY_AUTH_TOKEN"):
            RayEngine(address).run(recipes("art"), tmp_path, print)


@needs_ray
@pytest.mark.attack("Hosts")
@pytest.mark.usefixtures("unconnected")
def test_a_cluster_that_wants_a_token_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuse(**_: object) -> None:
        raise ray.exceptions.AuthenticationError("no authentication token was found")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(
        RunError, match=r"no authentication token was found.*set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
    ):
        RayEngine("auto").run(recipes("art"), tmp_path, print)


@pytest.mark.attack("What a run is trained on")
@needs_ray
def test_a_node_with_another_mecam_refuses(tmp_path: Path) -> None:
    [recipe] = recipes("art")
    own = environment.source()
    # a recipe with another name there, and other code without effect on names
    for sender in (("shapes-art-0123456789", own), (recipe.run_id, "another")):
        with pytest.raises(RuntimeError, match=f"source {own}.*source {sender[1]}.*the same mecam on all nodes"):
            module._run(recipe, sender, tmp_path, "cpu", 1, None, None)


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"sys.modules.*pip install 'mecam\[ray\]'"):
        RayEngine()
