"""ERM, SAM and MeCAM on the embedded data set, each domain in turn left out of training. Run: make demo.

Twelve runs, two at a time on two cores; what is finished is kept in demo-runs/, so an interrupted demo goes on. One
seed shows the product at work; it does not rank optimizers.
"""

import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

OUT = Path("demo-runs")
TARGETS = ("art", "cartoon", "photo", "sketch")
ROWS = {"ERM (Adam)": "adam", "SAM": "sam", "MeCAM": "mecam"}


def run(optimizer: str, target: str) -> float:
    """Train on the other three domains; the accuracy on this one, in percent."""
    import torch

    import mecam
    from mecam.recipe import make

    torch.set_num_threads(1)
    folder = mecam.train(make({"optimizer": optimizer, "target": target}), OUT)
    return 100 * float(folder.read_result()["target_accuracy"])


def main() -> None:
    from mecam.data.shapes import shapes

    start = time.monotonic()
    print(f"shapes: {sum(len(shapes().labels(d)) for d in range(len(TARGETS)))} images in {len(TARGETS)} domains")
    longest_first = [(optimizer, target) for optimizer in reversed(ROWS.values()) for target in TARGETS]
    accuracies: dict[tuple[str, str], float] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        jobs = {pool.submit(run, *job): job for job in longest_first}
        for done in as_completed(jobs):
            optimizer, target = jobs[done]
            accuracies[optimizer, target] = done.result()
            print(f"  {optimizer} without {target}: {accuracies[optimizer, target]:.1f} % there", flush=True)
    print(f"\naccuracy on the domain that was not trained on, percent ({time.monotonic() - start:.0f} s)")
    print(f"{'':12}" + "".join(f"{target:>9}" for target in TARGETS) + f"{'average':>9}")
    for title, optimizer in ROWS.items():
        found = [accuracies[optimizer, target] for target in TARGETS]
        print(f"{title:12}" + "".join(f"{value:9.1f}" for value in (*found, sum(found) / len(found))))
    print(f"\nEvery run is in {OUT}/: try  mecam predict {OUT}/<run> image.png")


if __name__ == "__main__":
    main()
