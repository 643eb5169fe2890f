"""Run recipes on this machine, in processes that take one recipe after another."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from mecam._garbage import collect_rarely
from mecam.benchmark.jobs import AfterRun, Driver
from mecam.progress import ENDED, Event, Progress
from mecam.recipe import Recipe

if TYPE_CHECKING:
    from mecam.benchmark.estimate import Budget

LISTEN_EVERY = 0.5  # seconds to wait for an event before looking around


@dataclass
class _Worker:
    """A process and the recipe that it runs."""

    name: str
    process: BaseProcess
    pipe: Connection
    recipe: Recipe | None = None


class LocalEngine:
    """Run recipes in processes of this machine.

    Args:
        workers: number of processes. On CPUs they share the cores, on GPUs they are spread over the devices. None: one
            per two cores, or one per GPU.
        device: auto, cpu, cuda (all of them), cuda:1, ...
        retries: how often a recipe is retried whose process died (out of memory, killed); it resumes from its
            checkpoint. An error that the recipe raised itself is not retried.
        after: called in the worker with each finished run: see `mecam.benchmark.jobs.AfterRun`.
        budget: start no run that does not fit, and stop those that are left when it is over; they save themselves.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        device: str = "auto",
        retries: int = 1,
        after: AfterRun | None = None,
        budget: Budget | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers} is not allowed; at least 1 process is needed")
        self.devices = _devices(device)
        self.count = workers or (max(1, (os.cpu_count() or 1) // 2) if self.devices == ["cpu"] else len(self.devices))
        self.retries, self.after, self.budget = retries, after, budget

    def run(self, recipes: Sequence[Recipe], out: Path, progress: Progress) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):  # a worker that imports the main file
            raise RuntimeError(
                "the processes of mecam.bench import this file, and would start a benchmark each; put the call of "
                'mecam.bench below if __name__ == "__main__":'
            )
        benchmark = _Benchmark(self, recipes, out, progress)
        try:
            benchmark.drive()
            for recipe in benchmark.queue.rest():
                progress(Event(recipe.run_id, kind="stopped", text="not begun"))
        finally:
            benchmark.end()


class _Benchmark(Driver):
    def __init__(self, engine: LocalEngine, recipes: Sequence[Recipe], out: Path, progress: Progress) -> None:
        super().__init__(recipes, progress, budget=engine.budget, retries=engine.retries)
        self.engine, self.out = engine, out
        self.workers: dict[int, _Worker] = {}

    def busy(self) -> list[_Worker]:
        return [worker for worker in self.workers.values() if worker.recipe is not None]

    def is_busy(self) -> bool:
        return bool(self.busy())

    def hand_out(self) -> None:
        for number in range(self.engine.count):
            worker = self.workers.get(number)
            if worker is not None and worker.recipe is not None:
                continue
            if (recipe := self.queue.take()) is None:
                break
            if worker is None or not worker.process.is_alive():
                worker = self.workers[number] = self._start(number)
            worker.recipe = recipe
            with contextlib.suppress(OSError):  # it died just now, which its pipe will show
                worker.pipe.send((recipe.to_dict(), self.engine.after))

    def stop(self) -> None:
        for worker in self.busy():
            worker.process.terminate()  # its run saves itself

    def listen(self) -> None:
        busy = self.busy()
        for ready in wait([worker.pipe for worker in busy], timeout=LISTEN_EVERY):
            worker = next(worker for worker in busy if worker.pipe is ready)
            recipe = worker.recipe
            assert recipe is not None
            try:
                event: Event = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                worker.recipe = None
                self.lose(recipe, f"its process died ({_join(worker.process)})", worker.name)
                continue
            if event.kind in (*ENDED, "elsewhere"):
                worker.recipe = None
            if event.kind == "elsewhere":
                self.queue.check_later(recipe)
            self.progress(event)

    def _start(self, number: int) -> _Worker:
        context = multiprocessing.get_context("spawn")  # a fork of a process that has used CUDA or threads may hang
        ours, theirs = context.Pipe()
        device, name = self.engine.devices[number % len(self.engine.devices)], f"worker {number}"
        threads = int(os.environ.get("OMP_NUM_THREADS", 0)) or max(1, (os.cpu_count() or 1) // self.engine.count)
        args = (theirs, self.out, device, threads, name)
        process = context.Process(target=_serve, args=args, name=name, daemon=True)
        with _ignoring_ctrl_c():  # inherited by the process: the benchmark passes Ctrl-C on
            process.start()
        theirs.close()
        return _Worker(name, process, ours)

    def end(self) -> None:
        for worker in self.workers.values():
            with contextlib.suppress(OSError):
                worker.pipe.send(None)
            if worker.recipe is not None:  # the benchmark ends by an error, or by a second Ctrl-C
                worker.process.terminate()
        for worker in self.workers.values():
            worker.process.join(timeout=10)
            if worker.process.is_alive():
                worker.process.kill()


def _join(process: BaseProcess) -> str:
    """Wait for a process whose pipe is closed; return how it ended."""
    process.join(timeout=5)
    if process.is_alive():  # it cannot be used any more
        process.kill()
        process.join()
    code = process.exitcode
    return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"


def _serve(pipe: Connection, out: Path, device: str, threads: int, name: str) -> None:
    """Receive recipes, run them, send events: the main function of a worker process."""
    os.setpgid(0, 0)  # the terminal's Ctrl-C would reach the run
    # threads that spin while they wait stall a machine with more threads than cores
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    collect_rarely()
    import torch

    from mecam.benchmark.worker import work

    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, BrokenPipeError):  # the benchmark itself was killed
        for values, after in iter(pipe.recv, None):
            work(Recipe.from_dict(values), out, device, pipe.send, name, after=after)


@contextlib.contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
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

    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if device == "cuda" and not gpus:
        raise ValueError("device=cuda, but torch sees no CUDA device here; give --device cpu")
    return gpus or ["cpu"]
