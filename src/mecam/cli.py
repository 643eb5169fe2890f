"""The command line: a thin face. Words go in, a function of the library runs, lines come out."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:  # imported where used: --help must not wait for torch
    pass

app = typer.Typer(
    name="mecam",
    help="Train image classifiers that hold up in domains they have never seen.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data sets: what is known, whether yours is complete, packing.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Out = Annotated[Path, typer.Option(help="Folder for results.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Data = Annotated[
    str | None, typer.Option(help="shapes, a folder root/<domain>/<class>/<image>, or a benchmark's name.")
]


@contextmanager
def spoken_errors() -> Iterator[None]:
    """Errors that are the user's to mend come as one line; the others keep their traceback."""
    from mecam.data.domains import DataError
    from mecam.recipe import RecipeError
    from mecam.runs import RunError

    try:
        yield
    except (DataError, RecipeError, RunError, ValueError, ImportError) as error:
        print(f"mecam: {error}", file=sys.stderr)
        raise typer.Exit(2) from error


@app.command()
def train(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe in TOML; the options below override it.")] = None,
    data: Data = None,
    target: Annotated[str | None, typer.Option(help="The domain to leave out; without, all are trained on.")] = None,
    method: Annotated[str | None, typer.Option(help="What gradient to take: mecam list methods.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Where to take it: mecam list optimizers.")] = None,
    averaging: Annotated[str | None, typer.Option(help="Which weights to keep: none, ema, swad.")] = None,
    backbone: Annotated[str | None, typer.Option(help="The network: mecam list backbones.")] = None,
    weights: Annotated[Path | None, typer.Option(help="A checkpoint for the backbone.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of splits, weights and batches.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any recipe entry: --set lr=3e-5 --set optimizer_settings.rho=0.1")
    ] = None,
    out: Out = Path("runs"),
    device: Device = "auto",
    tensorboard: Annotated[bool, typer.Option(help="Also write TensorBoard events.")] = False,
    quiet: Annotated[bool, typer.Option(help="No progress bar.")] = False,
) -> None:
    """Train one model. The same command on the same --out goes on with an unfinished run."""
    with spoken_errors():
        from mecam import recipe as recipes
        from mecam.runs import RunFolder
        from mecam.training import Interrupted
        from mecam.training import train as run
        from mecam.training.watch import watching

        values: dict[str, Any] = {} if recipe is None else recipes.read(recipe)
        given = {
            "data": data, "target": target, "method": method, "optimizer": optimizer, "averaging": averaging,
            "backbone": backbone, "weights": None if weights is None else str(weights), "steps": steps, "seed": seed,
        }  # fmt: skip
        values |= {name: value for name, value in given.items() if value is not None}
        for assignment in set_ or []:
            recipes.assign(values, assignment)
        chosen = recipes.make(values)
        recipes.refuse_other_runs(chosen, out)
        folder = RunFolder(out / chosen.run_id)
        if folder.is_done():
            print(f"{folder.path} is finished already")
            return
        try:
            with watching(chosen, folder.path if tensorboard else None, quiet=quiet) as watch:
                run(chosen, out, device=device, watch=watch)
        except Interrupted as stop:
            print(f"mecam: {stop}. The same command goes on with it.", file=sys.stderr)
            raise typer.Exit(128 + stop.signal_number) from stop
        result = folder.read_result()
        accuracy = result["target_accuracy"]
        if accuracy is not None:
            print(f"accuracy on {chosen.target}, which was not trained on: {100 * accuracy:.1f} %")
        print(folder.path)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    format: Annotated[str, typer.Option(help="csv or json.")] = "csv",
    device: Device = "cpu",
) -> None:
    """Class and probability for images."""
    with spoken_errors():
        from mecam.serving import load_model

        if format not in ("csv", "json"):
            raise ValueError(f"format {format!r} is not known; csv and json are")
        model = load_model(run, device=device)
        rows = []
        for image in images:
            found = model.probabilities(image)
            best = int(found.argmax())
            rows.append(
                {"image": str(image), "class": model.classes[best], "probability": round(float(found[best]), 6)}
            )
        if format == "json":
            print(json.dumps(rows, indent=2))
        else:
            writer = csv.DictWriter(sys.stdout, ["image", "class", "probability"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    out: Out = Path("exported"),
    format: Annotated[str, typer.Option(help="onnx or safetensors.")] = "onnx",
) -> None:
    """The model as one file for other programs, checked, with its preprocessing beside it."""
    with spoken_errors():
        from mecam.serving import ExportError, load_model
        from mecam.serving import export as write

        try:
            print(write(load_model(run), out, form=format))
        except ExportError as error:
            raise ValueError(str(error)) from error


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None, typer.Argument(help="methods, optimizers, averagings, backbones, data; all if left out.")
    ] = None,
    verbose: Annotated[bool, typer.Option(help="With every hyperparameter.")] = False,
) -> None:
    """What there is to choose from."""
    with spoken_errors():
        from mecam.listing import lines

        print("\n".join(lines(kind, verbose=verbose)))


@app.command()
def doctor() -> None:
    """What this machine has, and what of mecam's optional parts works on it."""
    from mecam.listing import health

    print("\n".join(health()))


@data_app.command(name="list")
def data_list() -> None:
    """The data sets known by name, and where to get them."""
    from mecam.listing import lines

    print("\n".join(lines("data", verbose=True)))


@data_app.command(name="check")
def data_check(
    folder: Annotated[Path, typer.Argument(help="root/<domain>/<class>/<image>")],
    name: Annotated[
        str | None, typer.Option(help="The benchmark it should be; by the folder's name if left out.")
    ] = None,
) -> None:
    """Say exactly what is missing or extra."""
    with spoken_errors():
        from mecam.data.folder import scan
        from mecam.data.known import check, find

        findings = check(scan(folder, missing_classes="allow"), find(name or folder.resolve().name))
        print("\n".join(findings.lines()))
        raise typer.Exit(0 if findings.complete else 1)


@data_app.command(name="pack")
def data_pack(
    folder: Annotated[Path, typer.Argument(help="root/<domain>/<class>/<image>")],
    out: Annotated[Path, typer.Option(help="The store to write.")],
    mode: Annotated[str, typer.Option(help="auto, decoded or encoded.")] = "auto",
    workers: Annotated[int | None, typer.Option(help="Threads that decode.")] = None,
    skip_unreadable: Annotated[bool, typer.Option(help="Leave out images that cannot be read, and name them.")] = False,
) -> None:
    """Decode a folder once into a memory-mapped store."""
    with spoken_errors():
        from mecam.data.folder import scan
        from mecam.data.pack import pack
        from mecam.training.watch import packing

        with packing() as progress:
            on_error = "skip" if skip_unreadable else "refuse"
            store = pack(scan(folder), out, mode=mode, workers=workers, on_error=on_error, progress=progress)  # type: ignore[arg-type]
        for skipped in store.skipped:
            print(f"left out: {skipped.name}: {skipped.reason}", file=sys.stderr)
        print(f"{out}: {len(store)} images")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
