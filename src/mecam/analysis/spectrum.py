"""The spectrum of the Hessian: its outermost eigenvalues, its trace, its density; from Hessian-vector products alone.

Eigenvalues come from SciPy's ARPACK, the Lanczos quadrature of the density from curvlinops; both are given products of
`Objective`, which need no more of a model than a second backward. `largest` needs neither: a Lanczos iteration on the
device that stops as soon as one eigenvalue is found. Results say what they were computed with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecam.analysis._figure import new_figure, save
from mecam.analysis.objective import Objective

End = Literal["magnitude", "highest", "lowest", "both"]
ENDS: dict[End, str] = {"magnitude": "LM", "highest": "LA", "lowest": "SA", "both": "BE"}  # as ARPACK calls them
DENSE = 20  # as many products as ARPACK needs at the least give a matrix of this size itself
Progress = Callable[[int], None]  # told after each product with the Hessian how many there were


@dataclass(frozen=True)
class Eigenvalues:
    """Some eigenvalues of the Hessian, in units of the loss over squared weights."""

    values: tuple[float, ...]  # by falling magnitude
    end: End  # where in the spectrum they were looked for
    tolerance: float  # of the residual, relative to the eigenvalue
    products: int  # Hessian-vector products it took, a pass over the data each
    seed: int
    parameters: int
    data: str
    samples: int
    dtype: str


@dataclass(frozen=True)
class Trace:
    """Hutchinson's estimate of the trace: the mean of zᵀHz over random signs z."""

    estimate: float
    standard_error: float
    draws: int
    seed: int
    parameters: int
    data: str
    samples: int
    dtype: str


@dataclass(frozen=True)
class Density:
    """The share of eigenvalues per unit of eigenvalue, smoothed; its integral over the grid is about 1."""

    grid: tuple[float, ...]
    density: tuple[float, ...]
    steps: int  # of Lanczos: peaks that are closer than (highest - lowest) / steps are one
    repeats: int  # random starts averaged over
    seed: int
    parameters: int
    data: str
    samples: int
    dtype: str


class Hessian:
    """H(θ) as a matrix that multiplies flat vectors: what ARPACK and curvlinops ask of an operator."""

    def __init__(self, objective: Objective, progress: Progress | None = None) -> None:
        self.objective, self.progress, self.products = objective, progress, 0
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
        if self.progress is not None:
            self.progress(self.products)
        return product

    def split(self, vector: Tensor) -> list[Tensor]:
        """A flat vector as tensors like the parameters."""
        parameters = self.objective.parameters
        pieces = torch.split(vector, [parameter.numel() for parameter in parameters])
        return [
            piece.view(parameter.shape).to(parameter.dtype) for piece, parameter in zip(pieces, parameters, strict=True)
        ]

    def on_host(self, vector: NDArray[np.floating]) -> NDArray[np.floating]:
        """The product with a NumPy vector."""
        found: NDArray[np.floating] = (self @ self.from_host(vector)).cpu().numpy()
        return found

    def from_host(self, vector: NDArray[np.floating]) -> Tensor:
        return torch.from_numpy(np.array(vector).reshape(-1)).to(self.device, self.dtype)

    def start(self, seed: int) -> NDArray[np.floating]:
        """A random vector, the same for the same seed."""
        return np.random.default_rng(seed).standard_normal(self.shape[0])

    def is_zero(self, seed: int) -> bool:
        """Whether H is 0, as far as one product with a random vector tells."""
        return not self.on_host(self.start(seed)).any()

    def dense(self) -> NDArray[np.floating]:
        """The whole matrix, for a network of a few weights."""
        matrix = np.stack([self.on_host(unit) for unit in np.eye(self.shape[0])])
        symmetric: NDArray[np.floating] = (matrix + matrix.T) / 2
        return symmetric

    def facts(self) -> dict[str, Any]:
        """What every result says of the function it belongs to."""
        objective = self.objective
        return {
            "parameters": self.shape[0],
            "data": objective.name,
            "samples": objective.count,
            "dtype": str(objective.parameters[0].dtype).removeprefix("torch."),
        }


