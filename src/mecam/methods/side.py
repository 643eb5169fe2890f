"""Auxiliary modules, such as adversaries, with a loss and an optimizer of their own."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mecam import ranks


class Side:
    """A module and its Adam. `nonfinite`: take ("ignore"), leave out ("skip") or refuse ("raise") non-finite steps."""

    nonfinite: Literal["ignore", "skip", "raise"] = "ignore"

    def __init__(
        self, module: nn.Module, *, lr: float, weight_decay: float = 0.0, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self.module = module
        self.optimizer = torch.optim.Adam(module.parameters(), lr=lr, weight_decay=weight_decay, betas=betas)

    def frozen(self, *inputs: Tensor) -> Tensor:
        """Return the module's output; gradients flow to the inputs alone."""
        weights = {name: parameter.detach() for name, parameter in self.module.named_parameters()}
        output: Tensor = functional_call(self.module, weights, inputs)
        return output

    def step(self, loss: Tensor) -> None:
        """Take one step on this loss, in which everything outside the module must be detached."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        ranks.average(p.grad for p in self.module.parameters())
        if self.nonfinite == "ignore" or self._is_finite():
            self.optimizer.step()
        elif self.nonfinite == "raise":
            raise FloatingPointError("the gradient of an auxiliary module is not finite")
        self.optimizer.zero_grad()

    def _is_finite(self) -> bool:
        checks = [p.grad.isfinite().all() for p in self.module.parameters() if p.grad is not None]
        return not checks or bool(torch.stack(checks).all())

    def state_dict(self) -> dict[str, Any]:
        return {"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])


def mlp(inputs: int, outputs: int, *, width: int, depth: int, dropout: float = 0.0) -> nn.Sequential:
    """Return `depth` linear layers with dropout and ReLU between them."""
    sizes = [inputs, *[width] * (depth - 1)]
    layers = nn.Sequential()
    for size in sizes[:-1]:
        layers.extend([nn.Linear(size, width), nn.Dropout(dropout), nn.ReLU()])
    return layers.append(nn.Linear(sizes[-1], outputs))
