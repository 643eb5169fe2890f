"""`mecam predict`, `rerun`, `verify` and `export`: finished runs in use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mecam.cli._app import command, one_line, warn
from mecam.cli.options import Device, Out, RunArgument


@command("mecam predict model photo.jpg folder-of-photos", "mecam predict model photo.jpg --format json")
def predict(
    run: RunArgument,
    images: Annotated[list[Path], typer.Argument(help="Image files and folders.")],
    format: Annotated[str, typer.Option(help="Output format: csv or json.")] = "csv",
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Add the probability of every class.")] = False,
    device: Device = "auto",
) -> int:
    """Predict the class of images, with its probability. Unreadable images are reported, with exit code 1."""
    from mecam.serving import check_form, find_images, load_model, writer
    from mecam.training.machine import find_machine

    check_form(format)
    model = load_model(run, device=find_machine(device).device)
    unreadable = 0
    with writer(format, sys.stdout, model.classes if probabilities else ()) as write:
        for prediction in model.predictions(find_images(images)):
            if prediction.error is None:
                write(prediction)
            else:
                unreadable += 1
                warn(prediction.error)
    return 1 if unreadable else 0


@command("mecam rerun model", "mecam rerun results/RUN --out again")
def rerun(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="Folder for the second run. Default: a temporary folder.")] = None,
    device: Device = "auto",
) -> int:
    """Train a run's recipe again and compare the results byte by byte. The exit code is 1 if anything differs."""
    from tempfile import TemporaryDirectory

    from mecam.serving import find_run
    from mecam.training.rerun import rerun

    with TemporaryDirectory(prefix="mecam-") as scratch:
        comparison = rerun(find_run(run), out or Path(scratch), device=device, warn=warn)
        print("\n".join(comparison.lines()))
    return 0 if comparison.is_same else 1


@command("mecam verify results")
def verify(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or the --out of mecam train or mecam bench.")],
) -> int:
    """Check every file of runs against its checksum. Damaged files are reported, with exit code 1."""
    from mecam.runs.find import verify

    intact, damaged = verify(runs)
    print("\n".join([*map(one_line, damaged), f"intact runs: {intact}, damaged: {len(damaged)}"]))
    return 1 if damaged else 0


@command("mecam export model --out exported", "mecam export model --format safetensors")
def export(
    run: RunArgument,
    out: Out = Path("exported"),
    format: Annotated[str, typer.Option(help="File format: onnx or safetensors.")] = "onnx",
) -> None:
    """Export a model to one file, check its outputs, and write its preprocessing beside it."""
    from mecam.serving import export, load_model

    print(export(load_model(run), out, form=format))
