"""Compute outermost eigenvalues, trace and density of a symmetric matrix, from its products with vectors alone.

The matrix is an operator (mecam.analysis.operators), or the Hessian of an objective. Eigenvalues come from SciPy's
ARPACK, the Lanczos quadrature of the density from curvlinops. `largest` needs neither: a Lanczos iteration on the
device that stops as soon as one eigenvalue has converged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mecam.analysis._figure import new_figure, save
from mecam.analysis.objective import Objective
from mecam.analysis.operators import Array, Counted, Operator, curvlinops
from mecam.progress import Progress, silent

End = Literal["magnitude", "highest", "lowest", "both"]
ENDS: dict[End, str] = {"magnitude": "LM", "highest": "LA", "lowest": "SA", "both": "BE"}  # ARPACK's names


@dataclass(frozen=True, kw_only=True)
class Spectral:
    """What a result was computed from."""

    seed: int
    products: int  # with vectors; each is a pass over the data
    parameters: int
    data: str
    samples: int
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Eigenvalues(Spectral):
    """Some eigenvalues; of a Hessian, in units of the loss over squared weights."""

    values: tuple[float, ...]  # by falling magnitude
    end: End  # of the spectrum
    tolerance: float  # of the residual, relative to the eigenvalue


@dataclass(frozen=True, kw_only=True)
class Trace(Spectral):
    """An estimate of the trace."""

    estimate: float
    standard_error: float
    draws: int
    sketch: int  # dimensions whose part is exact


@dataclass(frozen=True, kw_only=True)
class Density(Spectral):
    """The share of eigenvalues per unit of eigenvalue, smoothed; its integral over the grid is about 1."""

    grid: tuple[float, ...]
    density: tuple[float, ...]
    steps: int  # of Lanczos: peaks that are closer than (highest - lowest) / steps are one
    repeats: int  # random starts averaged over


def eigenvalues(of: Objective | Operator, k: int = 1, **options: Any) -> Eigenvalues:
    """Return the k outermost eigenvalues; the options are those of `eigenpairs`."""
    return eigenpairs(of, k, **options)[0]


def eigenpairs(
    of: Objective | Operator,
    k: int = 1,
    *,
    end: End = "magnitude",
    tolerance: float = 1e-3,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[Eigenvalues, list[list[Tensor]]]:
    """Return the k outermost eigenvalues and for each its unit eigenvector, as tensors like the parameters.

    Args:
        end: "magnitude" takes from either end what is largest in magnitude, "both" half of k from each.
        tolerance: ‖Hv − λv‖ / |λ| at which a pair counts as converged.
    """
    if end not in ENDS:
        raise ValueError(f"end={end!r} is not allowed; it must be one of {', '.join(ENDS)}")
    matrix = Counted(of, progress, "eigenvalues")
    size = matrix.shape[0]
    if not 1 <= k <= size:
        raise ValueError(f"k={k} is not allowed; it must be 1 to {size}")
    if end == "both" and k == 1:
        raise ValueError("end='both' takes eigenvalues from either end: k must be at least 2, got 1")
    if k == size:  # which ARPACK refuses
        values, vectors = np.linalg.eigh(matrix.dense())
    else:
        values, vectors = _by_arpack(matrix, k, end, tolerance, seed)
    order = np.argsort(-np.abs(values), kind="stable")
    facts = matrix.facts()
    result = Eigenvalues(values=tuple(values[order].tolist()), end=end, tolerance=tolerance, seed=seed, **facts)
    return result, [matrix.split(matrix.from_host(vectors[:, column])) for column in order]


def largest(
    of: Objective | Operator, *, tolerance: float = 1e-2, most: int = 40, seed: int = 0, progress: Progress = silent
) -> Eigenvalues:
    """Return the eigenvalue of largest magnitude, by Lanczos with full reorthogonalisation.

    Takes fewer products than ARPACK, which makes 20 before it first checks for convergence, and keeps one vector of the
    size of the network for each.

    Args:
        tolerance: ‖Hv − λv‖ / |λ| at which to stop.
        most: products at most; the result's `tolerance` is the one that was reached.
    """
    if most < 1:
        raise ValueError(f"most={most} is not allowed; it must be at least 1")
    matrix = Counted(of, progress, "eigenvalue")
    start = matrix.from_host(matrix.start(seed))
    basis = [start / float(start.norm())]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        w = matrix @ basis[-1]
        diagonal.append(float(w @ basis[-1]))
        for _ in range(2):  # twice, for what rounding left
            for q in basis:
                w -= (w @ q) * q
        length = float(w.norm())
        values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
        place = int(np.argmax(np.abs(values)))
        value, residual = float(values[place]), length * abs(float(vectors[-1, place]))
        if residual <= tolerance * abs(value) or len(diagonal) == min(most, matrix.shape[0]):
            reached = max(tolerance, residual / abs(value)) if value else tolerance
            return Eigenvalues(values=(value,), end="magnitude", tolerance=reached, seed=seed, **matrix.facts())
        beside.append(length)
        basis.append(w / length)


def trace(
    of: Objective | Operator, *, draws: int = 32, sketch: int = 0, seed: int = 0, progress: Progress = silent
) -> Trace:
    """Estimate the trace from products with vectors z of random signs (Hutchinson).

        tr A = E zᵀAz
        tr A = tr QᵀAQ + E zᵀPAPz,   P = I − QQᵀ        with a sketch: Hutch++ (Meyer et al., 2021)

    Q is an orthonormal basis of A times `sketch` vectors of random signs: it holds most of the largest eigenvalues,
    whose part is then exact. A few eigenvalues far above the others are usual in Hessians of networks.

    Args:
        draws: vectors in the mean, with one product each.
        sketch: columns of Q, with two products and two vectors of the size of the network each.
    """
    if draws < 2:
        raise ValueError(f"draws={draws} is not allowed; a standard error needs at least 2")
    operator = Counted(of, progress, "trace", draws + 2 * sketch)
    size = operator.shape[0]
    if not 0 <= sketch <= size:
        raise ValueError(f"sketch={sketch} is not allowed; it must be 0 to {size}")
    generator = torch.Generator().manual_seed(seed)

    def signs() -> Tensor:
        drawn = torch.randint(0, 2, (size,), generator=generator).mul_(2).sub_(1)
        return drawn.to(operator.device, operator.dtype)

    def form(z: Tensor) -> float:
        return float((z.double() * (operator @ z).double()).sum())

    q = torch.zeros(size, 0, device=operator.device, dtype=operator.dtype)
    if sketch:
        q = torch.linalg.qr(torch.stack([operator @ signs() for _ in range(sketch)], dim=1))[0]
    inside = sum(form(column) for column in q.T)
    values = []
    for _ in range(draws):
        z = signs()
        values.append(form(z - q @ (q.T @ z)))
    error = float(np.std(values, ddof=1)) / math.sqrt(draws)
    estimate = inside + float(np.mean(values))
    facts = {"draws": draws, "sketch": sketch, "seed": seed, **operator.facts()}
    return Trace(estimate=estimate, standard_error=error, **facts)


def density(
    of: Objective | Operator,
    *,
    steps: int = 50,
    repeats: int = 4,
    points: int = 512,
    seed: int = 0,
    progress: Progress = silent,
) -> Density:
    """Return the spectral density by stochastic Lanczos quadrature, with Gaussians as wide as a step's resolution."""
    curvlinops()
    from curvlinops.papyan2020traces.spectrum import fast_lanczos, lanczos_approximate_spectrum_from_iter

    if steps < 2 or repeats < 1:
        raise ValueError(f"steps={steps} and repeats={repeats}; at least 2 steps and 1 repeat are needed")
    matrix = Counted(of, progress, "density", steps * repeats + 1)
    if matrix.is_zero(seed):
        raise ValueError("every eigenvalue is 0: there is no density to draw")
    steps = min(steps, matrix.shape[0])
    devices = [matrix.device] if matrix.device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # curvlinops draws its starts from torch's global generators
        torch.manual_seed(seed)
        runs = [fast_lanczos(matrix, steps) for _ in range(repeats)]  # nodes and eigenvectors of each
    # the outermost nodes converge first: they are the ends of the spectrum, without products of their own
    ends = min(float(nodes.min()) for nodes, _ in runs), max(float(nodes.max()) for nodes, _ in runs)
    smoothed = [lanczos_approximate_spectrum_from_iter(run, ends, points, kappa=3.0, margin=0.05) for run in runs]
    grid, mean = smoothed[0][0].tolist(), torch.stack([share for _, share in smoothed]).mean(0).tolist()
    facts = matrix.facts()
    return Density(grid=tuple(grid), density=tuple(mean), steps=steps, repeats=repeats, seed=seed, **facts)


