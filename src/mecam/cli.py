"""The command line: each command parses its options, calls a function of the library and prints the result.

Above 400 lines because it is a list: one short function per command, and most of it is the options' help.
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
data_app = typer.Typer(help="List, check and pack data sets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")

Out = Annotated[Path, typer.Option(help="Output folder.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
RunArgument = Annotated[Path, typer.Argument(help="Folder of a finished run, or the --out of mecam train.")]
RunArguments = Annotated[list[Path], typer.Argument(help="Finished runs, or folders of runs (--out of mecam bench).")]
Split = Annotated[str, typer.Option(help="Images to use: train, validation (held-out source images) or target.")]
Images = Annotated[int | None, typer.Option(help="Use a fixed subset of at most N images.")]
FolderArgument = Annotated[Path, typer.Argument(help="A folder root/<domain>/<class>/<image>.")]
SkipUnreadable = Annotated[bool, typer.Option("--skip-unreadable", help="Skip unreadable images and report them.")]


@contextmanager
def spoken_errors(*, resumes: bool = False) -> Iterator[None]:
    """Print errors that the user can fix as one line; others keep their traceback."""
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
        print(f"mecam: interrupted{'; the same command resumes' if resumes else ''}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from error


@app.command()
def train(
    recipe: Annotated[Path | None, typer.Argument(help="A TOML recipe; the options below override it.")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="shapes (default), a folder root/<domain>/<class>/<image>, or a data set of mecam data list."
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Domain to leave out. Default: train on all domains.")] = None,
    method: Annotated[str | None, typer.Option(help="Training objective: mecam list methods.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Optimizer: mecam list optimizers.")] = None,
    averaging: Annotated[str | None, typer.Option(help="Weight averaging: mecam list averagings.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Network: mecam list backbones.")] = None,
    profile: Annotated[str | None, typer.Option(help="Default settings: mecam list profiles.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Checkpoint to initialize the backbone from.")] = None,
    pretrained: Annotated[
        bool | None,
        typer.Option("--pretrained/--no-pretrained", help="Start from the backbone's pretrained weights."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of splits, weights and batches.")] = None,
    compile: Annotated[bool | None, typer.Option("--compile/--no-compile", help="Use torch.compile.")] = None,
    deterministic: Annotated[
        bool | None,
        typer.Option("--deterministic/--no-deterministic", help="Make runs on a GPU reproducible bit for bit."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Set any recipe entry (mecam list recipe): --set lr=3e-5 --set optimizer_settings.eps=1e-6"
        ),
    ] = None,
    out: Out = Path("runs"),
    device: Device = "auto",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
    skip_unreadable: SkipUnreadable = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print progress.")] = False,
) -> None:
    """Train one model. The same command resumes an unfinished run."""
    with spoken_errors(resumes=True):
        from mecam.training import command

        given = {
            "data": data, "target": target, "method": method, "optimizer": optimizer, "averaging": averaging,
            "backbone": backbone, "profile": profile, "weights": None if weights is None else str(weights),
            "pretrained": pretrained, "steps": steps, "seed": seed, "compile": compile, "deterministic": deterministic,
        }  # fmt: skip
        code = command.run(
            command.recipe(recipe, given, set_ or []), out, device=device, tensorboard=tensorboard,
            skip_unreadable=skip_unreadable, quiet=quiet,
        )  # fmt: skip
    raise typer.Exit(code)


@app.command()
def bench(
    experiment: Annotated[Path | None, typer.Argument(help="A TOML experiment; the options below override it.")] = None,
    data: Annotated[str | None, typer.Option(help="Comma-separated data sets. Default: shapes.")] = None,
    target: Annotated[str | None, typer.Option(help="Comma-separated domains to leave out. Default: all.")] = None,
    method: Annotated[str | None, typer.Option(help="Comma-separated methods, or all.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Comma-separated optimizers.")] = None,
    averaging: Annotated[str | None, typer.Option(help="Comma-separated averagings.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Comma-separated backbones.")] = None,
    profile: Annotated[str | None, typer.Option(help="Default settings: mecam list profiles.")] = None,
    steps: Annotated[str | None, typer.Option(help="Comma-separated numbers of training steps.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated random seeds. Default: 0,1,2.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Set any recipe entry; a list sweeps it: --set lr=[1e-5,3e-5]")
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="Run its small version on the embedded data set.")] = False,
    draws: Annotated[int, typer.Option(help="Random hyperparameter draws per run; the first is the defaults.")] = 1,
    grid: Annotated[
        str,
        typer.Option(help="Hyperparameter grid of MeCAM: none, paper (192 points) or ordered (120, beta <= alpha)."),
    ] = "none",
    out: Out = Path("bench"),
    engine: Annotated[str, typer.Option(help="Where to run: local or ray.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Parallel runs (local).")] = None,
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster. Default: start Ray here.")] = None,
    cpus: Annotated[float, typer.Option(help="CPUs reserved per run (Ray).")] = 1,
    gpus: Annotated[float, typer.Option(help="GPUs reserved per run (Ray); 0.5 lets two runs share one.")] = 0,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared", help="--out is a file system shared by all Ray nodes: lost runs resume from checkpoints."
        ),
    ] = False,
    device: Device = "auto",
    skip_unreadable: SkipUnreadable = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and their estimated time.")] = False,
) -> None:
    """Train every combination with each domain left out in turn. The same command resumes unfinished runs."""
    with spoken_errors(resumes=True):
        from mecam.benchmark import command

        given = {
            "data": data, "target": target, "method": method, "optimizer": optimizer, "averaging": averaging,
            "backbone": backbone, "profile": profile, "steps": steps, "seed": seeds,
        }  # fmt: skip
        on_error: OnError = "skip" if skip_unreadable else "refuse"
        recipes = command.recipes(
            experiment, given, set_ or [], small=small, draws=draws, grid=grid, on_error=on_error, absent=dry_run
        )
        chosen = command.make_engine(
            engine, workers=workers, device=device, address=address, cpus=cpus, gpus=gpus, shared=shared,
            on_error=on_error,
        )  # fmt: skip
        if dry_run:
            print("\n".join(command.forecast(recipes, out, device, on_error=on_error)))
            return
        if skip_unreadable:
            command.name_left_out(recipes)
        code = command.run(recipes, out, chosen)
    raise typer.Exit(code)


@app.command()
def table(
    out: Annotated[Path, typer.Argument(help="The --out of mecam bench.")],
    format: Annotated[str, typer.Option(help="Output format: terminal, markdown, latex, csv or json.")] = "terminal",
    spread: Annotated[str, typer.Option(help="Spread over seeds: stderr, std or interval (95 %).")] = "stderr",
    select: Annotated[
        str,
        typer.Option(
            help="Choose hyperparameters by source validation: none, shared (one choice for all targets) or target."
        ),
    ] = "none",
    baseline: Annotated[str | None, typer.Option(help="Row to compute paired differences to, such as adam.")] = None,
    compare: Annotated[str | None, typer.Option(help="paper: print the published numbers below ours.")] = None,
    experiment: Annotated[Path | None, typer.Option(help="Show only the runs of this TOML experiment.")] = None,
    small: Annotated[bool, typer.Option("--small", help="Use the experiment's small version.")] = False,
) -> None:
    """Print accuracies on unseen domains, with spread, ranks and paired differences."""
    with spoken_errors():
        from mecam.benchmark import command

        only = None if experiment is None else command.recipes(experiment, {}, small=small, absent=True)
        text, problems = command.table(
            out, form=format, spread=spread, select=select, baseline=baseline, compare=compare, only=only
        )
        for problem in problems:
            print(f"mecam: {_line(problem)}", file=sys.stderr)
        print(text)


@app.command()
def report(
    out: Annotated[Path, typer.Argument(help="The --out of mecam bench.")],
    file: Annotated[Path, typer.Option("--out", help="HTML file to write.")] = Path("report.html"),
) -> None:
    """Write a self-contained web page: leaderboard, curves, mistakes, and the recipe behind every number."""
    with spoken_errors():
        from mecam.report import write

        print(write(out, file, tell=lambda note: print(f"mecam: {_line(note)}", file=sys.stderr)))


@app.command()
def figures(
    results: Annotated[Path, typer.Argument(help="The --out of mecam bench.")],
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("figures"),
) -> None:
    """Draw the paper's figures from finished runs as PNG and SVG.

    Figure 4 needs `mecam landscape` first. For each figure that is left out, the command it needs is printed.
    """
    with spoken_errors():
        from mecam.figures import write

        for figure in write(results, out, tell=lambda note: print(f"mecam: {_line(note)}", file=sys.stderr)):
            print(figure.line())


@app.command()
def curvature(
    runs: RunArguments,
    split: Split = "train",
    radii: Annotated[str, typer.Option(help="Comma-separated radii rho.")] = "0.01,0.05,0.1,0.2,0.5",
    exact: Annotated[bool, typer.Option("--exact", help="Add the largest eigenvalue of the Hessian.")] = False,
    sharpness: Annotated[bool, typer.Option("--sharpness", help="Add ASAM's and first-order sharpness.")] = False,
    images: Images = None,
    double: Annotated[bool, typer.Option("--double", help="Compute in float64.")] = False,
    compare: Annotated[str | None, typer.Option(help="paper: print the published Table 5 below our rows.")] = None,
    per_run: Annotated[bool, typer.Option("--per-run", help="Print one row per run instead of means.")] = False,
    format: Annotated[str, typer.Option(help="Output format: terminal or json.")] = "terminal",
    plot: Annotated[Path | None, typer.Option(help="Figure to write (.png, .svg, .pdf, ...).")] = None,
    device: Device = "auto",
) -> None:
    """Measure the curvature C of runs at several radii, over targets and seeds (the paper's Table 5)."""
    with spoken_errors():
        from mecam.analysis import command

        print(command.curvature(
            runs, split=split, radii=radii, exact=exact, sharpness=sharpness, images=images, double=double,
            compare=compare, per_run=per_run, form=format, plot=plot, device=device,
        ))  # fmt: skip


@app.command()
def spectrum(
    run: RunArgument,
    split: Split = "train",
    top: Annotated[int, typer.Option(help="Number of eigenvalues, of largest magnitude.")] = 5,
    draws: Annotated[int, typer.Option(help="Random vectors for the trace estimate.")] = 16,
    density: Annotated[Path | None, typer.Option(help="Figure of the spectral density to write (.png, ...).")] = None,
    images: Images = None,
    device: Device = "auto",
) -> None:
    """Compute the Hessian's largest eigenvalues, its trace with standard error, and its spectral density."""
    with spoken_errors():
        from mecam.analysis import command

        print(command.spectrum(run, split=split, top=top, draws=draws, density=density, images=images, device=device))


@app.command()
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
    device: Device = "auto",
) -> None:
    """Plot the loss around runs on one scale: PNG, SVG, raw grids, and surfaces for mecam report."""
    with spoken_errors(resumes=True):
        from mecam.analysis import command

        print("\n".join(command.landscape(
            runs, out, split=split, directions=directions, dimensions=dimensions, steps=steps, radius=radius,
            seed=seed, images=images, device=device,
        )))  # fmt: skip


