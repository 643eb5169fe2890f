"""`mecam predict`, `evaluate`, `serve`, `rerun`, `verify`, `export` and `soup`: runs in use."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mecam.cli._app import command, one_line, warn
from mecam.cli.options import (
    Device,
    EnsembleWith,
    ModelArgument,
    Out,
    Quiet,
    RunArgument,
    RunArguments,
    RunData,
    RunWeights,
    TextOrJson,
    WantedPrecision,
)
from mecam.progress import no_lines, shown

if TYPE_CHECKING:
    from mecam.serving import TrainedModel


def _load(run: Path, others: list[Path] | None, device: str) -> TrainedModel:
    """Load a model, or several as one; warn of a run that has not finished."""
    from mecam.serving import load_ensemble
    from mecam.training.machine import find_machine

    model = load_ensemble([run, *(others or [])], device=find_machine(device).device)
    if model.stopped:
        warn(model.stopped)
    return model


@command(
    "mecam predict model photo.jpg folder-of-photos",
    "mecam predict model photo.jpg --format json",
    "mecam predict model new-place --wanted-precision 0.95",
    "mecam predict RUN folder-of-photos --with OTHER",
)
def predict(
    run: ModelArgument,
    images: Annotated[list[Path], typer.Argument(help="Image files and folders.")],
    format: Annotated[Literal["csv", "json"], typer.Option(help="Output format.")] = "csv",
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Add the probability of every class.")] = False,
    wanted_precision: WantedPrecision = None,
    ensemble: EnsembleWith = None,
    device: Device = "auto",
) -> int:
    """Predict the class of images, with its probability. Unreadable images are reported, with exit code 1.

    For a model of mecam fit, the column novelty is above 1 for an image that is further from the training images than
    95 % of held-out ones. For 10 images or more, a line says whether they look like one of the training domains.
    """
    from mecam.serving import Together, find_images, writer

    model = _load(run, ensemble, device)
    unknown_below = None if wanted_precision is None else model.threshold(wanted_precision)
    unreadable, together = 0, None if model.confidence is None else Together(model.confidence)
    judged = [name for name, there in (("novelty", together), ("unknown", unknown_below)) if there is not None]
    predictions = model.predictions(find_images(images), unknown_below=unknown_below, together=together)
    with writer(format, sys.stdout, model.classes if probabilities else (), judged) as write:
        for prediction in predictions:
            if prediction.error is None:
                write(prediction)
            else:
                unreadable += 1
                warn(prediction.error)
    if together is not None and (verdict := together.verdict()):
        warn(verdict)
    return 1 if unreadable else 0


@command(
    "mecam evaluate model new-place",
    "mecam evaluate model new-place --wrong wrong.csv --out evaluation.html",
    "mecam evaluate model photos.csv --format json",
)
def evaluate(
    model: ModelArgument,
    folder: Annotated[
        Path,
        typer.Argument(
            help="FOLDER/<class>/<image>, FOLDER/<domain>/<class>/<image>, or a CSV file with columns path, label and "
            "optionally domain."
        ),
    ],
    wrong: Annotated[
        Path | None,
        typer.Option(help="CSV file to write: the misclassified images, with the probability of every class."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="HTML page to write, with the images behind each confusion.")] = None,
    format: TextOrJson = "terminal",
    ensemble: EnsembleWith = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> int:
    """Measure the accuracy of a model on labelled images.

    Prints confusions and calibration, too. Classes are matched by name. Unreadable images are reported and not counted,
    with exit code 1.
    """
    from mecam.serving import evaluate

    trained = _load(model, ensemble, device)
    with shown(quiet=quiet, lines=no_lines) as progress:
        evaluation = evaluate(trained, folder, wrong=wrong, out=out, progress=progress)
    for line in (*evaluation.ignored, *evaluation.unreadable, *evaluation.warnings()):
        warn(line)
    print(json.dumps(evaluation.to_dict(), indent=2) if format == "json" else evaluation)
    return 1 if evaluation.unreadable else 0


@command("mecam serve model", "mecam serve model --port 8080 --rate 2")
def serve(
    run: ModelArgument,
    host: Annotated[
        str,
        typer.Option(
            help="Address or name of this machine to listen on; 0.0.0.0 is every network. Anyone who reaches it can "
            "send images."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any free port.")] = 8000,
    megabytes: Annotated[float, typer.Option(help="Refuse larger files.")] = 20,
    megapixels: Annotated[float, typer.Option(help="Refuse images of more pixels.")] = 50,
    rate: Annotated[float, typer.Option(help="Images per second, of all clients together.")] = 20,
    wanted_precision: WantedPrecision = None,
    device: Device = "auto",
) -> None:
    """Predict images over HTTP.

    Serves a page to drop photos on, and JSON at POST /predict with the bytes of an image. Nothing is written to disk.
    Ctrl-C or SIGTERM answers the last requests and stops.
    """
    import signal

    from mecam.serving.server import Limits, address_of, application, listen, serve

    limits = Limits(megabytes, megapixels, rate)
    with listen(host, port) as bound:
        model = _load(run, None, device)
        unknown_below = None if wanted_precision is None else model.threshold(wanted_precision)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # which the server repeats when it has stopped
        print(f"{address_of(bound)} serves {run}; Ctrl-C stops it", flush=True)
        with suppress(KeyboardInterrupt):
            serve(application(model, host=host, limits=limits, unknown_below=unknown_below), bound)


@command("mecam rerun model", "mecam rerun results/RUN --out again")
def rerun(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="Folder for the second run. Default: a temporary folder.")] = None,
    data: RunData = None,
    weights: RunWeights = None,
    device: Device = "auto",
) -> int:
    """Train a run's recipe again and compare every byte. The exit code is 1 if anything differs."""
    from tempfile import TemporaryDirectory

    from mecam.runs import find_run
    from mecam.training.rerun import rerun

    with TemporaryDirectory(prefix="mecam-") as scratch:
        comparison = rerun(find_run(run), out or Path(scratch), device=device, warn=warn, data=data, weights=weights)
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
    run: ModelArgument,
    out: Out = Path("exported"),
    format: Annotated[Literal["onnx", "safetensors"], typer.Option(help="File format.")] = "onnx",
    ensemble: EnsembleWith = None,
) -> None:
    """Export a model to one file, with its preprocessing.

    The outputs of the file are checked. Beside ONNX is also infer.py, a program that predicts with onnxruntime, NumPy
    and Pillow alone.
    """
    from mecam.serving import export

    print(export(_load(run, ensemble, "cpu"), out, form=format))