def eigenvalues(
    objective: Objective,
    k: int = 1,
    *,
    end: End = "magnitude",
    tolerance: float = 1e-3,
    seed: int = 0,
    progress: Progress | None = None,
) -> Eigenvalues:
    """The k outermost eigenvalues; as `eigenpairs`, without the vectors."""
    return eigenpairs(objective, k, end=end, tolerance=tolerance, seed=seed, progress=progress)[0]


def eigenpairs(
    objective: Objective,
    k: int = 1,
    *,
    end: End = "magnitude",
    tolerance: float = 1e-3,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Eigenvalues, list[list[Tensor]]]:
    """The k outermost eigenvalues and for each its unit eigenvector, as tensors like the parameters.

    Args:
        end: "magnitude" takes from either end what is largest in magnitude, "both" half of k from each.
        tolerance: ‖Hv − λv‖ / |λ| at which a pair counts as found.
    """
    if end not in ENDS:
        raise ValueError(f"end={end!r} is not known; it must be one of {', '.join(ENDS)}")
    hessian = Hessian(objective, progress)
    size = hessian.shape[0]
    if not 1 <= k <= size:
        raise ValueError(f"k={k} eigenvalues are asked for; there are 1 to {size} to be had")
    if size <= max(2 * k, DENSE):
        found, vectors = np.linalg.eigh(hessian.dense())
        chosen = _chosen(found, k, end)
        found, vectors = found[chosen], vectors[:, chosen]
    else:
        found, vectors = _by_arpack(hessian, k, end, tolerance, seed)
    order = np.argsort(-np.abs(found), kind="stable")
    values = tuple(float(value) for value in found[order])
    directions = [hessian.split(hessian.from_host(vectors[:, column])) for column in order]
    return Eigenvalues(values, end, tolerance, hessian.products, seed, **hessian.facts()), directions


def largest(
    objective: Objective,
    *,
    tolerance: float = 1e-2,
    most: int = 40,
    seed: int = 0,
    progress: Progress | None = None,
) -> Eigenvalues:
    """The eigenvalue of largest magnitude, by Lanczos with full reorthogonalisation.

    Takes fewer products than ARPACK, which makes 20 before it first checks for convergence, and keeps one vector of the
    size of the network for each.

    Args:
        tolerance: ‖Hv − λv‖ / |λ| at which to stop.
        most: products at most; the result's `tolerance` is the one that was reached.
    """
    if most < 1:
        raise ValueError(f"most={most} is not allowed; it must be at least 1")
    hessian = Hessian(objective, progress)
    start = hessian.from_host(hessian.start(seed))
    basis = [start / float(start.norm())]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        w = hessian @ basis[-1]
        diagonal.append(float(w @ basis[-1]))
        for _ in range(2):  # once more for what rounding left
            for q in basis:
                w -= (w @ q) * q
        length = float(w.norm())
        values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
        place = int(np.argmax(np.abs(values)))
        value, residual = float(values[place]), length * abs(float(vectors[-1, place]))
        done = len(diagonal)
        if residual <= tolerance * abs(value) or done == min(most, hessian.shape[0]):
            reached = max(tolerance, residual / abs(value)) if value else tolerance
            return Eigenvalues((value,), "magnitude", reached, hessian.products, seed, **hessian.facts())
        beside.append(length)
        basis.append(w / length)


def trace(objective: Objective, *, draws: int = 32, seed: int = 0, progress: Progress | None = None) -> Trace:
    """tr H = E zᵀHz, z of independent random signs; a product with the Hessian a draw."""
    if draws < 2:
        raise ValueError(f"draws={draws} leave no standard error; take at least 2")
    hessian = Hessian(objective, progress)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(draws):
        signs = torch.randint(0, 2, hessian.shape[:1], generator=generator).mul_(2).sub_(1)
        z = signs.to(hessian.device, hessian.dtype)
        found.append(float((z.double() * (hessian @ z).double()).sum()))
    error = float(np.std(found, ddof=1)) / math.sqrt(draws)
    return Trace(float(np.mean(found)), error, draws, seed, **hessian.facts())