@app.command()
def predict(
    run: RunArgument,
    images: Annotated[list[Path], typer.Argument(help="Image files and folders.")],
    format: Annotated[str, typer.Option(help="Output format: csv or json.")] = "csv",
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Add the probability of every class.")] = False,
    device: Device = "auto",
) -> None:
    """Predict the class of images, with its probability. Unreadable images are reported, with exit code 1."""
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
    out: Annotated[Path | None, typer.Option(help="Folder for the second run. Default: a temporary folder.")] = None,
    device: Device = "auto",
) -> None:
    """Train a run's recipe again and compare the results byte by byte. The exit code is 1 if anything differs."""
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
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or the --out of mecam train or mecam bench.")],
) -> None:
    """Check every file of runs against its checksum. Damaged files are reported, with exit code 1."""
    with spoken_errors():
        from mecam.runs.verify import verify as check

        whole, damaged = check(runs)
        counts = f"intact runs: {whole}, damaged: {len(damaged)}"
        print("\n".join([*map(_line, damaged), counts]))
    raise typer.Exit(1 if damaged else 0)


@app.command()
def export(
    run: RunArgument,
    out: Out = Path("exported"),
    format: Annotated[str, typer.Option(help="File format: onnx or safetensors.")] = "onnx",
) -> None:
    """Export a model to one file, check its outputs, and write its preprocessing beside it."""
    with spoken_errors():
        from mecam.serving import export as write
        from mecam.serving import load_model

        print(write(load_model(run), out, form=format))


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="methods, optimizers, averagings, virtual, backbones, data, profiles or recipe. Default: all."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Include hyperparameters, sizes and sources.")] = False,
) -> None:
    """List methods, optimizers, backbones, data sets and recipe entries."""
    with spoken_errors():
        from mecam.listing import lines

        print("\n".join(lines(kind, verbose=verbose)))


