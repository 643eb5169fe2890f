"""Real processes for tests of distributed training: a few ranks of one gloo group that run many small cases."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mecam.optim import (
    ASAM,
    CRSAM,
    DGSAM,
    DISAM,
    ESAM,
    FAD,
    FSAM,
    GAM,
    GSAM,
    MSAM,
    SAGM,
    SAM,
    WSAM,
    LookSAM,
    MeCAM,
    StableSAM,
    VaSSO,
)

# every method, at radii that bend its update far more than rounding does
METHODS = {
    "mecam": partial(MeCAM, rho=0.4, alpha=0.4, beta=0.3),
    "sam": partial(SAM, rho=0.4),
    "asam": partial(ASAM, rho=0.6),
    "gsam": partial(GSAM, rho=0.4),
    "gam": partial(GAM, rho=0.3, rho_norm=0.4, gamma=0.5),
    "sagm": partial(SAGM, rho=0.4, alpha=0.1),
    "fad": partial(FAD, rho=0.4),
    "crsam": partial(CRSAM, rho=0.4, gamma=0.5, beta=0.3),
    "fsam": partial(FSAM, rho=0.4, lam=0.6),
    "esam": partial(ESAM, rho=0.4, beta=0.5),
    "looksam": partial(LookSAM, rho=0.4, k=2),
    "msam": partial(MSAM, rho=0.4, mu=0.8),
    "vasso": partial(VaSSO, rho=0.4, theta=0.4),
    "stablesam": partial(StableSAM, rho=0.4),
    "disam": partial(DISAM, rho=0.4, lam=0.8),
    "dgsam": partial(DGSAM, rho=0.4),
    "wsam": partial(WSAM, rho=0.4, gamma=0.7),
    "mecam, every 2": partial(MeCAM, rho=0.4, alpha=0.4, beta=0.3, every=2),
    "wsam coupled": partial(WSAM, rho=0.4, gamma=0.7, decouple=False),
}
# imported once, by the server that all processes of a test session are forked from: that takes longer than the tests
PRELOADED = [
    f"torch.{name}" for name in ("_dynamo", "distributed.checkpoint", "distributed.fsdp", "distributed.tensor")
]
needs_fsdp2 = pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason="FSDP2 on a CPU needs torch 2.7")
COLLECTIVE_SECONDS = 60.0  # a collective that one rank never joins fails after this

Case = Callable[[], Any]


class Ranks:
    """What every rank returned, case by case: `ranks["sam"]` is a list with one entry a rank.

    Cases run one after the other; the first that raises or hangs stops all ranks, and asking for it, or for one of
    those that never ran after it, fails with its traceback.
    """

    def __init__(self, returned: dict[str, list[Any]], failed: str | None, why: str) -> None:
        self.returned = returned
        self.failed = failed
        self.why = why

    def __getitem__(self, case: str) -> list[Any]:
        if case in self.returned:
            return self.returned[case]
        if case == self.failed:
            raise AssertionError(f"case {case!r} failed in a child process\n{self.why}")
        raise AssertionError(f"case {case!r} did not run, since case {self.failed!r} failed before it\n{self.why}")


def run(cases: Mapping[str, Case], folder: Path, *, processes: int = 2, seconds: float = 200.0) -> Ranks:
    """Run the cases, picklable functions, in new processes; with one process there is no process group.

    `folder` is for the exchange of results and the rendezvous. Ranks that are not through after `seconds` are killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ranks = [
        context.Process(target=_rank, args=(rank, processes, dict(cases), folder), daemon=True)
        for rank in range(processes)
    ]
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        for process in ranks:
            process.start()
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads
    deadline = time.monotonic() + seconds
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
    late = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    for process in ranks:
        if process.is_alive():
            process.kill()
            process.join()
    return _collect(list(cases), folder, processes, late, seconds)


def one_thread() -> Iterator[None]:
    """A fixture: operators on tiny tensors are many times slower with several threads where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _collect(names: list[str], folder: Path, processes: int, late: list[int], seconds: float) -> Ranks:
    returned: dict[str, list[Any]] = {}
    for number, name in enumerate(names):
        files = [_result(folder, rank, number) for rank in range(processes)]
        if not all(file.exists() for file in files):
            errors = [(rank, _error(folder, rank)) for rank in range(processes)]
            lines = [f"rank {rank} was killed after {seconds:g} s" for rank in late]
            lines += [f"rank {rank}:\n{file.read_text()}" for rank, file in errors if file.exists()]
            return Ranks(returned, name, "\n".join(lines) or "a process died without a word")
        returned[name] = [torch.load(file, weights_only=False) for file in files]
    return Ranks(returned, None, "")


def _rank(rank: int, processes: int, cases: dict[str, Case], folder: Path) -> None:
    torch.set_num_threads(1)
    try:
        if processes > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder.absolute()}/rendezvous",
                rank=rank,
                world_size=processes,
                timeout=timedelta(seconds=COLLECTIVE_SECONDS),
            )
        for number, (name, case) in enumerate(cases.items()):
            try:
                torch.manual_seed(0)
                returned = case()
                _save(returned, _result(folder, rank, number))
                if processes > 1:
                    dist.barrier()  # a rank that is through with the last case must not leave while others need it
            except BaseException as error:
                raise RuntimeError(f"in case {name!r}") from error
    except BaseException:
        _error(folder, rank).write_text(traceback.format_exc())
        # closes the connections at once, so that the other ranks' collectives fail now and not after a minute
        os._exit(1)


def _save(value: Any, file: Path) -> None:
    unfinished = file.with_suffix(".unfinished")
    torch.save(value, unfinished)
    unfinished.rename(file)


def _result(folder: Path, rank: int, number: int) -> Path:
    return folder / f"case{number}.rank{rank}.pt"


def _error(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.error"
