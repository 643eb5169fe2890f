"""Measure what MeCAM's perturbed passes add to the gradient of a trained network.

    python benchmarks/expansion.py runs/PACS-art_painting-erm-mecam-none-seed0-0123456789 --batches 4

The batches are those of training, without augmentation and dropout. The rows are distances from ∇f, relative to ‖∇f‖:

- SAM's gap alone:        alpha ‖∇f(θ+δ) − ∇f(θ)‖
- no virtual domain:      alpha ‖∇f(θ+δ) + ∇f(θ−δ) − 2 ∇f(θ)‖
- the meta pass alone:    beta ‖∇m(θ−δ) − ∇f(θ)‖
- both gaps:              ‖alpha ∇f(θ+δ) + beta ∇m(θ−δ) − (alpha + beta) ∇f(θ)‖

The last row is the gap of the losses, (alpha (f(θ+δ) − f(θ)) + beta (m(θ−δ) − f(θ))) / f(θ).

Where an expansion in rho holds, the first row grows like rho, and the second, with alpha = beta, like rho².
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch

from machine import heading, publish, table
from mecam.analysis.objective import Direction, Objective, norm
from mecam.analysis.runs import objective_of, virtual_domain_of
from mecam.virtual import VirtualDomain

RADII = (0.01, 0.05, 0.1, 0.2)
WEIGHT = 0.1  # alpha and beta
ROWS = ("SAM's gap alone", "no virtual domain", "the meta pass alone", "both gaps", "both gaps of the loss, in f")


def changes(objective: Objective, virtual: VirtualDomain) -> dict[float, list[float]]:
    """Return by rho each row's distance from ∇f relative to ‖∇f‖, and the loss gaps relative to f."""
    f, here = objective.value_and_gradient()
    length = norm(here)

    def minus_here(there: Direction) -> list[torch.Tensor]:
        return list(torch._foreach_sub(list(there), here))

    def size(difference: Direction) -> float:
        return WEIGHT * norm(difference) / length

    found = {}
    for rho in RADII:
        f_up, g_up = objective.value_and_gradient(here, rho / length)
        up = minus_here(g_up)
        down = minus_here(objective.gradient(here, -rho / length))
        with virtual.active():
            m_down, g_down = objective.value_and_gradient(here, -rho / length)
        meta = minus_here(g_down)
        together = [list(torch._foreach_add(up, other)) for other in (down, meta)]
        gap = WEIGHT * (f_up + m_down - 2 * f) / f
        found[rho] = [size(up), size(together[0]), size(meta), size(together[1]), gap]
    return found


def main() -> None:
    options = parse()
    facts = {
        "setting": f"alpha = beta = {WEIGHT}; {options.batches} batches of {options.batch} training images, medians",
    }
    lines = heading("What MeCAM's perturbed passes add to the gradient", options.device, facts)
    for path in options.runs:
        whole = objective_of(
            path,
            limit=options.batch * options.batches,
            batch=options.batch,
            device=options.device,
            dtype=torch.float64 if options.double else torch.float32,
            mixed=True,
        )
        virtual = virtual_domain_of(path, whole)
        if virtual is None:
            raise SystemExit(f"{path}: its recipe has no virtual domain that acts inside the network")
        found = [changes(Objective(whole.model, whole.loss, [batch]), virtual) for batch in whole.batches]
        body = [
            [row, *(f"{statistics.median(each[rho][at] for each in found):.2g}" for rho in RADII)]
            for at, row in enumerate(ROWS)
        ]
        lines += ["", f"{path.name}:", *table(["", *(f"rho {rho:g}" for rho in RADII)], body)]
    publish(lines, options.out)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--batch", type=int, default=96, help="images per batch, evenly from the source domains")
    parser.add_argument("--double", action="store_true", help="compute in float64")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