@command(
    "mecam soup runs --target sketch --out soup",
    "mecam soup runs --out soup",
    "mecam soup RUN --interpolate --out soup",
)
def soup(
    runs: RunArguments,
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("soup"),
    target: Annotated[str | None, typer.Option(help="Take the runs that leave out this domain.")] = None,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Add a run only if source validation does not drop; runs of one seed.")
    ] = False,
    interpolate: Annotated[
        bool,
        typer.Option(
            "--interpolate", help="Move towards the initial weights where source validation is best (WiSE-FT)."
        ),
    ] = False,
    data: RunData = None,
    weights: RunWeights = None,
    device: Device = "auto",
) -> None:
    """Average the weights of several finished runs into one model.

    The runs must share network, data and initial weights, and are not changed. The model is a run: mecam predict,
    evaluate, export and report take it.
    """
    from mecam.benchmark.soup import soup

    made = soup(
        runs, out, target=target, greedy=greedy, interpolate=interpolate, data=data, weights=weights, device=device
    )
    left_out = f", {len(made.left_out)} left out" if made.left_out else ""
    print(f"averaged {len(made.members)} run{'s' if len(made.members) > 1 else ''}{left_out}")
    if interpolate:
        print(f"share of the initial weights: {100 * made.initial_share:.0f} %")
    if made.accuracy is not None:
        accuracies = [100 * accuracy for accuracy in made.members.values() if accuracy is not None]
        print(
            f"accuracy on the domain left out: {100 * made.accuracy:.1f} %; of its runs: {min(accuracies):.1f} to "
            f"{max(accuracies):.1f} %"
        )
    print(f"model: {out}; next: mecam predict {shlex.quote(str(out))} PHOTO.jpg")