def plot(spectrum: Density, path: Path | str) -> Path:
    """Plot the density on a logarithmic scale: nearly all eigenvalues are nearly 0, and the few others matter."""
    figure = new_figure()
    axes = figure.add_subplot(
        title=f"Hessian, {spectrum.parameters:,} parameters, {spectrum.data} ({spectrum.samples:,} samples)",
        xlabel="eigenvalue",
        ylabel="density",
        yscale="log",
        ylim=(max(spectrum.density) * 1e-9, max(spectrum.density) * 2),
    )
    axes.plot(spectrum.grid, spectrum.density)
    return save(figure, path)


def _by_arpack(matrix: Counted, k: int, end: End, tolerance: float, seed: int) -> tuple[Array, Array]:
    # scipy.sparse is slow to import
    from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

    dtype = np.float64 if matrix.dtype == torch.float64 else np.float32
    operator = LinearOperator(matrix.shape, matvec=matrix.on_host, dtype=dtype)
    if matrix.is_zero(seed):  # which ARPACK refuses
        return np.zeros(k), np.eye(matrix.shape[0], k)
    try:
        values, vectors = eigsh(operator, k, which=ENDS[end], v0=matrix.start(seed).astype(dtype), tol=tolerance)
    except ArpackNoConvergence as error:
        raise ArithmeticError(
            f"{len(error.eigenvalues)} of {k} eigenvalues reached a tolerance of {tolerance:g} in "
            f"{matrix.products} products; take a larger tolerance, fewer of them, or float64"
        ) from error
    except ArpackError as error:
        raise ArithmeticError(f"the eigenvalues cannot be computed: {error}") from error
    return values, vectors
