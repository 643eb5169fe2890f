"""The engine on a Ray cluster: a task a run, tried again where its worker or node is lost.

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
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mecam import __version__
from mecam.benchmark._parcel import Parcel
from mecam.benchmark.jobs import ELSEWHERE_EVERY, ENDED, Event, Watch
from mecam.benchmark.worker import LOG, work
from mecam.data.domains import DataError
from mecam.data.pack import OnError
from mecam.recipe import Recipe
from mecam.runs import ClaimedError, RunError, RunFolder, claim, write_atomic
from mecam.runs.claim import NAME as CLAIM
from mecam.training.interrupt import StopSignals

RUN, SESSIONS, DONE = "run.json", "sessions.jsonl", "done.json"
LISTEN_EVERY = 0.25  # seconds between two looks at the mailbox
GRACE = 30.0  # seconds in which cancelled runs may save themselves
MOST_IN_FLIGHT = 500  # each holds an open file, of which a process has 1024
LOCAL_OBJECTS = 128 << 20  # bytes of Ray's object store on this machine alone, where files do not go through it


class RayEngine:
    """Runs recipes as tasks of a Ray cluster whose nodes have mecam installed.

    Args:
        address: of a cluster ("auto", "10.0.0.1:6379", "ray://..."). None: Ray is started on this machine, for the
            benchmark.
        cpus, gpus: what a run reserves; gpus=0.5 puts two runs on one GPU.
        device: auto is cuda where a run reserves some of a GPU, else cpu.
        retries: how often a recipe is tried again whose worker or node was lost. An error that the recipe raised
            itself is not tried again.
        shared: every node sees the output folder under its path: runs write into it and go on from their checkpoints.
            Without it, a run that was lost or stopped starts over. Ray on this machine alone always shares it.
        on_error: refuse a data set with images that cannot be read, or skip these.

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
        on_error: OnError = "refuse",
    ) -> None:
        if min(cpus, gpus) < 0 or cpus + gpus <= 0:
            raise ValueError(f"cpus={cpus} and gpus={gpus} are not allowed; a run needs some of a CPU or a GPU")
        if device.startswith("cuda") and not gpus:
            raise ValueError(f"device={device}, but gpus=0: Ray would give a run no GPU; give gpus=1, or 0.5 to share")
        _import_ray()
        self.address, self.cpus, self.gpus, self.retries, self.shared = address, cpus, gpus, retries, shared
        self.on_error = on_error
        self.device = device if device != "auto" else "cuda" if gpus else "cpu"

    def run(self, recipes: Sequence[Recipe], out: Path, watch: Watch) -> None:
        with _connected(self.address) as alone:
            self._check_room(alone)
            with StopSignals() as signals:
                _Benchmark(self, out, watch, self.shared or alone).run(recipes, signals)

    def slots(self) -> int:
        """Runs that the cluster has room for at a time."""
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
            raise ValueError(f"{message}; give less to a run")
        warnings.warn(f"{message}. Runs wait until such a node joins the cluster", stacklevel=3)


@dataclass(frozen=True)
class _Flight:
    """A run on the cluster, and the claim that is held for it here."""

    recipe: Recipe
    claim: ExitStack


