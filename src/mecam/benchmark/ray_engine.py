"""Run recipes on a Ray cluster, one task per run, and retry runs whose worker or node is lost.

Nodes need no shared file system: a task trains in a scratch folder of its node and returns the run's files, which the
driver puts into the output folder. Packed data travels to a node once, and only if the node does not see it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from mecam import __version__
from mecam.benchmark._parcel import Parcel
from mecam.benchmark.estimate import Budget
from mecam.benchmark.jobs import AfterRun, Driver
from mecam.benchmark.worker import LOG, work
from mecam.data.domains import DataError
from mecam.progress import ENDED, Event, Progress
from mecam.recipe import Recipe
from mecam.runs import ClaimedError, RunError, RunFolder, claim
from mecam.runs.claim import NAME as CLAIM
from mecam.runs.claim import Writer
from mecam.storage.files import read_bytes
from mecam.training import environment

RUN, SESSIONS, DONE = "run.json", "sessions.jsonl", "done.json"
LISTEN_EVERY = 0.25  # seconds between two looks at the mailbox
GRACE = 30.0  # seconds in which cancelled runs may save themselves
MOST_IN_FLIGHT = 500  # each holds an open file, of which a process has 1024
LOCAL_OBJECTS = 128 << 20  # bytes of Ray's object store on this machine alone, where files do not go through it


class RayEngine:
    """Run recipes as tasks of a Ray cluster whose nodes have mecam installed.

    Args:
        address: a cluster ("auto", "10.0.0.1:6379", "ray://..."). None: start Ray on this machine for the benchmark.
        cpus, gpus: resources reserved per run; gpus=0.5 puts two runs on one GPU.
        device: auto is cuda where a run reserves some of a GPU, else cpu.
        retries: how often a recipe is retried whose worker or node was lost. An error that the recipe raised itself is
            not retried.
        shared: every node sees the output folder under its path: runs write into it and resume from their checkpoints.
            Without it, a run that was lost or stopped starts over. Ray on this machine alone always shares it.
        after: called on the node with each finished run: see `mecam.benchmark.jobs.AfterRun`. Runs that were finished
            before are left as they are unless `shared`.
        budget: start no run that does not fit, and cancel those that are left when it is over.

    Data is brought to the nodes; a file that a recipe names as `weights` must be at that path on each of them.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        cpus: float = 1,
        gpus: float = 0,
        device: str = "auto",
        retries: int = 3,
        shared: bool = False,
        after: AfterRun | None = None,
        budget: Budget | None = None,
    ) -> None:
        if min(cpus, gpus) < 0 or cpus + gpus <= 0:
            raise ValueError(f"cpus={cpus} and gpus={gpus} are not allowed; a run needs some of a CPU or a GPU")
        if device.startswith("cuda") and not gpus:
            raise ValueError(f"device={device}, but gpus=0: Ray would give a run no GPU; give gpus=1, or 0.5 to share")
        _import_ray()
        self.address, self.cpus, self.gpus, self.retries, self.shared = address, cpus, gpus, retries, shared
        self.after, self.budget = after, budget
        self.device = device if device != "auto" else "cuda" if gpus else "cpu"

    def run(self, recipes: Sequence[Recipe], out: Path, progress: Progress) -> None:
        with _connected(self.address) as alone:
            self._check_room(alone)
            _Benchmark(self, recipes, out, progress, self.shared or alone).run()

    def slots(self) -> int:
        """Return how many runs the cluster has room for at a time."""
        total = _import_ray().cluster_resources()
        needs = {"CPU": self.cpus, "GPU": self.gpus}
        return min(int(total.get(name, 0) // need) for name, need in needs.items() if need)

    def _check_room(self, alone: bool) -> None:
        nodes = [node["Resources"] for node in _import_ray().nodes() if node["Alive"]]
        if any(node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus for node in nodes):
            return
        most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in ("CPU", "GPU")}
        message = (
            f"no node has room for a run of {self.cpus:g} CPUs and {self.gpus:g} GPUs: the largest has "
            f"{most['CPU']:g} CPUs and {most['GPU']:g} GPUs"
        )
        if alone:
            raise ValueError(f"{message}; reserve less per run")
        warnings.warn(f"{message}. Runs wait until such a node joins the cluster", stacklevel=3)


class _Benchmark(Driver):
    def __init__(
        self, engine: RayEngine, recipes: Sequence[Recipe], out: Path, progress: Progress, shared: bool
    ) -> None:
        super().__init__(recipes, progress, budget=engine.budget, retries=engine.retries)
        self.ray = _import_ray()
        self.engine, self.out, self.shared = engine, out.absolute(), shared
        # a run, the claim that is held for it here and its writer, by the Ray object that will hold the answer
        self.flights: dict[Any, tuple[Recipe, ExitStack, Writer]] = {}
        self.parcels: dict[tuple[str, ...], Parcel | None] = {}  # by data, and how it is read
        self.stop_by = float("inf")
        self.mailbox = _mailbox()
        # losses are counted here, where the claim is held: Ray itself retries nothing
        reserved = {"num_cpus": engine.cpus, "num_gpus": engine.gpus, "max_retries": 0}
        self.task = self.ray.remote(_run).options(name="mecam run", **reserved)

    def run(self) -> None:
        try:
            self.drive()
            for recipe in (*(recipe for recipe, *_ in self.flights.values()), *self.queue.rest()):
                self.progress(Event(recipe.run_id, kind="stopped", text="not finished"))
        finally:
            for answer, (_, held, _) in self.flights.items():
                with contextlib.suppress(Exception):  # the cluster may be gone
                    self.ray.cancel(answer, force=True)
                held.close()
            with contextlib.suppress(Exception):
                self.mailbox.shutdown(force=True)

    def is_busy(self) -> bool:
        return bool(self.flights) and time.monotonic() < self.stop_by

    def stop(self) -> None:
        self.stop_by = time.monotonic() + GRACE
        for answer in self.flights:
            self.ray.cancel(answer)  # reaches a run as Ctrl-C does: it saves itself

    def hand_out(self) -> None:
        """Hand runs to the cluster: as many as it has room for and, without a budget, as many again to choose from."""
        slots = self.engine.slots() if self.queue else 0
        room = min(2 * slots + 2 if self.engine.budget is None else max(slots, 1), MOST_IN_FLIGHT)
        while len(self.flights) < room and (recipe := self.queue.take()) is not None:
            with ExitStack() as held:
                writer = Writer()
                try:
                    if not self.shared:  # there, the process that runs it claims it
                        writer = held.enter_context(claim(self.out / recipe.run_id))
                    source = _source(recipe)
                    if source not in self.parcels:
                        self.parcels[source] = Parcel.of(recipe.data, **recipe.reading)
                except ClaimedError:
                    self._wait_for(recipe)
                    continue
                except (DataError, OSError) as error:
                    self.progress(Event(recipe.run_id, kind="failed", text=f"{type(error).__name__}: {error}"))
                    continue
                done = RunFolder(self.out / recipe.run_id).is_done()
                if done and not (self.shared and self.engine.after is not None):  # by another benchmark, meanwhile
                    self.progress(Event(recipe.run_id, recipe.steps, recipe.steps, kind="done"))
                    continue
                out, threads = self.out if self.shared else None, max(1, int(self.engine.cpus))
                answer = self.task.remote(
                    *(recipe, (recipe.run_id, environment.source()), out, self.engine.device, threads),
                    *(self.parcels[source], self.mailbox, self.engine.after),
                )
                self.flights[answer] = recipe, held.pop_all(), writer

    def _wait_for(self, recipe: Recipe, worker: str = "") -> None:
        self.queue.check_later(recipe)
        self.progress(Event(recipe.run_id, kind="elsewhere", worker=worker))

    def listen(self) -> None:
        if not self.flights:
            time.sleep(LISTEN_EVERY)
            return
        ended, _ = self.ray.wait(list(self.flights), timeout=LISTEN_EVERY)
        in_flight = {recipe.run_id for recipe, *_ in self.flights.values()}
        for event in self.mailbox.get_nowait_batch(self.mailbox.size()):
            if event.task in in_flight:  # a process may outlive its node
                self.progress(event)
        for answer in ended:
            recipe, held, writer = self.flights.pop(answer)
            with held:
                self._collect(recipe, answer, writer)

    def _collect(self, recipe: Recipe, answer: Any, writer: Writer) -> None:
        """Store the files of a run that came back, or retry it."""
        try:
            returned = self.ray.get(answer)
        except self.ray.exceptions.RayTaskError as error:  # outside the run itself: its data, its package
            text = f"{type(error.cause).__name__}: {error.cause}"
            returned = Event(recipe.run_id, kind="failed", text=text), {LOG: f"{error}\n".encode()}
        except self.ray.exceptions.RayError as error:
            self._lose(recipe, _first_line(error))
            return
        if returned is None:  # its node does not see the data
            if (parcel := self.parcels[_source(recipe)]) is not None:
                self.parcels[_source(recipe)] = parcel.packed()
            self.queue.waiting.appendleft(recipe)
            return
        end, files = returned
        if end.kind == "elsewhere":
            self._wait_for(recipe, end.worker)
            return
        if end.kind == "stopped" and not self.stopping:  # its node is being shut down
            self._lose(recipe, end.text)
            return
        if end.kind == "stopped" and not self.shared:  # what it saved was on its node
            end = replace(end, text="not finished")
        try:
            self._keep(recipe.run_id, files, writer)
        except ClaimedError:
            self._wait_for(recipe)
            return
        except (RunError, OSError) as error:
            end = replace(end, kind="failed", text=str(error))
        self.progress(end)

    def _lose(self, recipe: Recipe, why: str) -> None:
        self.lose(recipe, f"its worker was lost {self.retries + 1} times; the last time: {why}")

    def _keep(self, run_id: str, files: dict[str, bytes], writer: Writer) -> None:
        """Write the run's files. A run that did not finish leaves those of an earlier attempt, and their checkpoint."""
        folder = RunFolder(self.out / run_id)
        folder.path.mkdir(parents=True, exist_ok=True)
        if DONE not in files:
            kept = (LOG,) if folder.exists() else (LOG, RUN, SESSIONS)
            files = {name: content for name, content in files.items() if name in kept}
        log = folder.path / LOG
        if LOG in files and log.exists():
            files = {**files, LOG: read_bytes(log) + files[LOG]}
        # first the file that names the run, last the one that marks it as complete
        for name in sorted(files, key=lambda name: (name == DONE, name != RUN)):
            writer.write(folder.path / name, files[name])


def _source(recipe: Recipe) -> tuple[str, ...]:
    """Return the data of a run and the entries for reading it."""
    return (recipe.data, *map(str, recipe.reading.values()))


def _run(
    recipe: Recipe,
    sender: tuple[str, str],
    out: Path | None,
    device: str,
    threads: int,
    parcel: Parcel | None,
    mailbox: Any,
    after: AfterRun | None = None,
) -> tuple[Event, dict[str, bytes]] | None:
    """Run a recipe on a node; return its last event, and its files if `out` is None. None: the data is missing.

    `sender` has the id of the run and the digest of the code on the driver.
    """
    import torch

    ray = _import_ray()
    run_id = recipe.run_id
    if (run_id, environment.source()) != sender:
        raise RuntimeError(
            f"node {ray.util.get_node_ip_address()} has mecam {__version__}, source "
            f"{environment.source()}; {sender[0]} was sent by source {sender[1]}. Install the same mecam on all nodes"
        )
    data = None if parcel is None else parcel.open()
    if parcel is not None and data is None:
        return None
    torch.set_num_threads(threads)
    end = Event(run_id, kind="failed")

    def report(event: Event) -> None:
        nonlocal end
        if event.kind in (*ENDED, "elsewhere"):
            end = event
        else:
            with contextlib.suppress(ray.exceptions.RayError):
                mailbox.put(event)

    worker = f"{ray.util.get_node_ip_address()} {ray.get_runtime_context().get_node_id()[:6]}"
    files: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory(prefix="mecam-") as scratch:
        work(recipe, out or Path(scratch), device, report, worker, data=data, after=after)
        if out is None:  # return all but the claim and the checkpoint
            written = (file for file in (Path(scratch) / run_id).iterdir() if file.is_file())
            files = {f.name: f.read_bytes() for f in written if not f.name.lstrip(".").startswith(CLAIM)}
    return end, files


def _mailbox() -> Any:
    """Start a queue beside the driver that keeps the events of runs until the driver takes them."""
    from ray.util.queue import Queue

    at_head = {"node:__internal_head__": 1e-3}
    return Queue(actor_options={"num_cpus": 0, "resources": at_head, "max_restarts": -1, "max_task_retries": -1})


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[bool]:
    """Connect to Ray for one benchmark; yield whether it runs on this machine alone.

    An existing connection is used and kept.
    """
    ray = _import_ray()
    if ray.is_initialized():
        yield False
        return
    main = threading.current_thread() is threading.main_thread()
    former = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"include_dashboard": False, "object_store_memory": LOCAL_OBJECTS}
    try:
        try:
            _require_listener(address or "")
            ray.init(address=address or "local", **options)
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            where = "could not be started here" if address is None else f"does not answer at {address}"
            token = "" if address is None else ". If it wants a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            raise RunError(f"Ray {where} ({_first_line(error)}); `ray status` shows running clusters{token}") from error
        yield address is None
    finally:
        ray.shutdown()
        if main:
            signal.signal(signal.SIGTERM, former)  # Ray replaces it and does not restore it


def _require_listener(address: str) -> None:
    """Raise an error at once if nothing listens at host:port; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")  # a lost node would fill the terminal with its log
    try:
        import ray
    except Exception as error:  # not there, or broken
        raise ImportError(f"Ray cannot be used ({error}): pip install 'mecam[ray]'") from error
    return ray


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
