"""Hutchinson's estimate of the Hessian diagonal, for AdaHessian."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mecam.optim._options import in_process_group

REFUSAL = (
    "AdaHessian needs the graph of the gradient at theta. Call loss.backward(create_graph=optimizer.needs_graph) in "
    "the closure. It cannot work where gradients carry no graph: under DDP and FSDP, torch.compile, and methods that "
    "write gradients themselves (gradient surgery)"
)


def require_one_process() -> None:
    """Refuse a process group: DDP's own error, that a leaf was written to in place, is unclear."""
    if in_process_group():
        raise RuntimeError(REFUSAL)


def hutchinson(parameters: Sequence[Tensor], *, samples: int, distribution: str) -> list[Tensor]:
    """Return the mean of z * (H z), z Rademacher or Gaussian; zero for a parameter without gradient."""
    used = [(p, p.grad) for p in parameters if p.requires_grad and p.grad is not None]
    curved = [i for i, (_, g) in enumerate(used) if g.requires_grad]  # a gradient without graph is constant
    if not curved:
        raise RuntimeError(REFUSAL)
    diagonal = {id(p): torch.zeros_like(p, requires_grad=False) for p in parameters}
    for sample in range(samples):
        noise = [_draw(p, distribution) for p, _ in used]
        try:
            products = torch.autograd.grad(
                [used[i][1] for i in curved],
                [p for p, _ in used],
                grad_outputs=[noise[i] for i in curved],
                retain_graph=sample < samples - 1,
                allow_unused=True,
            )
        except RuntimeError as error:
            raise RuntimeError(f"{REFUSAL} ({error})") from error
        for (parameter, _), z, product in zip(used, noise, products, strict=True):
            if product is not None:
                diagonal[id(parameter)].addcmul_(product, z, value=1 / samples)
    return [diagonal[id(p)] for p in parameters]


def _draw(parameter: Tensor, distribution: str) -> Tensor:
    if distribution == "gaussian":
        return torch.randn_like(parameter)
    return torch.randint_like(parameter, 0, 2).mul_(2).sub_(1)
