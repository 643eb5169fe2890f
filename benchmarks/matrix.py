"""Check that every method trains under every optimizer and every averaging. Run: make matrix.

Each combination is built on a small embedded set, takes two steps, is evaluated after each and finished as a run. It
trains if all of its weights are finite and its trained weights have moved. Otherwise it must raise an error with the
reason at the start.
"""

from __future__ import annotations

import itertools
import os
import re
import time
import warnings
from concurrent.futures import ProcessPoolExecutor

import torch

from machine import heading, parse, publish, table
from mecam.averaging import AVERAGINGS
from mecam.data.shapes import shapes
from mecam.methods import METHODS
from mecam.optim import OPTIMIZERS
from mecam.recipe import Recipe, RecipeError
from mecam.training import result
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.step import train_step

TRAINS = "trains"
STEPS = {"soap": 5}  # its first step moves nothing, and ADRMX's network trains in every third step
SMALL = {"target": "sketch", "batch": 4, "image_size": 16, "evaluate_every": 1, "selection": "last"}
DATA = shapes(per_class=4)


def attempt(combination: tuple[str, str, str]) -> str:
    """Return TRAINS or the reason."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    result.BN_BATCHES = 1  # of SWAD's weights; 100 would take most of the time
    method, optimizer, averaging = combination
    values = {"method": method, "optimizer": optimizer, "averaging": averaging}
    steps = STEPS.get(optimizer, 2)
    recipe = Recipe(**{**values, **SMALL, "steps": steps - 1})
    try:
        run = Run(recipe, find_machine("cpu"), DATA)
    except RecipeError as refusal:
        return "refused: " + re.sub(rf"(method=)?\b{method}\b", "the method", str(refusal), count=1)
    before = [parameter.clone() for parameter in run.trained.parameters()]
    try:
        for step in range(steps):
            train_step(run, step)
            result.validate(run, step)
        result.finish(run)
    except Exception as error:  # of any kind: the other combinations go on
        cause = error.__cause__ or error
        return f"FAILED: {method} under {optimizer}: {type(cause).__name__}: {cause}"
    after = list(run.trained.parameters())
    if not all(parameter.isfinite().all() for parameter in after):
        return "FAILED: weights are not finite"
    if all(torch.equal(old, new) for old, new in zip(before, after, strict=True)):
        return "FAILED: nothing moved"
    return TRAINS


def main() -> None:
    options = parse(__doc__, methods=list(METHODS), optimizers=list(OPTIMIZERS), averagings=list(AVERAGINGS))
    start = time.monotonic()
    combinations = list(itertools.product(options.methods, options.optimizers, options.averagings))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(combinations, pool.map(attempt, combinations, chunksize=15), strict=True))
    reasons = list(dict.fromkeys(outcome for outcome in found.values() if outcome != TRAINS))
    rows = []
    for method in options.methods:
        cells = []
        for optimizer in options.optimizers:
            outcomes = [found[method, optimizer, averaging] for averaging in options.averagings]
            marks = ["✓" if outcome == TRAINS else str(reasons.index(outcome) + 1) for outcome in outcomes]
            cells.append(marks[0] if len(set(marks)) == 1 else " ".join(marks))
        rows.append([method, *cells])
    trains = sum(outcome == TRAINS for outcome in found.values())
    refused = sum(outcome.startswith("refused") for outcome in found.values())
    failed = len(found) - trains - refused
    facts = {
        "combinations": f"{len(found)}, of which {trains} train, {refused} are refused with a reason, {failed} fail",
        "a cell": f"✓ if it trains with all of {', '.join(options.averagings)}; a number refers to the reasons below",
        "time": f"{time.monotonic() - start:.0f} s",
    }
    lines = [*heading("Every method under every optimizer and averaging", "cpu", facts)]
    lines += table(["", *options.optimizers], rows)
    lines += ["", *(f"{number}. {reason}" for number, reason in enumerate(reasons, start=1))]
    publish(lines, options.out)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
