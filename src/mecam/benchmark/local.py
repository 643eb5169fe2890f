"""The engine on this machine: a few processes, each of which runs one recipe after another."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from mecam.benchmark.jobs import ELSEWHERE_EVERY, ENDED, Event, Watch
from mecam.recipe import Recipe

if TYPE_CHECKING:
    from mecam.data.pack import OnError

LISTEN_EVERY = 0.5  # seconds to wait for an event before looking around


@dataclass
class _Worker:
    """A process and what it is doing."""

    name: str
    process: BaseProcess
    pipe: Connection
    recipe: Recipe | None = None


class LocalEngine:
    """Runs recipes in processes of this machine.

    Args:
        workers: processes; on CPUs the cores are shared among them, on GPUs they take turns over the devices, several
            on one where memory allows. None: one for two cores, or one a GPU.
        device: auto, cpu, cuda (all of them), cuda:1, ...
        retries: how often a recipe is tried again whose process died (out of memory, killed); it goes on from its
            checkpoint. An error that the recipe raised itself is not tried again.
        on_error: refuse a data set with images that cannot be read, or skip these.
    """

    def __init__(
        self, *, workers: int | None = None, device: str = "auto", retries: int = 1, on_error: OnError = "refuse"
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers} is not allowed; at least 1 process is needed")
        self.devices = _devices(device)
        self.count = workers or (max(1, (os.cpu_count() or 1) // 2) if self.devices == ["cpu"] else len(self.devices))
        self.retries, self.on_error = retries, on_error

    def run(self, recipes: Sequence[Recipe], out: Path, watch: Watch) -> None:
        _Benchmark(self, out, watch).run(recipes)


class _Benchmark:
    """One benchmark: what waits, what its processes do, what came of it."""

    def __init__(self, engine: LocalEngine, out: Path, watch: Watch) -> None:
        self.engine, self.out, self.watch = engine, out, watch
        self.waiting: deque[Recipe] = deque()
        self.elsewhere: deque[tuple[float, Recipe]] = deque()
        self.died: Counter[str] = Counter()
        self.workers: list[_Worker] = []
        self.stopping = False

    def run(self, recipes: Sequence[Recipe]) -> None:
        from mecam.training.interrupt import StopSignals  # brings torch, which a worker imports when it is ready for it

        self.waiting.extend(recipes)
        try:
            with StopSignals() as signals:
                for number in range(min(self.engine.count, len(recipes))):
                    self.workers.append(self._start(number))
                while self._busy() or ((self.waiting or self.elsewhere) and not self.stopping):
                    if signals.received and not self.stopping:
                        self.stopping = True
                        for worker in self._busy():
                            worker.process.terminate()  # its run saves itself
                    if not self.stopping:
                        self._hand_out()
                    self._listen()
            for recipe in (*self.waiting, *(recipe for _, recipe in self.elsewhere)):
                self.watch(Event(recipe.run_id, "stopped", message="not begun"))
        finally:
            self._end()

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self.workers if worker.recipe is not None]

    def _hand_out(self) -> None:
        while self.elsewhere and self.elsewhere[0][0] < time.monotonic():
            self.waiting.append(self.elsewhere.popleft()[1])
        for number, worker in enumerate(self.workers):
            if worker.recipe is None and self.waiting:
                if not worker.process.is_alive():
                    worker = self.workers[number] = self._start(number)
                worker.recipe = self.waiting.popleft()
                with contextlib.suppress(OSError):  # it died just now, which its pipe will tell
                    worker.pipe.send(worker.recipe.to_dict())

    def _listen(self) -> None:
        busy = self._busy()
        for ready in wait([worker.pipe for worker in busy], timeout=LISTEN_EVERY):
            worker = next(worker for worker in busy if worker.pipe is ready)
            recipe = worker.recipe
            assert recipe is not None
            try:
                event: Event = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                worker.recipe = None
                self._bury(worker, recipe)
                continue
            if event.kind in (*ENDED, "elsewhere"):
                worker.recipe = None
            if event.kind == "elsewhere":
                self.elsewhere.append((time.monotonic() + ELSEWHERE_EVERY, recipe))
            self.watch(event)

    def _bury(self, worker: _Worker, recipe: Recipe) -> None:
        """Try a run again whose process died; another takes its place when there is something to do."""
        worker.process.join(timeout=5)
        if worker.process.is_alive():  # its pipe is closed, so it is of no use any more
            worker.process.kill()
            worker.process.join()
        code = worker.process.exitcode
        self.died[recipe.run_id] += 1
        if self.stopping:
            self.watch(Event(recipe.run_id, "stopped", message="not finished", worker=worker.name))
        elif self.died[recipe.run_id] <= self.engine.retries:
            self.waiting.append(recipe)
        else:
            how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
            self.watch(Event(recipe.run_id, "failed", message=f"its process died ({how})", worker=worker.name))

    def _start(self, number: int) -> _Worker:
        context = multiprocessing.get_context("spawn")  # a fork of a process that has used CUDA or threads may hang
        ours, theirs = context.Pipe()
        device, name = self.engine.devices[number % len(self.engine.devices)], f"worker {number}"
        threads = int(os.environ.get("OMP_NUM_THREADS", 0)) or max(1, (os.cpu_count() or 1) // self.engine.count)
        words = (theirs, self.out, device, threads, name, self.engine.on_error)
        process = context.Process(target=_serve, args=words, name=name, daemon=True)
        with _deaf_to_ctrl_c():  # which is for the benchmark, and its to pass on: a child inherits the deafness
            process.start()
        theirs.close()
        return _Worker(name, process, ours)

    def _end(self) -> None:
        for worker in self.workers:
            with contextlib.suppress(OSError):
                worker.pipe.send(None)
            if worker.recipe is not None:  # the benchmark ends by an error, or by a second Ctrl-C
                worker.process.terminate()
        for worker in self.workers:
            worker.process.join(timeout=10)
            if worker.process.is_alive():
                worker.process.kill()


def _serve(pipe: Connection, out: Path, device: str, threads: int, name: str, on_error: OnError) -> None:
    """A worker process: recipes in, events out."""
    os.setpgid(0, 0)  # out of the terminal's reach, whose Ctrl-C a run would hear
    # threads that spin while they wait bring a machine with more threads than cores, another benchmark's say, to a halt
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    from mecam.benchmark.worker import work

    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, BrokenPipeError):  # the benchmark itself was killed
        for values in iter(pipe.recv, None):
            work(Recipe(**values), out, device, pipe.send, name, on_error=on_error)


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield
        return
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def _devices(device: str) -> list[str]:
    if device not in ("auto", "cuda"):
        return [device]
    import torch

    found = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if device == "cuda" and not found:
        raise ValueError("device=cuda, but torch sees no CUDA device here; give --device cpu")
    return found or ["cpu"]
