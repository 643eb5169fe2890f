"""The command line: a thin face. Words go in, a function of the library runs, lines come out.

Above 400 lines because it is a list: one short function a command, and most of it is the options' help.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mecam import usage

if TYPE_CHECKING:
    from mecam.data.pack import OnError

# what is imported here is what --help waits for; torch is imported by the commands that need it
INTERRUPTED = 130  # 128 + SIGINT, as shells have it

app = typer.Typer(
    name="mecam",
    help=usage.FIRST,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: the same on a terminal and off it, and twice as fast
)
data_app = typer.Typer(
    help="Data sets: what is known, whether yours is complete, packing.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(data_app, name="data")

Out = Annotated[Path, typer.Option(help="Folder for results.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
RunArgument = Annotated[Path, typer.Argument(help="A finished run: its folder, or the --out of mecam train.")]
RunArguments = Annotated[list[Path], typer.Argument(help="Finished runs: their folders.")]
Split = Annotated[str, typer.Option(help="train, validation (of the sources) or target.")]
Images = Annotated[int | None, typer.Option(help="At most so many images, always the same ones.")]
FolderArgument = Annotated[Path, typer.Argument(help="root/<domain>/<class>/<image>")]
SkipUnreadable = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave out images that cannot be read, and name them.")
]


@contextmanager
def spoken_errors(*, resumes: bool = False) -> Iterator[None]:
    """Errors that are the user's to mend come as one line; the others keep their traceback."""
    try:
        from mecam.runs import RunError

        try:
            yield
        except BrokenPipeError:  # the reader of the output has seen enough, which typer knows
            raise
        except (RunError, ValueError, ImportError, OSError) as error:  # those of data and recipes are ValueErrors
            lines = getattr(error, "lines", (error,))  # an error that lists images has a line for each
            print("mecam: " + "\n  ".join(map(_line, lines)), file=sys.stderr)
            raise typer.Exit(2) from error
    except KeyboardInterrupt as error:
        print(f"mecam: interrupted{'; the same command goes on from there' if resumes else ''}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from error


@app.command()
def train(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe in TOML; the options below override it.")] = None,
    data: Annotated[
        str | None, typer.Option(help="shapes, a folder root/<domain>/<class>/<image>, or a benchmark's name.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The domain to leave out; without, all are trained on.")] = None,
    method: Annotated[str | None, typer.Option(help="What gradient to take: mecam list methods.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Where to take it: mecam list optimizers.")] = None,
    averaging: Annotated[str | None, typer.Option(help="Which weights to keep: mecam list averagings.")] = None,
    backbone: Annotated[str | None, typer.Option(help="The network: mecam list backbones.")] = None,
    weights: Annotated[Path | None, typer.Option(help="A checkpoint for the backbone.")] = None,
    pretrained: Annotated[
        bool | None,
        typer.Option("--pretrained/--no-pretrained", help="Start from the weights that come with the backbone."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of splits, weights and batches.")] = None,
    compile: Annotated[bool | None, typer.Option("--compile/--no-compile", help="Use torch.compile.")] = None,
    deterministic: Annotated[
        bool | None,
        typer.Option("--deterministic/--no-deterministic", help="The same bits in every repetition, on a GPU too."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any entry of mecam list recipe: --set lr=3e-5 --set optimizer_settings.rho=0.1"),
    ] = None,
    out: Out = Path("runs"),
    device: Device = "auto",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
    skip_unreadable: SkipUnreadable = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Train one model. The same command on the same --out goes on with an unfinished run."""
    with spoken_errors(resumes=True):
        from mecam.training import command

        given = {
            "data": data, "target": target, "method": method, "optimizer": optimizer, "averaging": averaging,
            "backbone": backbone, "weights": None if weights is None else str(weights), "pretrained": pretrained,
            "steps": steps, "seed": seed, "compile": compile, "deterministic": deterministic,
        }  # fmt: skip
        code = command.run(
            command.recipe(recipe, given, set_ or []), out, device=device, tensorboard=tensorboard,
            skip_unreadable=skip_unreadable, quiet=quiet,
        )  # fmt: skip
    raise typer.Exit(code)


@app.command()
def bench(
    experiment: Annotated[Path | None, typer.Argument(help="An experiment in TOML; the options override it.")] = None,
    data: Annotated[str | None, typer.Option(help="Data sets, separated by commas; shapes if nothing is said.")] = None,
    target: Annotated[str | None, typer.Option(help="Domains to leave out in turn, or all (the default).")] = None,
    method: Annotated[str | None, typer.Option(help="Methods, separated by commas, or all.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Optimizers, separated by commas.")] = None,
    averaging: Annotated[str | None, typer.Option(help="Averagings, separated by commas.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Backbones, separated by commas.")] = None,
    steps: Annotated[str | None, typer.Option(help="Training steps; several give runs of several lengths.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Trials, separated by commas; 0,1,2 if nothing is said.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any recipe entry; a list sweeps it: --set lr=[1e-5,3e-5]")
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="The experiment's small version on the embedded set.")] = False,
    draws: Annotated[int, typer.Option(help="Random hyperparameter draws of each run; the first is the defaults.")] = 1,
    grid: Annotated[
        str, typer.Option(help="none, paper (192 points of MeCAM) or ordered (the 120, beta <= alpha).")
    ] = "none",
    out: Out = Path("bench"),
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Runs at a time on this machine.")] = None,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; without, Ray starts here.")] = None,
    cpus: Annotated[float, typer.Option(help="Of a run on Ray.")] = 1,
    gpus: Annotated[float, typer.Option(help="Of a run on Ray; 0.5 lets two share one.")] = 0,
    shared: Annotated[
        bool, typer.Option("--shared", help="All of Ray's nodes see --out: a lost run goes on from its checkpoint.")
    ] = False,
    device: Device = "auto",
    skip_unreadable: SkipUnreadable = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and for how long.")] = False,
) -> None:
    """Run every combination, each domain in turn left out. The same command goes on where it was stopped."""
    with spoken_errors(resumes=True):
        from mecam.benchmark import command

        given = {
            "data": data, "target": target, "method": method, "optimizer": optimizer, "averaging": averaging,
            "backbone": backbone, "steps": steps, "seed": seeds,
        }  # fmt: skip
        on_error: OnError = "skip" if skip_unreadable else "refuse"
        recipes = command.recipes(experiment, given, set_ or [], small=small, draws=draws, grid=grid, on_error=on_error)
        chosen = command.make_engine(
            engine, workers=workers, device=device, address=address, cpus=cpus, gpus=gpus, shared=shared,
            on_error=on_error,
        )  # fmt: skip
        if skip_unreadable:
            command.name_left_out(recipes)
        if dry_run:
            print("\n".join(command.forecast(recipes, out, device, on_error=on_error)))
            return
        code = command.run(recipes, out, chosen)
    raise typer.Exit(code)


@app.command()
def table(
    out: Annotated[Path, typer.Argument(help="The --out of mecam bench.")],
    format: Annotated[str, typer.Option(help="terminal, markdown, latex, csv or json.")] = "terminal",
    spread: Annotated[str, typer.Option(help="Over trials: stderr, std, or interval (95 %).")] = "stderr",
    select: Annotated[
        str, typer.Option(help="Among hyperparameters, by source validation: none, shared (by all targets), target.")
    ] = "none",
    baseline: Annotated[str | None, typer.Option(help="A row to take paired differences to, such as adam.")] = None,
    compare: Annotated[str | None, typer.Option(help="paper: the published cells below ours.")] = None,
    experiment: Annotated[Path | None, typer.Option(help="Only the runs of this experiment, in TOML.")] = None,
    small: Annotated[bool, typer.Option("--small", help="Of its small version.")] = False,
) -> None:
    """Accuracies on unseen domains, with spread, ranks and paired differences."""
    with spoken_errors():
        from mecam.benchmark import command

        only = None if experiment is None else command.recipes(experiment, {}, small=small)
        text, problems = command.table(
            out, form=format, spread=spread, select=select, baseline=baseline, compare=compare, only=only
        )
        for problem in problems:
            print(f"mecam: {_line(problem)}", file=sys.stderr)
        print(text)


@app.command()
def report(
    out: Annotated[Path, typer.Argument(help="The --out of mecam bench.")],
    file: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
) -> None:
    """One self-contained web page: leaderboard, curves, mistakes, and the recipe behind every number."""
    with spoken_errors():
        from mecam.report import write

        print(write(out, file, tell=lambda note: print(f"mecam: {_line(note)}", file=sys.stderr)))


@app.command()
def figures(
    results: Annotated[Path, typer.Argument(help="The --out of mecam bench.")],
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("figures"),
) -> None:
    """The paper's figures from your runs, as PNG and SVG; for each that is left out, the command that it needs."""
    with spoken_errors():
        from mecam.figures import write

        for figure in write(results, out, tell=lambda note: print(f"mecam: {_line(note)}", file=sys.stderr)):
            print(figure.line())


@app.command()
def curvature(
    runs: RunArguments,
    split: Split = "train",
    radii: Annotated[str, typer.Option(help="rho, separated by commas.")] = "0.01,0.05,0.1,0.2,0.5",
    exact: Annotated[bool, typer.Option("--exact", help="Also the largest eigenvalue of the Hessian.")] = False,
    sharpness: Annotated[bool, typer.Option("--sharpness", help="Also ASAM's and first-order sharpness.")] = False,
    images: Images = None,
    double: Annotated[bool, typer.Option("--double", help="In float64.")] = False,
    format: Annotated[str, typer.Option(help="terminal or json.")] = "terminal",
    plot: Annotated[Path | None, typer.Option(help="A figure to write: .png, .svg, .pdf, ...")] = None,
    device: Device = "auto",
) -> None:
    """The paper's Table 5 for any runs: C at several radii, with all that goes into it beside it."""
    with spoken_errors():
        from mecam.analysis import command

        print(command.curvature(
            runs, split=split, radii=radii, exact=exact, sharpness=sharpness, images=images, double=double,
            form=format, plot=plot, device=device,
        ))  # fmt: skip


@app.command()
def spectrum(
    run: RunArgument,
    split: Split = "train",
    top: Annotated[int, typer.Option(help="Eigenvalues of the largest magnitude.")] = 5,
    draws: Annotated[int, typer.Option(help="Random vectors behind the trace.")] = 16,
    density: Annotated[Path | None, typer.Option(help="A figure of the spectral density to write: .png, ...")] = None,
    images: Images = None,
    device: Device = "auto",
) -> None:
    """The Hessian of a run: its largest eigenvalues, its trace with a standard error, its spectral density."""
    with spoken_errors():
        from mecam.analysis import command

        print(command.spectrum(run, split=split, top=top, draws=draws, density=density, images=images, device=device))


@app.command()
def landscape(
    runs: RunArguments,
    out: Out = Path("landscape"),
    split: Split = "train",
    directions: Annotated[str, typer.Option(help="random, eigenvectors, or plane (through three runs).")] = "random",
    dimensions: Annotated[int, typer.Option(help="1 or 2.")] = 2,
    steps: Annotated[int, typer.Option(help="Points along an axis.")] = 51,
    radius: Annotated[float, typer.Option(help="How far to go.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the random directions, the same for all runs.")] = 0,
    images: Images = None,
    device: Device = "auto",
) -> None:
    """The loss around runs, side by side on one scale: PNG, SVG, raw grids, and surfaces for the page."""
    with spoken_errors(resumes=True):
        from mecam.analysis import command

        print("\n".join(command.landscape(
            runs, out, split=split, directions=directions, dimensions=dimensions, steps=steps, radius=radius,
            seed=seed, images=images, device=device,
        )))  # fmt: skip


@app.command()
def predict(
    run: RunArgument,
    images: Annotated[list[Path], typer.Argument(help="Image files, and folders of them.")],
    format: Annotated[str, typer.Option(help="csv or json.")] = "csv",
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Also of every class.")] = False,
    device: Device = "auto",
) -> None:
    """Class and probability for images. One that cannot be read is named, and the exit code is 1 then."""
    with spoken_errors():
        from mecam.serving import check_form, find_images, load_model, writer
        from mecam.training.machine import find_machine

        check_form(format)
        model = load_model(run, device=find_machine(device).device)
        unreadable = 0
        with writer(format, sys.stdout, model.classes if probabilities else ()) as write:
            for found in model.predictions(find_images(images)):
                if found.error is None:
                    write.row(found)
                else:
                    unreadable += 1
                    print(f"mecam: {_line(found.error)}", file=sys.stderr)
    if unreadable:
        raise typer.Exit(1)


@app.command()
def rerun(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="Folder for the second run; without, it is not kept.")] = None,
    device: Device = "auto",
) -> None:
    """Repeat a run from its own recipe and compare the two byte by byte. The exit code is 1 if anything differs."""
    with spoken_errors():
        from tempfile import TemporaryDirectory

        from mecam.serving import find_run
        from mecam.training.command import say
        from mecam.training.rerun import rerun as repeat

        with TemporaryDirectory(prefix="mecam-") as scratch:
            found = repeat(find_run(run), out or Path(scratch), device=device, warn=say)
            print("\n".join(found.lines()))
    raise typer.Exit(0 if found.is_same else 1)


@app.command()
def verify(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or the --out of mecam train or bench.")],
) -> None:
    """Check every file of runs against its checksum. Damaged ones are named, and the exit code is 1 then."""
    with spoken_errors():
        from mecam.runs.verify import verify as check

        whole, damaged = check(runs)
        counts = f"runs as they were written: {whole}, damaged: {len(damaged)}"
        print("\n".join([*map(_line, damaged), counts]))
    raise typer.Exit(1 if damaged else 0)


@app.command()
def export(
    run: RunArgument,
    out: Out = Path("exported"),
    format: Annotated[str, typer.Option(help="onnx or safetensors.")] = "onnx",
) -> None:
    """The model as one file for other programs. It is checked by running it; its preprocessing lies beside it."""
    with spoken_errors():
        from mecam.serving import export as write
        from mecam.serving import load_model

        print(write(load_model(run), out, form=format))


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(help="methods, optimizers, averagings, virtual, backbones, data, recipe; all if left out."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="With every hyperparameter, size and source.")] = False,
) -> None:
    """What there is to choose from."""
    with spoken_errors():
        from mecam.listing import lines

        print("\n".join(lines(kind, verbose=verbose)))


@app.command()
def doctor() -> None:
    """What this machine has, and which parts of mecam work on it."""
    with spoken_errors():
        from mecam.doctor import health

        print("\n".join(health()))


@data_app.command(name="list")
def data_list() -> None:
    """The data sets known by name, and where to get them."""
    with spoken_errors():
        from mecam.listing import lines

        print("\n".join(lines("data", verbose=True)))


@data_app.command(name="check")
def data_check(
    folder: FolderArgument,
    name: Annotated[
        str | None, typer.Option(help="The benchmark it should be; without, the one that the folder is called after.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Threads that decode.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Say what is in a folder of yours and what is wrong with it; every image is decoded.

    Of a benchmark (by --name, or by the folder's name): what is missing or extra. Of a store: whether every byte is as
    it was packed. The exit code is 1 if something is wrong.
    """
    with spoken_errors():
        from mecam.data.folder import scan
        from mecam.data.inventory import Inventory
        from mecam.data.known import check, find, is_known
        from mecam.data.pack import unreadable
        from mecam.data.store import Store, is_store
        from mecam.training.watch import packing

        if is_store(folder):
            store = Store(folder)
            store.verify()
            print(f"{folder}: {len(store)} images, all as they were packed")
            return
        found = scan(folder, missing_classes="allow")
        if name is None and not is_known(found.name):
            with packing(quiet=quiet) as progress:
                inventory = Inventory(found, unreadable(found, workers=workers, progress=progress))
            inventory.show()
            raise typer.Exit(0 if inventory.fine else 1)
        findings = check(found, find(name or found.name))
        print("\n".join(findings.lines() or [f"{folder} is a complete {findings.known}"]))
    raise typer.Exit(0 if findings.complete else 1)


@data_app.command(name="pack")
def data_pack(
    folder: FolderArgument,
    out: Annotated[Path, typer.Option(help="The store to write.")],
    mode: Annotated[str, typer.Option(help="auto, decoded or encoded.")] = "auto",
    workers: Annotated[int | None, typer.Option(help="Threads that decode.")] = None,
    side: Annotated[int, typer.Option(help="Pixels per side of images that are larger, or differ in size.")] = 320,
    skip_unreadable: SkipUnreadable = False,
    allow_missing_classes: Annotated[
        bool, typer.Option("--allow-missing-classes", help="A domain may lack classes that another one has.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Decode a folder once into a memory-mapped store, which --data takes in the folder's place."""
    with spoken_errors(resumes=True):
        from mecam.data.folder import scan
        from mecam.data.pack import pack
        from mecam.training.command import name_left_out
        from mecam.training.watch import packing

        with packing(quiet=quiet) as progress:
            on_error = "skip" if skip_unreadable else "refuse"
            found = scan(folder, missing_classes="allow" if allow_missing_classes else "error")
            options = {"mode": mode, "workers": workers, "side": side, "on_error": on_error}
            store = pack(found, out, progress=progress, **options)  # type: ignore[arg-type]
        name_left_out(store)
        print(f"{out}: {len(store)} images")


def _line(error: object) -> str:
    """Messages of other libraries may have several lines."""
    return " ".join(str(error).split())


for _app, _before in ((app, ""), (data_app, "data ")):
    for _command in _app.registered_commands:
        _command.epilog = usage.epilog(f"{_before}{_command.name or getattr(_command.callback, '__name__', '')}")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