def density(
    objective: Objective,
    *,
    steps: int = 50,
    repeats: int = 4,
    points: int = 512,
    seed: int = 0,
    progress: Progress | None = None,
) -> Density:
    """The spectral density by stochastic Lanczos quadrature, each node a Gaussian as wide as a step's resolution."""
    lanczos, smooth = _quadrature()
    if steps < 2 or repeats < 1:
        raise ValueError(f"steps={steps} and repeats={repeats}; at least 2 steps and 1 repeat are needed")
    hessian = Hessian(objective, progress)
    if hessian.is_zero(seed):
        raise ValueError("every eigenvalue is 0: there is no density to draw")
    steps = min(steps, hessian.shape[0])
    devices = [hessian.device] if hessian.device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # its starts are drawn from torch's global generators
        torch.manual_seed(seed)
        found = [lanczos(hessian, steps) for _ in range(repeats)]  # the nodes of each, and their eigenvectors
    # the outermost nodes are the first to converge: they are the ends of the spectrum, without products of their own
    ends = min(float(nodes.min()) for nodes, _ in found), max(float(nodes.max()) for nodes, _ in found)
    shares = [smooth(one, ends, points, kappa=3.0, margin=0.05) for one in found]
    total = torch.stack([share for _, share in shares]).mean(0)
    return Density(tuple(shares[0][0].tolist()), tuple(total.tolist()), steps, repeats, seed, **hessian.facts())


def plot(found: Density, path: Path | str) -> Path:
    """The density on a logarithmic scale: nearly all eigenvalues are nearly 0, and the few others matter."""
    figure = new_figure()
    axes = figure.add_subplot(
        title=f"Hessian, {found.parameters:,} parameters, {found.data} ({found.samples:,} samples)",
        xlabel="eigenvalue",
        ylabel="density",
        yscale="log",
        ylim=(max(found.density) * 1e-9, max(found.density) * 2),
    )
    axes.plot(found.grid, found.density)
    return save(figure, path)


def _chosen(values: NDArray[np.floating], k: int, end: End) -> NDArray[np.intp]:
    """Of rising eigenvalues the indices that ARPACK would give."""
    if end == "magnitude":
        return np.argsort(-np.abs(values), kind="stable")[:k]
    high = {"highest": k, "lowest": 0}.get(end, k - k // 2)
    indices = np.arange(len(values))
    return np.concatenate([indices[: k - high], indices[len(values) - high :]])


def _by_arpack(
    hessian: Hessian, k: int, end: End, tolerance: float, seed: int
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    from scipy.sparse.linalg import (  # slow, and of use here only
        ArpackError,
        ArpackNoConvergence,
        LinearOperator,
        eigsh,
    )

    dtype = np.float64 if hessian.dtype == torch.float64 else np.float32
    operator = LinearOperator(hessian.shape, matvec=hessian.on_host, dtype=dtype)
    if hessian.is_zero(seed):  # which ARPACK refuses
        return np.zeros(k), np.eye(hessian.shape[0], k)
    start = hessian.start(seed).astype(dtype)
    try:
        values, vectors = eigsh(operator, k, which=ENDS[end], v0=start, tol=tolerance)
    except ArpackNoConvergence as error:
        raise ArithmeticError(
            f"{len(error.eigenvalues)} of {k} eigenvalues were found to a tolerance of {tolerance:g} in "
            f"{hessian.products} products; take a larger tolerance, fewer of them, or float64"
        ) from error
    except ArpackError as error:
        raise ArithmeticError(f"the eigenvalues cannot be computed: {error}") from error
    return values, vectors


def _quadrature() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """curvlinops' Lanczos iteration, and its density of what that gives."""
    try:
        from curvlinops.papyan2020traces.spectrum import fast_lanczos, lanczos_approximate_spectrum_from_iter
    except Exception as error:  # a broken installation fails in other ways than by ImportError
        raise ImportError(f"a density needs curvlinops (pip install 'mecam[analysis]'): {error}") from error
    return fast_lanczos, lanczos_approximate_spectrum_from_iter