class _Benchmark:
    """The driver's side of one benchmark: what waits, what is in flight, what comes back."""

    def __init__(self, engine: RayEngine, out: Path, watch: Watch, shared: bool) -> None:
        self.ray = _import_ray()
        self.engine, self.out, self.watch, self.shared = engine, out.absolute(), watch, shared
        self.waiting: deque[Recipe] = deque()
        self.elsewhere: deque[tuple[float, Recipe]] = deque()
        self.flights: dict[Any, _Flight] = {}  # by the Ray object that will hold the answer
        self.lost: Counter[str] = Counter()
        self.parcels: dict[str, Parcel | None] = {}
        self.stopping = False
        self.mailbox = _mailbox()
        # losses are counted here, where the claim is held: Ray itself tries nothing again
        reserved = {"num_cpus": engine.cpus, "num_gpus": engine.gpus, "max_retries": 0}
        self.task = self.ray.remote(_run).options(name="mecam run", **reserved)

    def run(self, recipes: Sequence[Recipe], signals: StopSignals) -> None:
        self.waiting.extend(recipes)
        stop_by = float("inf")
        try:
            while self.flights or ((self.waiting or self.elsewhere) and not self.stopping):
                if signals.received and not self.stopping:
                    self.stopping, stop_by = True, time.monotonic() + GRACE
                    for answer in self.flights:
                        self.ray.cancel(answer)  # reaches a run as Ctrl-C does: it saves itself
                if time.monotonic() > stop_by:
                    break
                if not self.stopping:
                    self._start()
                self._listen()
            unfinished = [flight.recipe for flight in self.flights.values()]
            for recipe in (*unfinished, *self.waiting, *(recipe for _, recipe in self.elsewhere)):
                self.watch(Event(recipe.run_id, "stopped", message="not finished"))
        finally:
            for answer, flight in self.flights.items():
                with contextlib.suppress(Exception):  # the cluster may be gone
                    self.ray.cancel(answer, force=True)
                flight.claim.close()
            with contextlib.suppress(Exception):
                self.ray.kill(self.mailbox)

    def _start(self) -> None:
        """Hand runs to the cluster: as many as it has room for, and as many again for it to choose from."""
        while self.elsewhere and self.elsewhere[0][0] < time.monotonic():
            self.waiting.append(self.elsewhere.popleft()[1])
        room = min(2 * self.engine.slots() + 2, MOST_IN_FLIGHT) if self.waiting else 0
        while self.waiting and len(self.flights) < room:
            recipe = self.waiting.popleft()
            with ExitStack() as held:
                try:
                    if not self.shared:  # there, the process that runs it claims it
                        held.enter_context(claim(self.out / recipe.run_id))
                    if recipe.data not in self.parcels:
                        self.parcels[recipe.data] = Parcel.of(recipe.data, on_error=self.engine.on_error)
                except ClaimedError:
                    self._wait_for(recipe)
                    continue
                except (DataError, OSError) as error:
                    self.watch(Event(recipe.run_id, "failed", message=f"{type(error).__name__}: {error}"))
                    continue
                if RunFolder(self.out / recipe.run_id).is_done():  # by another benchmark, meanwhile
                    self.watch(Event(recipe.run_id, "done", recipe.steps, recipe.steps))
                    continue
                answer = self.task.remote(
                    recipe,
                    recipe.run_id,
                    self.out if self.shared else None,
                    self.engine.device,
                    max(1, int(self.engine.cpus)),
                    self.parcels[recipe.data],
                    self.mailbox,
                )
                self.flights[answer] = _Flight(recipe, held.pop_all())

    def _wait_for(self, recipe: Recipe, worker: str = "") -> None:
        self.elsewhere.append((time.monotonic() + ELSEWHERE_EVERY, recipe))
        self.watch(Event(recipe.run_id, "elsewhere", worker=worker))

    def _listen(self) -> None:
        """Pass on what runs tell, and what has ended."""
        if not self.flights:
            time.sleep(LISTEN_EVERY)
            return
        ended, _ = self.ray.wait(list(self.flights), timeout=LISTEN_EVERY)
        in_flight = {flight.recipe.run_id for flight in self.flights.values()}
        for told in self.ray.get(self.mailbox.empty.remote()):
            event = Event(**told)
            if event.run_id in in_flight:  # not of a process that outlived its node
                self.watch(event)
        for answer in ended:
            flight = self.flights.pop(answer)
            with flight.claim:
                self._land(flight.recipe, answer)

    def _land(self, recipe: Recipe, answer: Any) -> None:
        """Keep what came back of a run, or try it again."""
        errors = self.ray.exceptions
        try:
            found = self.ray.get(answer)
        except errors.RayTaskError as error:  # outside the run itself: its data, its package
            text = f"{type(error.cause).__name__}: {error.cause}"
            end, files = Event(recipe.run_id, "failed", message=text), {LOG: f"{error}\n".encode()}
        except errors.RayError as error:
            self._lose(recipe, _first_line(error))
            return
        else:
            if found is None:  # its node does not see the data
                parcel = self.parcels[recipe.data]
                self.parcels[recipe.data] = None if parcel is None else parcel.packed()
                self.waiting.appendleft(recipe)
                return
            end, files = found
        if end.kind == "elsewhere":
            self._wait_for(recipe, end.worker)
            return
        if end.kind == "stopped" and not self.stopping:  # its node is being shut down
            self._lose(recipe, end.message)
            return
        if end.kind == "stopped" and not self.shared:  # what it saved was on its node
            end = replace(end, message="not finished")
        try:
            self._keep(recipe.run_id, files)
        except (RunError, OSError) as error:
            end = replace(end, kind="failed", message=str(error))
        self.watch(end)

    def _lose(self, recipe: Recipe, why: str) -> None:
        self.lost[recipe.run_id] += 1
        if self.stopping:
            self.watch(Event(recipe.run_id, "stopped", message="not finished"))
        elif self.lost[recipe.run_id] > self.engine.retries:
            message = f"its worker was lost {self.lost[recipe.run_id]} times; the last time: {why}"
            self.watch(Event(recipe.run_id, "failed", message=message))
        else:
            self.waiting.append(recipe)

    def _keep(self, run_id: str, files: dict[str, bytes]) -> None:
        """Write the run's files here. One that did not end leaves those of an earlier attempt, and their checkpoint."""
        folder = RunFolder(self.out / run_id)
        folder.path.mkdir(parents=True, exist_ok=True)
        if DONE not in files:
            kept = (LOG,) if folder.exists() else (LOG, RUN, SESSIONS)
            files = {name: content for name, content in files.items() if name in kept}
        log = folder.path / LOG
        if LOG in files and log.exists():
            files = {**files, LOG: log.read_bytes() + files[LOG]}
        # first what names the run, last what says that the others are there
        for name in sorted(files, key=lambda name: (name == DONE, name != RUN)):
            write_atomic(folder.path / name, files[name])


