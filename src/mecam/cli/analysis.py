"""`mecam curvature`, `spectrum` and `landscape`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from mecam.cli._app import command
from mecam.cli.options import Device, Images, Out, RunArgument, RunArguments, RunData, Split, TextOrJson
from mecam.progress import no_lines, shown


@command(
    "mecam curvature results --compare paper",
    "mecam curvature results/RUN results/OTHER --plot curvature.svg",
    "mecam curvature model --split validation --exact --double --images 200",
    "mecam curvature model --measure average,trace,gaussnewton --images 200",
)
def curvature(
    runs: RunArguments,
    split: Split = "train",
    radii: Annotated[str, typer.Option(help="Comma-separated radii rho.")] = "0.01,0.05,0.1,0.2,0.5",
    exact: Annotated[bool, typer.Option("--exact", help="Add the largest eigenvalue of the Hessian.")] = False,
    sharpness: Annotated[bool, typer.Option("--sharpness", help="Add ASAM's and first-order sharpness.")] = False,
    measure: Annotated[str | None, typer.Option(help="Further columns, comma-separated: mecam list measures.")] = None,
    images: Images = None,
    double: Annotated[bool, typer.Option("--double", help="Compute in float64.")] = False,
    compare: Annotated[str | None, typer.Option(help="paper: print the published Table 5 below our rows.")] = None,
    per_run: Annotated[bool, typer.Option("--per-run", help="Print one row per run instead of means.")] = False,
    format: TextOrJson = "terminal",
    plot: Annotated[Path | None, typer.Option(help="Figure to write (.png, .svg, .pdf, ...).")] = None,
    data: RunData = None,
    device: Device = "auto",
) -> None:
    """Measure the curvature C of runs (the paper's Table 5).

    Prints C at several radii, over targets and seeds.
    """
    try:
        numbers = [float(radius) for radius in radii.split(",")]
    except ValueError:
        raise ValueError(f"--radii {radii} is not a list of numbers such as 0.05,0.1") from None
    from mecam.analysis.measure import curvature

    with shown(lines=no_lines) as progress:
        curvatures = curvature(
            runs, numbers, split=split, exact=exact, sharpness=sharpness, measure=measure or (), images=images,
            double=double, compare=compare, per_run=per_run, plot=plot, data=data, device=device, progress=progress,
        )  # fmt: skip
    print(json.dumps(curvatures.to_dict(), indent=2) if format == "json" else curvatures.text())


@command("mecam spectrum model --top 5 --density density.svg")
def spectrum(
    run: RunArgument,
    split: Split = "train",
    top: Annotated[int, typer.Option(help="Number of eigenvalues, of largest magnitude.")] = 5,
    draws: Annotated[int, typer.Option(help="Random vectors for the trace estimate.")] = 16,
    sketch: Annotated[int, typer.Option(help="Dimensions in which the trace is exact (Hutch++); 0 for none.")] = 0,
    density: Annotated[Path | None, typer.Option(help="Figure of the spectral density to write (.png, ...).")] = None,
    images: Images = None,
    data: RunData = None,
    device: Device = "auto",
) -> None:
    """Compute eigenvalues, trace and density of the Hessian.

    Prints the eigenvalues of largest magnitude and the trace with its standard error.
    """
    from mecam.analysis.measure import spectrum

    options: dict[str, Any] = {"top": top, "draws": draws, "sketch": sketch, "density": density, "images": images}
    with shown(lines=no_lines) as progress:
        lines = spectrum(run, split=split, data=data, device=device, progress=progress, **options)
    print("\n".join(lines))


@command(
    "mecam landscape results/RUN results/OTHER --out landscapes",
    "mecam landscape model --dimensions 1 --steps 21",
    resumes=True,
)
def landscape(
    runs: RunArguments,
    out: Out = Path("landscape"),
    split: Split = "train",
    directions: Annotated[str, typer.Option(help="random, eigenvectors, or plane (through three runs).")] = "random",
    dimensions: Annotated[int, typer.Option(help="Number of dimensions: 1 or 2.")] = 2,
    steps: Annotated[int, typer.Option(help="Grid points per axis.")] = 51,
    radius: Annotated[float, typer.Option(help="Largest distance from the weights along each axis.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Random seed of the directions, which all runs share.")] = 0,
    images: Images = None,
    data: RunData = None,
    device: Device = "auto",
) -> None:
    """Plot the loss around runs, on one scale.

    Writes PNG, SVG, raw grids, and surfaces for mecam report.
    """
    from mecam.analysis.measure import landscape

    with shown(lines=no_lines) as progress:
        lines = landscape(
            runs, out, split=split, directions=directions, dimensions=dimensions, steps=steps, radius=radius,
            seed=seed, images=images, data=data, device=device, progress=progress,
        )  # fmt: skip
    print("\n".join(lines))
