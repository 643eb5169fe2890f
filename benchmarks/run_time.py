"""Measure the parts of a whole run: start, steps, evaluations, end.

    python benchmarks/run_time.py --data PACS --target art_painting --backbone resnet50 --optimizer mecam --steps 5000

The run is that of `mecam train`. The script synchronizes with the GPU before and after each evaluation.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

from end_to_end import synchronize
from machine import heading, parse, publish, table
from mecam.data.open import open_data
from mecam.progress import Event
from mecam.recipe import Recipe
from mecam.training import loop, train
from mecam.training.run import Run


class Clock:
    """Wrap evaluations, and measure the first step."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.first = self.last = self.evaluating = 0.0
        self.evaluations = 0
        validate = loop.validate

        def timed(run: Run, step: int) -> dict[str, Any]:
            synchronize(run)
            start = time.perf_counter()
            if not self.first:
                self.first = start
            record = validate(run, step)
            self.last = time.perf_counter()
            self.evaluating += self.last - start
            self.evaluations += 1
            return record

        loop.validate = timed

    def watch(self, event: Event) -> None:
        if event.record is not None and event.done % 1000 == 0:
            print(f"step {event.done}, {time.perf_counter() - self.begun:.0f} s", flush=True)


def main() -> None:
    options = parse(
        __doc__,
        data="shapes",
        target="art",
        backbone="resnet8",
        optimizer="mecam",
        steps=100,
        freeze_bn=False,
        pretrained=False,
        device="cpu",
    )
    values: dict[str, Any] = {"data": options.data, "target": options.target, "optimizer": options.optimizer}
    values |= {"backbone": options.backbone, "steps": options.steps, "pretrained": options.pretrained or None}
    values |= {"freeze_bn": options.freeze_bn or None}
    recipe = Recipe(**values)
    data = open_data(options.data)
    clock = Clock()
    with tempfile.TemporaryDirectory() as out:
        folder = train(recipe, out, device=options.device, progress=clock.watch, data=data)
        end = time.perf_counter()
        accuracy = folder.read_result()["target_accuracy"]
    training = clock.last - clock.first - clock.evaluating
    parts = {
        "start: network, data to the device, first step": clock.first - clock.begun,
        f"{recipe.steps} steps": training,
        f"{clock.evaluations} evaluations": clock.evaluating,
        "end: selected weights on every split, files": end - clock.last,
    }
    whole = end - clock.begun
    rows = [[name, f"{spent:.1f}", f"{100 * spent / whole:.1f} %"] for name, spent in parts.items()]
    rows.append(["all", f"{whole:.1f}", "100 %"])
    share = training / (training + clock.evaluating)
    facts = {
        "setting": f"{options.backbone}, {recipe.optimizer}, 3 x {recipe.batch} images of {recipe.image_size} px",
        "repeats": "1 run",
        "step": f"{1000 * training / max(1, recipe.steps):.2f} ms; with its evaluations the loop runs at "
        f"{100 * share:.1f} % of the rate of its steps",
        "accuracy": f"{100 * accuracy:.1f} % on the target",
    }
    header = ["part", "seconds", "share"]
    publish([*heading("The time of a whole run", options.device, facts), *table(header, rows)], options.out)


if __name__ == "__main__":
    main()