def _run(
    recipe: Recipe, run_id: str, out: Path | None, device: str, threads: int, parcel: Parcel | None, mailbox: Any
) -> tuple[Event, dict[str, bytes]] | None:
    """A task, on some node: how the run ended, and its files if it was not written to `out`; None: data is wanted."""
    import torch

    ray = _import_ray()
    if recipe.run_id != run_id:
        raise RuntimeError(
            f"this recipe is {recipe.run_id} on the node {ray.util.get_node_ip_address()}: the mecam there is another "
            f"than the one that sent it. Install the same on all nodes; that one is {__version__}"
        )
    data = None if parcel is None else parcel.open()
    if parcel is not None and data is None:
        return None
    torch.set_num_threads(threads)
    end = Event(run_id, "failed")

    def tell(event: Event) -> None:
        nonlocal end
        if event.kind in (*ENDED, "elsewhere"):
            end = event
        else:
            mailbox.put.remote(asdict(event))

    worker = f"{ray.util.get_node_ip_address()} {ray.get_runtime_context().get_node_id()[:6]}"
    files: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory(prefix="mecam-") as scratch:
        work(recipe, out or Path(scratch), device, tell, worker, data=data)
        if out is None:
            files = _files(Path(scratch) / run_id)
    with contextlib.suppress(ray.exceptions.RayError):
        ray.get(mailbox.put.remote(None))  # calls arrive in order: what was told is there before the end is
    return end, files


def _files(folder: Path) -> dict[str, bytes]:
    """All that a run has written, but its claim and its checkpoint."""
    written = (file for file in folder.iterdir() if file.is_file() and not file.name.lstrip(".").startswith(CLAIM))
    return {file.name: file.read_bytes() for file in written}


def _mailbox() -> Any:
    """An actor beside the driver that keeps what runs tell until the driver asks."""
    ray = _import_ray()

    class Mailbox:  # in here, it is sent by value: its process need not import torch
        def __init__(self) -> None:
            self.told: list[dict[str, Any]] = []

        def put(self, told: dict[str, Any] | None) -> None:
            if told is not None:
                self.told.append(told)

        def empty(self) -> list[dict[str, Any]]:
            told, self.told = self.told, []
            return told

    at_head = {"node:__internal_head__": 1e-3}
    return ray.remote(Mailbox).options(num_cpus=0, resources=at_head, max_restarts=-1, max_task_retries=-1).remote()


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[bool]:
    """Ray for the length of a benchmark, as quiet as it can be; whether it runs on this machine alone.

    A connection that the program has already is used, and left.
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
            _knock(address or "")
            ray.init(address=address or "local", **options)
        except (OSError, ValueError) as error:
            where = "could not be started here" if address is None else f"does not answer at {address}"
            raise RuntimeError(f"Ray {where} ({_first_line(error)}); `ray status` shows running clusters") from error
        yield address is None
    finally:
        ray.shutdown()
        if main:
            signal.signal(signal.SIGTERM, former)  # Ray takes it and does not give it back


def _knock(address: str) -> None:
    """An error at once if nothing listens at host:port; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")  # a lost node would fill the terminal with its last words
    try:
        import ray
    except Exception as error:  # not there, or broken
        raise ImportError(f"Ray cannot be used ({error}): pip install 'mecam[ray]'") from error
    return ray


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
