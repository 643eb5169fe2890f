"""The function that is measured: the mean loss of a model over a data set, at any weights.

    objective = Objective(model, torch.nn.functional.cross_entropy, batches)
    objective.value()                  # f(θ)
    objective.value(direction, 0.1)    # f(θ + 0.1 direction)
    objective.gradient()               # ∇f(θ), a list of tensors like the parameters

`batches` can be iterated over more than once and yields (inputs, targets): a list, or a DataLoader without shuffling.
Each batch is weighted by its size. The model is in eval mode while it is measured: f depends on the weights alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mecam.analysis._convolutions import Convolutions

Direction = Sequence[Tensor]  # one tensor for each parameter, of its shape
Loss = Callable[[Tensor, Tensor], Tensor]  # the mean over a batch


class Objective:
    """f(θ) = Σ_batches size · loss(model(inputs), targets) / Σ size, summed in float64.

    Args:
        count: number of samples; by default counted in one pass over the batches.
        name: the name of the data in results.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Iterable[tuple[Tensor, Tensor]],
        *,
        count: int | None = None,
        name: str = "",
    ) -> None:
        if iter(batches) is batches:
            raise TypeError("batches can be iterated over only once; give a list or a DataLoader, not an iterator")
        self.model, self.loss, self.batches, self.name = model, loss, batches, name
        self.parameters: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise ValueError("the model has no parameter that requires a gradient")
        self.device = self.parameters[0].device
        self.count = sum(len(targets) for _, targets in batches) if count is None else count
        if not self.count:
            raise ValueError("there is no data: batches is empty")

    def value(self, direction: Direction | None = None, scale: float = 1.0) -> float:
        """Return f(θ + scale · direction)."""
        with self.studied(), self.moved(direction, scale), torch.no_grad():
            return self._mean(self.loss(self.model(x), y).double() * len(y) for x, y in self)

    def gradient(self, direction: Direction | None = None, scale: float = 1.0) -> list[Tensor]:
        """Return ∇f(θ + scale · direction)."""
        return self.value_and_gradient(direction, scale)[1]

    def value_and_gradient(self, direction: Direction | None = None, scale: float = 1.0) -> tuple[float, list[Tensor]]:
        """Return f and ∇f, from one pass over the data."""
        total = [torch.zeros_like(parameter) for parameter in self.parameters]
        values = []
        with self.studied(), self.moved(direction, scale), torch.enable_grad():
            for x, y in self:
                loss = self.loss(self.model(x), y)
                slope = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
                torch._foreach_add_(total, slope, alpha=len(y) / self.count)
                values.append(loss.detach().double() * len(y))
        return self._mean(values), total

    def hessian_product(self, vector: Direction) -> list[Tensor]:
        """Return H(θ) v, by a second backward."""
        total = [torch.zeros_like(parameter) for parameter in self.parameters]
        with self.studied(), torch.enable_grad(), Convolutions():
            for x, y in self:
                loss = self.loss(self.model(x), y)
                slope = torch.autograd.grad(loss, self.parameters, create_graph=True, materialize_grads=True)
                product = torch.autograd.grad(slope, self.parameters, list(vector), materialize_grads=True)
                torch._foreach_add_(total, product, alpha=len(y) / self.count)
        return total

    def facts(self) -> dict[str, Any]:
        """Return the facts that results report: data, number of samples and precision."""
        dtype = str(self.parameters[0].dtype).removeprefix("torch.")
        return {"data": self.name, "samples": self.count, "dtype": dtype}

    @contextmanager
    def studied(self) -> Iterator[None]:
        """Put the model into eval mode, and restore the mode of each module afterwards.

        TF32 is off: it rounds weights to 11 bits, and a step of rho = 0.01 changes most of them by less.
        """
        modes = {module: module.training for module in self.model.modules()}
        cudnn: Any = torch.backends.cudnn
        kinds: tuple[Any, ...] = (cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul)
        precisions = [kind.fp32_precision for kind in kinds]
        for kind in kinds:
            kind.fp32_precision = "ieee"
        self.model.eval()
        try:
            yield
        finally:
            for kind, precision in zip(kinds, precisions, strict=True):
                kind.fp32_precision = precision
            for module, training in modes.items():
                module.training = training

    @contextmanager
    def moved(self, direction: Direction | None, scale: float = 1.0) -> Iterator[None]:
        """Move the weights to θ + scale · direction, and restore them afterwards bit for bit."""
        if direction is None:
            yield
            return
        here = [parameter.detach().clone() for parameter in self.parameters]
        try:
            with torch.no_grad():
                torch._foreach_add_(self.parameters, list(direction), alpha=scale)
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, here)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches on the model's device."""
        for inputs, targets in self.batches:
            yield inputs.to(self.device), targets.to(self.device)

    def _mean(self, values: Iterable[Tensor]) -> float:
        return float(torch.stack(list(values)).sum() / self.count)


def norm(vector: Direction) -> float:
    """Return the Euclidean norm over all tensors, in float64."""
    return float(torch.stack([(part.double() ** 2).sum() for part in vector]).sum().sqrt())


def dot(left: Direction, right: Direction) -> float:
    """Return the inner product over all tensors, in float64."""
    return float(torch.stack([(a.double() * b.double()).sum() for a, b in zip(left, right, strict=True)]).sum())