@app.command()
def doctor() -> None:
    """Report this machine's hardware, installed packages and known problems."""
    with spoken_errors():
        from mecam.doctor import health

        print("\n".join(health()))


@data_app.command(name="list")
def data_list() -> None:
    """List the data sets known by name, and where to get them."""
    with spoken_errors():
        from mecam.listing import lines

        print("\n".join(lines("data", verbose=True)))


@data_app.command(name="check")
def data_check(
    folder: FolderArgument,
    name: Annotated[
        str | None, typer.Option(help="Benchmark to compare with. Default: the benchmark of the folder's name.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Decoding threads.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print progress.")] = False,
) -> None:
    """Count the images of a folder by domain and class, decode each, and report problems.

    For a benchmark (by --name, or by the folder's name), report what is missing or extra. For a store, check that every
    byte is as it was packed. The exit code is 1 if there is a problem.
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
    out: Annotated[Path, typer.Option(help="Store to write.")],
    mode: Annotated[str, typer.Option(help="Storage: auto, decoded or encoded.")] = "auto",
    workers: Annotated[int | None, typer.Option(help="Decoding threads.")] = None,
    side: Annotated[int, typer.Option(help="Pixels per side of images that are larger, or differ in size.")] = 320,
    skip_unreadable: SkipUnreadable = False,
    allow_missing_classes: Annotated[
        bool, typer.Option("--allow-missing-classes", help="Allow domains that lack classes of other domains.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print progress.")] = False,
) -> None:
    """Decode a folder into a memory-mapped store, which --data accepts instead of the folder."""
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
