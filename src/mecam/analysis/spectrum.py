"""Compute outermost eigenvalues, trace and density of the Hessian, from Hessian-vector products alone.

Eigenvalues come from SciPy's ARPACK, the Lanczos quadrature of the density from curvlinops. `largest` needs neither: a
Lanczos iteration on the device that stops as soon as one eigenvalue has converged.
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
from mecam.analysis.hessian import Array, Hessian
from mecam.analysis.objective import Objective
from mecam.progress import Progress, silent

End = Literal["magnitude", "highest", "lowest", "both"]
ENDS: dict[End, str] = {"magnitude": "LM", "highest": "LA", "lowest": "SA", "both": "BE"}  # ARPACK's names


@dataclass(frozen=True, kw_only=True)
class Spectral:
    """What a result was computed from."""

    seed: int
    products: int  # Hessian-vector products; each is a pass over the data
    parameters: int
    data: str
    samples: int
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Eigenvalues(Spectral):
    """Some eigenvalues of the Hessian, in units of the loss over squared weights."""

    values: tuple[float, ...]  # by falling magnitude
    end: End  # of the spectrum
    tolerance: float  # of the residual, relative to the eigenvalue


@dataclass(frozen=True, kw_only=True)
class Trace(Spectral):
    """Hutchinson's estimate of the trace: the mean of zᵀHz over random signs z."""

    estimate: float
    standard_error: float
    draws: int


@dataclass(frozen=True, kw_only=True)
class Density(Spectral):
    """The share of eigenvalues per unit of eigenvalue, smoothed; its integral over the grid is about 1."""

    grid: tuple[float, ...]
    density: tuple[float, ...]
    steps: int  # of Lanczos: peaks that are closer than (highest - lowest) / steps are one
    repeats: int  # random starts averaged over


def eigenvalues(objective: Objective, k: int = 1, **options: Any) -> Eigenvalues:
    """Return the k outermost eigenvalues; the options are those of `eigenpairs`."""
    return eigenpairs(objective, k, **options)[0]


def eigenpairs(
    objective: Objective,
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
    hessian = Hessian(objective, progress, "eigenvalues")
    size = hessian.shape[0]
    if not 1 <= k <= size:
        raise ValueError(f"k={k} is not allowed; it must be 1 to {size}")
    if k == size:  # which ARPACK refuses
        values, vectors = np.linalg.eigh(hessian.dense())
    else:
        values, vectors = _by_arpack(hessian, k, end, tolerance, seed)
    order = np.argsort(-np.abs(values), kind="stable")
    facts = hessian.facts()
    result = Eigenvalues(values=tuple(values[order].tolist()), end=end, tolerance=tolerance, seed=seed, **facts)
    return result, [hessian.split(hessian.from_host(vectors[:, column])) for column in order]


def largest(
    objective: Objective, *, tolerance: float = 1e-2, most: int = 40, seed: int = 0, progress: Progress = silent
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
    hessian = Hessian(objective, progress, "eigenvalue")
    start = hessian.from_host(hessian.start(seed))
    basis = [start / float(start.norm())]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        w = hessian @ basis[-1]
        diagonal.append(float(w @ basis[-1]))
        for _ in range(2):  # twice, for what rounding left
            for q in basis:
                w -= (w @ q) * q
        length = float(w.norm())
        values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
        place = int(np.argmax(np.abs(values)))
        value, residual = float(values[place]), length * abs(float(vectors[-1, place]))
        if residual <= tolerance * abs(value) or len(diagonal) == min(most, hessian.shape[0]):
            reached = max(tolerance, residual / abs(value)) if value else tolerance
            return Eigenvalues(values=(value,), end="magnitude", tolerance=reached, seed=seed, **hessian.facts())
        beside.append(length)
        basis.append(w / length)


def trace(objective: Objective, *, draws: int = 32, seed: int = 0, progress: Progress = silent) -> Trace:
    """Estimate tr H = E zᵀHz, z of independent random signs, with one product per draw."""
    if draws < 2:
        raise ValueError(f"draws={draws} is not allowed; a standard error needs at least 2")
    hessian = Hessian(objective, progress, "trace", draws)
    generator = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(draws):
        signs = torch.randint(0, 2, hessian.shape[:1], generator=generator).mul_(2).sub_(1)
        z = signs.to(hessian.device, hessian.dtype)
        values.append(float((z.double() * (hessian @ z).double()).sum()))
    error = float(np.std(values, ddof=1)) / math.sqrt(draws)
    return Trace(estimate=float(np.mean(values)), standard_error=error, draws=draws, seed=seed, **hessian.facts())


def density(
    objective: Objective,
    *,
    steps: int = 50,
    repeats: int = 4,
    points: int = 512,
    seed: int = 0,
    progress: Progress = silent,
) -> Density:
    """Return the spectral density by stochastic Lanczos quadrature, with Gaussians as wide as a step's resolution."""
    try:
        from curvlinops.papyan2020traces.spectrum import fast_lanczos, lanczos_approximate_spectrum_from_iter
    except Exception as error:  # a broken installation fails in other ways than by ImportError
        raise ImportError(f"a density needs curvlinops (pip install 'mecam[analysis]'): {error}") from error
    if steps < 2 or repeats < 1:
        raise ValueError(f"steps={steps} and repeats={repeats}; at least 2 steps and 1 repeat are needed")
    hessian = Hessian(objective, progress, "density", steps * repeats + 1)
    if hessian.is_zero(seed):
        raise ValueError("every eigenvalue is 0: there is no density to draw")
    steps = min(steps, hessian.shape[0])
    devices = [hessian.device] if hessian.device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # curvlinops draws its starts from torch's global generators
        torch.manual_seed(seed)
        runs = [fast_lanczos(hessian, steps) for _ in range(repeats)]  # nodes and eigenvectors of each
    # the outermost nodes converge first: they are the ends of the spectrum, without products of their own
    ends = min(float(nodes.min()) for nodes, _ in runs), max(float(nodes.max()) for nodes, _ in runs)
    smoothed = [lanczos_approximate_spectrum_from_iter(run, ends, points, kappa=3.0, margin=0.05) for run in runs]
    grid, mean = smoothed[0][0].tolist(), torch.stack([share for _, share in smoothed]).mean(0).tolist()
    facts = hessian.facts()
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


def _by_arpack(hessian: Hessian, k: int, end: End, tolerance: float, seed: int) -> tuple[Array, Array]:
    # scipy.sparse is slow to import
    from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

    dtype = np.float64 if hessian.dtype == torch.float64 else np.float32
    operator = LinearOperator(hessian.shape, matvec=hessian.on_host, dtype=dtype)
    if hessian.is_zero(seed):  # which ARPACK refuses
        return np.zeros(k), np.eye(hessian.shape[0], k)
    try:
        values, vectors = eigsh(operator, k, which=ENDS[end], v0=hessian.start(seed).astype(dtype), tol=tolerance)
    except ArpackNoConvergence as error:
        raise ArithmeticError(
            f"{len(error.eigenvalues)} of {k} eigenvalues reached a tolerance of {tolerance:g} in "
            f"{hessian.products} products; take a larger tolerance, fewer of them, or float64"
        ) from error
    except ArpackError as error:
        raise ArithmeticError(f"the eigenvalues cannot be computed: {error}") from error
    return values, vectors
