"""Run as a script: eight processes at once on one folder of runs, or on one store, while some of them are killed.

Every process is a fork of this one, so that torch is imported once. Locks of the system do nothing here: `flock` says
yes to everybody. Prints a JSON object of what was counted.
"""

import fcntl
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mecam.data import _writing
from mecam.data.pack import pack
from mecam.data.shapes import shapes
from mecam.recipe import Recipe
from mecam.runs import ClaimedError
from mecam.training import loop

PROCESSES = 8
TINY = {"steps": 6, "evaluate_every": 2, "batch": 2, "image_size": 8}


class Log:
    """Who was at work on what, from when to when, in the order of the file system's appends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, *words: object) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, (" ".join(map(str, (*words, os.getpid()))) + "\n").encode())
        os.close(descriptor)

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def working(self) -> list[int]:
        """Processes that began something and have not ended it."""
        begun: dict[str, int] = {}
        for what, name, pid in self.lines():
            if what == "begin":
                begun[name] = int(pid)
            elif begun.get(name) == int(pid):
                del begun[name]
        return list(begun.values())


def crowd(log: Log, work: Callable[[], None], kills: int) -> dict[str, int]:
    """Let the processes loose, kill some of those that are at work, wait for the rest; count."""
    pids = set()
    for number in range(PROCESSES):
        if not (pid := os.fork()):
            _child(number, work)
        pids.add(pid)
    killed: set[int] = set()
    failed = 0
    while pids:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            pids.discard(pid)
            failed += status != 0 and pid not in killed
            continue
        busy = [worker for worker in log.working() if worker in pids and worker not in killed]
        if busy and len(killed) < kills:
            time.sleep(random.random() * 0.2)
            killed.add(busy[0])
            os.kill(busy[0], signal.SIGKILL)
        time.sleep(0.01)
    return {"killed": len(killed), "failed": failed, **_overlaps(log, killed)}


def _child(number: int, work: Callable[[], None]) -> None:
    code = 1
    try:
        torch.manual_seed(number)
        work()
        code = 0
    finally:
        os._exit(code)


def _overlaps(log: Log, killed: set[int]) -> dict[str, int]:
    """How often somebody began what a living process was at work on, and what living processes ended twice.

    A process may be killed just before or after it writes that it has ended.
    """
    at_work: dict[str, int] = {}
    ended: dict[str, int] = {}
    overlaps = 0
    for what, name, pid in log.lines():
        if what == "begin":
            overlaps += name in at_work and at_work[name] not in killed
            at_work[name] = int(pid)
        else:
            at_work.pop(name, None)
            ended[name] = ended.get(name, 0) + (int(pid) not in killed)
    return {"overlaps": overlaps, "doubled": sum(count > 1 for count in ended.values())}


def train(root: Path, kills: int) -> dict[str, int]:
    """All processes want all of three runs."""
    log = Log(root / "log")
    data = shapes(per_class=2)
    recipes = [Recipe(**{"target": target, **TINY}) for target in ("art", "photo", "sketch")]
    go = loop._take_steps

    def watched(run: object, folder: loop.RunFolder, *rest: object) -> None:
        log.write("begin", folder.path.name)
        go(run, folder, *rest)  # type: ignore[arg-type]
        log.write("end", folder.path.name)

    loop._take_steps = watched  # type: ignore[assignment]
    loop.SAVE_EVERY = 0.0

    def work() -> None:
        for recipe in random.Random(os.getpid()).sample(recipes, len(recipes)):
            while True:
                try:
                    loop.train(recipe, root / "runs", device="cpu", data=data)
                    break
                except ClaimedError:
                    time.sleep(0.5)  # each try builds the network anew

    found = crowd(log, work, kills)
    found["ended"] = sum((root / "runs" / recipe.run_id / "done.json").exists() for recipe in recipes)
    loop._take_steps = go
    for recipe in recipes:
        loop.train(recipe, root / "whole", device="cpu", data=data)
    names = ("run.json", "records.jsonl", "model.safetensors", "predictions.safetensors", "done.json")
    files = [f"{recipe.run_id}/{name}" for recipe in recipes for name in names]
    differing = [file for file in files if (root / "runs" / file).read_bytes() != (root / "whole" / file).read_bytes()]
    return {**found, "differing": len(differing)}


def packing(root: Path, kills: int) -> dict[str, int]:
    """All processes want the same store."""
    draw = np.random.default_rng(0)
    for domain in ("a", "b"):
        for label in ("x", "y"):
            (root / "images" / domain / label).mkdir(parents=True)
            for number in range(20):
                pixels = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / "images" / domain / label / f"{number}.png")
    log = Log(root / "log")
    _writing.SHARD_BYTES = 1 << 14
    fill = _writing._fill

    def watched(plan: _writing.Plan, path: Path, *rest: object) -> list[_writing.Shard]:
        log.write("begin", "store")
        shards = fill(_slow(plan), path, *rest)  # type: ignore[arg-type]
        log.write("end", "store")
        return shards

    _writing._fill = watched  # type: ignore[assignment]
    found = crowd(log, lambda: pack(root / "images", root / "store", workers=2).verify(), kills)
    found["ended"] = int((root / "store").is_dir())
    _writing._fill = fill
    pack(root / "images", root / "whole")
    names = sorted(path.name for path in (root / "whole").iterdir())
    differing = [name for name in names if (root / "store" / name).read_bytes() != (root / "whole" / name).read_bytes()]
    left = {path.name for path in root.iterdir()} - {"images", "store", "whole", "log"}
    return {**found, "differing": len(differing), "left": len(left)}


def _slow(plan: _writing.Plan) -> _writing.Plan:
    """A store that takes a second to write, so that there is time for a kill."""
    from dataclasses import replace

    def read(image: int) -> _writing.Picture:
        time.sleep(0.02)
        return plan.read(image)

    return replace(plan, read=read)


def main() -> None:
    torch.set_num_threads(1)
    fcntl.flock = lambda *_: None  # type: ignore[assignment]
    root, kills = Path(sys.argv[1]), int(sys.argv[2])
    found = {}
    for task in (train, packing):
        folder = root / task.__name__
        folder.mkdir(parents=True)
        found[task.__name__] = task(folder, kills)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
