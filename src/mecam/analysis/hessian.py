"""The Hessian of an objective as a linear operator on flat vectors, as ARPACK and curvlinops ask for one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecam.analysis.objective import Objective
from mecam.progress import Event, Progress, silent

Array = NDArray[np.floating]


class Hessian:
    """H(θ), by Hessian-vector products. `products` counts them.

    Args:
        progress: called after each product, for the task of this name, of `total` products if that is known.
    """

    def __init__(
        self, objective: Objective, progress: Progress = silent, task: str = "Hessian", total: int | None = None
    ) -> None:
        self.objective, self.progress, self.products = objective, progress, 0
        self._task, self._total = task, total
        size = sum(parameter.numel() for parameter in objective.parameters)
        self.shape = (size, size)
        self.device = objective.device
        exact = all(parameter.dtype == torch.float64 for parameter in objective.parameters)
        self.dtype = torch.float64 if exact else torch.float32

    def __matmul__(self, vector: Tensor) -> Tensor:
        parts = self.objective.hessian_product(self.split(vector))
        product = torch.cat([part.reshape(-1).to(self.dtype) for part in parts])
        if not product.isfinite().all():
            raise FloatingPointError(
                "a product with the Hessian is not finite: the loss is not finite at these weights, or cannot be "
                "differentiated twice"
            )
        self.products += 1
        self.progress(Event(self._task, self.products, self._total, "products"))
        return product

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return a flat vector as tensors like the parameters."""
        parameters = self.objective.parameters
        pieces = torch.split(vector, [parameter.numel() for parameter in parameters])
        return [piece.view(like.shape).to(like.dtype) for piece, like in zip(pieces, parameters, strict=True)]

    def on_host(self, vector: Array) -> Array:
        """Return the product with a NumPy vector."""
        return (self @ self.from_host(vector)).cpu().numpy()

    def from_host(self, vector: Array) -> Tensor:
        return torch.from_numpy(np.array(vector).reshape(-1)).to(self.device, self.dtype)

    def start(self, seed: int) -> Array:
        """Return a random vector, the same for the same seed."""
        return np.random.default_rng(seed).standard_normal(self.shape[0])

    def is_zero(self, seed: int) -> bool:
        """Return whether H is 0, as far as one product with a random vector shows."""
        return not self.on_host(self.start(seed)).any()

    def dense(self) -> Array:
        """Return the whole matrix, for a network of a few weights."""
        matrix = np.stack([self.on_host(unit) for unit in np.eye(self.shape[0])])
        symmetric: Array = (matrix + matrix.T) / 2
        return symmetric

    def facts(self) -> dict[str, Any]:
        """Return what every result reports about the function it belongs to."""
        return {"products": self.products, "parameters": self.shape[0], **self.objective.facts()}
