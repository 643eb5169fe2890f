"""The engine on this machine: a few processes, each of which runs one recipe after another."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from mecam.benchmark.jobs import Event, Watch
from mecam.recipe import Recipe

ELSEWHERE_EVERY = 2.0  # seconds between two looks at a run that another benchmark has claimed


@dataclass
class _Worker:
    """A process and what it is doing."""

    name: str
    device: str
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
    """

    def __init__(self, *, workers: int | None = None, device: str = "auto", retries: int = 1) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers} is not allowed; at least 1 process is needed")
        self.devices = _devices(device)
        self.count = workers or (max(1, (os.cpu_count() or 1) // 2) if self.devices == ["cpu"] else len(self.devices))
        self.retries = retries
        self._workers: list[_Worker] = []

    def run(self, recipes: Sequence[Recipe], out: Path, watch: Watch) -> None:
        queue, tries = deque(recipes), dict.fromkeys((recipe.run_id for recipe in recipes), 0)
        elsewhere: deque[tuple[float, Recipe]] = deque()
        stopping = False

        def stop(number: int, _frame: FrameType | None) -> None:
            nonlocal stopping
            stopping = True
            for worker in self._workers:
                if worker.recipe is not None and number == signal.SIGTERM:  # a terminal sends Ctrl-C to all itself
                    worker.process.terminate()

        former = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._workers = [self._start(number, out) for number in range(min(self.count, len(recipes)))]
            while (not stopping and (queue or elsewhere)) or any(w.recipe is not None for w in self._workers):
                while elsewhere and elsewhere[0][0] < time.monotonic():
                    queue.append(elsewhere.popleft()[1])
                for worker in self._workers:
                    if worker.recipe is None and queue and not stopping:
                        worker.recipe = queue.popleft()
                        worker.pipe.send(worker.recipe.to_dict())
                busy = [worker for worker in self._workers if worker.recipe is not None]
                for ready in wait([worker.pipe for worker in busy], timeout=0.5):
                    worker = next(w for w in busy if w.pipe is ready)
                    recipe = worker.recipe
                    assert recipe is not None
                    event = self._receive(worker, recipe)
                    if event.kind == "failed" and not worker.process.is_alive():
                        self._workers[self._workers.index(worker)] = self._start(self._workers.index(worker), out)
                        tries[recipe.run_id] += 1
                        if tries[recipe.run_id] <= self.retries and not stopping:
                            queue.append(recipe)
                            continue
                    if event.kind in ("done", "failed", "stopped", "elsewhere"):
                        worker.recipe = None
                    if event.kind == "elsewhere":
                        elsewhere.append((time.monotonic() + ELSEWHERE_EVERY, recipe))
                    watch(event)
            for recipe in (*queue, *(recipe for _, recipe in elsewhere)):
                watch(Event(recipe.run_id, "stopped", message="not begun"))
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
            self._end()

    def _receive(self, worker: _Worker, recipe: Recipe) -> Event:
        try:
            event: Event = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join(timeout=5)
            code = worker.process.exitcode
            how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
            return Event(recipe.run_id, "failed", message=f"its process died ({how})", worker=worker.name)
        return event

    def _start(self, number: int, out: Path) -> _Worker:
        context = multiprocessing.get_context("spawn")  # a fork of a process that has used CUDA or threads may hang
        ours, theirs = context.Pipe()
        device, name = self.devices[number % len(self.devices)], f"worker {number}"
        threads = int(os.environ.get("OMP_NUM_THREADS", 0)) or max(1, (os.cpu_count() or 1) // self.count)
        process = context.Process(target=_serve, args=(theirs, out, device, threads, name), name=name, daemon=True)
        process.start()
        theirs.close()
        return _Worker(name, device, process, ours)

    def _end(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.pipe.send(None)
        for worker in self._workers:
            worker.process.join(timeout=10)
            if worker.process.is_alive():
                worker.process.kill()
        self._workers = []


def _serve(pipe: Connection, out: Path, device: str, threads: int, name: str) -> None:
    """A worker process: recipes in, events out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a run listens to it; between runs there is nothing to save
    # threads that spin while they wait bring a machine with more threads than cores, another benchmark's say, to a halt
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    from mecam.benchmark.worker import work

    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, BrokenPipeError):  # the benchmark itself was killed
        for values in iter(pipe.recv, None):
            work(Recipe(**values), out, device, pipe.send, name)


def _devices(device: str) -> list[str]:
    if device not in ("auto", "cuda"):
        return [device]
    import torch

    found = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if device == "cuda" and not found:
        raise ValueError("device=cuda, but torch sees no CUDA device here; give --device cpu")
    return found or ["cpu"]
