"""Symmetric matrices that are known by their products with flat vectors: the Hessian and its relatives.

An algorithm (mecam.analysis.spectrum) takes any object with `shape`, `dtype`, `device` and `@`, a dense tensor too.
"""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mecam._torchvision import repair_torchvision
from mecam.analysis.objective import Loss, Objective
from mecam.progress import Event, Progress, silent

Array = NDArray[np.floating]


class Operator(Protocol):
    """What an algorithm needs of a matrix."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    def __matmul__(self, vector: Tensor, /) -> Tensor: ...


class CurvatureMatrix:
    """A matrix of the size of an objective's parameters."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        size = sum(parameter.numel() for parameter in objective.parameters)
        self.shape = (size, size)
        self.device = objective.device
        exact = all(parameter.dtype == torch.float64 for parameter in objective.parameters)
        self.dtype = torch.float64 if exact else torch.float32

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return a flat vector as tensors like the parameters."""
        parameters = self.objective.parameters
        pieces = torch.split(vector, [parameter.numel() for parameter in parameters])
        return [piece.view(like.shape).to(like.dtype) for piece, like in zip(pieces, parameters, strict=True)]


class Hessian(CurvatureMatrix):
    """H = ∇²f, by Hessian-vector products."""

    def __matmul__(self, vector: Tensor) -> Tensor:
        parts = self.objective.hessian_product(self.split(vector))
        return torch.cat([part.reshape(-1).to(self.dtype) for part in parts])


class _OfCurvlinops(CurvatureMatrix):
    """A matrix that curvlinops multiplies with."""

    kind: ClassVar[str]

    def __init__(self, objective: Objective) -> None:
        super().__init__(objective)
        make = getattr(curvlinops(), self.kind)
        loss = nn.CrossEntropyLoss() if objective.loss is cross_entropy else _Mean(objective.loss)
        settings = {"check_deterministic": False, "num_data": objective.count}
        self._operator = make(objective.model, loss, objective.parameters, objective, **settings)

    def __matmul__(self, vector: Tensor) -> Tensor:
        with self.objective.studied(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # vmap over one vector
            product: Tensor = self._operator @ vector
        return product.detach()


class GaussNewton(_OfCurvlinops):
    """G = mean of JᵀSJ: J the Jacobian of the network's outputs, S the Hessian of the loss by the outputs.

    It is the Hessian without the curvature of the network, and has no negative eigenvalue where S has none. For
    cross-entropy it is the Fisher information matrix.
    """

    kind = "GGNLinearOperator"


class EmpiricalFisher(_OfCurvlinops):
    """F = mean of ggᵀ: g the gradient of the cross-entropy of one sample, with its own label."""

    kind = "EFLinearOperator"


class Counted:
    """An operator whose products are counted and checked, for torch and for NumPy.

    Args:
        of: an operator, or an objective, whose Hessian is taken.
        progress: called after each product, for the task of this name, of `total` products if that is known.
    """

    def __init__(
        self, of: Objective | Operator, progress: Progress = silent, task: str = "products", total: int | None = None
    ) -> None:
        self.operator: Any = Hessian(of) if isinstance(of, Objective) else of
        self.progress, self.products, self._task, self._total = progress, 0, task, total
        self.shape, self.dtype, self.device = tuple(self.operator.shape), self.operator.dtype, self.operator.device

    def __matmul__(self, vector: Tensor) -> Tensor:
        product: Tensor = self.operator @ vector
        if not product.isfinite().all():
            name = type(self.operator).__name__
            raise FloatingPointError(
                f"a product with the {name} is not finite: the loss is not finite at these weights, or cannot be "
                "differentiated twice"
            )
        self.products += 1
        self.progress(Event(self._task, self.products, self._total, "products"))
        return product

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return a flat vector as tensors like the parameters, for an operator that has some."""
        return self.operator.split(vector) if isinstance(self.operator, CurvatureMatrix) else [vector]

    def on_host(self, vector: Array) -> Array:
        """Return the product with a NumPy vector."""
        product: Array = (self @ self.from_host(vector)).cpu().numpy()
        return product

    def from_host(self, vector: Array) -> Tensor:
        return torch.from_numpy(np.array(vector).reshape(-1)).to(self.device, self.dtype)

    def start(self, seed: int) -> Array:
        """Return a random vector, the same for the same seed."""
        start: Array = np.random.default_rng(seed).standard_normal(self.shape[0])
        return start

    def is_zero(self, seed: int) -> bool:
        """Return whether the matrix is 0, as far as one product with a random vector shows."""
        return not self.on_host(self.start(seed)).any()

    def dense(self) -> Array:
        """Return the whole matrix, for a network of a few weights."""
        matrix = np.stack([self.on_host(unit) for unit in np.eye(self.shape[0])])
        symmetric: Array = (matrix + matrix.T) / 2
        return symmetric

    def facts(self) -> dict[str, Any]:
        """Return the facts that every result reports about its function."""
        made_up = {"data": "", "samples": 0, "dtype": str(self.dtype).removeprefix("torch.")}
        of = self.operator.objective.facts() if isinstance(self.operator, CurvatureMatrix) else made_up
        return {"products": self.products, "parameters": self.shape[0], **of}


def curvlinops() -> ModuleType:
    """Import curvlinops, also beside a torchvision that was built for another torch."""
    repair_torchvision()
    try:
        import curvlinops
    except Exception as error:  # a broken installation fails in other ways than by ImportError
        raise ImportError(f"this needs curvlinops (pip install 'mecam[analysis]'): {error}") from error
    module: ModuleType = curvlinops
    return module


class _Mean(nn.Module):
    """The loss as curvlinops asks for it."""

    reduction = "mean"

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets)
