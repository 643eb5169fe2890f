"""torch's own test inputs for optimizers, under SAM and MeCAM that leave the gradient as it is. Run in a process of its
own: importing them changes settings of torch.

Prints, as JSON, how many inputs of each optimizer gave the plain optimizer's weights, and the errors of the others.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.common_optimizers import (
    OptimizerInfo,
    _get_optim_inputs_including_global_cliquey_kwargs,
    optim_db,
)

from mecam.optim import SAM, MeCAM

UNCHANGED: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SAM": lambda params, base: SAM(params, base, rho=0.0),
    "MeCAM": lambda params, base: MeCAM(params, base, alpha=0.0, beta=0.0),
}


def train(info: OptimizerInfo, wrap: Callable[..., torch.optim.Optimizer], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the weights after three steps."""
    torch.manual_seed(0)
    shapes = [(4, 5), (3, 4)] if info.optim_cls.__name__ == "Muon" else [(4, 5), (4,), (3, 4)]  # which takes matrices
    weights = [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes]
    inputs = torch.randn(6, 5, dtype=torch.float64)
    kwargs = {key: value.clone() if isinstance(value, Tensor) else value for key, value in kwargs.items()}
    optimizer = wrap(weights, lambda params: info.optim_cls(params, **kwargs))

    def closure() -> Tensor:
        optimizer.zero_grad()
        hidden = torch.tanh(inputs @ weights[0].T + (weights[1] if len(weights) == 3 else 0))
        loss = (hidden @ weights[-1].T).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return [weight.detach() for weight in weights]


def compare(info: OptimizerInfo, method: str) -> dict[str, int]:
    outcomes: dict[str, int] = defaultdict(int)
    for kwargs in inputs(info):
        try:
            ours = train(info, UNCHANGED[method], kwargs)
        except (TypeError, ValueError) as error:
            outcomes[str(error)] += 1
            continue
        theirs = train(info, lambda params, base: base(params), kwargs)
        same = all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        outcomes["equal" if same else f"differs: {kwargs}"] += 1
    return outcomes


def inputs(info: OptimizerInfo) -> Iterator[dict[str, Any]]:
    """Yield torch's arguments, with `fused` and `foreach` where a CPU supports them."""
    for each in _get_optim_inputs_including_global_cliquey_kwargs("cpu", torch.float64, info, skip=("differentiable",)):
        yield each.kwargs
        lr = each.kwargs.get("lr")
        if "foreach" in info.supported_impls and not each.kwargs.get("fused") and not isinstance(lr, Tensor):
            yield {**each.kwargs, "foreach": True}


if __name__ == "__main__":
    print(json.dumps({method: {i.optim_cls.__name__: compare(i, method) for i in optim_db} for method in UNCHANGED}))
