"""`mecam fit`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from mecam.cli._app import command, warn
from mecam.cli.options import Device, Quiet, given, recipe_options
from mecam.progress import notes_and_tenths, shown
from mecam.recipe import READING


@command(
    "mecam fit root --out model",
    "mecam fit root --minutes 60 --out model",
    "mecam fit root --backbone lite1 --out lite1",
    resumes=True,
)
@recipe_options(*READING)
def fit(
    root: Annotated[str, typer.Argument(help="A folder root/<domain>/<class>/<image>, a CSV file, store or data set.")],
    minutes: Annotated[float | None, typer.Option(help="Time budget. Default: 15 on a CPU, 30 on a GPU.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the model, its export and the page.")] = Path("model"),
    backbone: Annotated[str, typer.Option(help="Pretrained network: mecam list backbones.")] = "lite0",
    weights: Annotated[str | None, typer.Option(help="Checkpoint of the backbone, in place of its own.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    device: Device = "auto",
    quiet: Quiet = False,
    **entries: Any,
) -> int:
    """Train a model on a folder of images within a time budget.

    Leaves out each domain in turn to estimate the accuracy in a new domain, trains the final model on all of them, and
    writes it to --out with an ONNX export and a page. The same command resumes. A stopped fit leaves a usable model as
    soon as there is one.
    """
    from mecam.fitting import fit
    from mecam.runs import RunFolder
    from mecam.training import Interrupted

    try:
        with shown(quiet=quiet, lines=notes_and_tenths()) as progress:
            verdict = fit(
                root, minutes=minutes, out=out, backbone=backbone, weights=weights, seed=seed, device=device,
                progress=progress, warn=warn, **given(entries),
            )  # fmt: skip
    except Interrupted as stop:
        usable = f"; {out} is a usable model" if RunFolder(out).is_done() else ""
        warn(f"stopped{usable}. The same command resumes.")
        return 128 + stop.signal_number
    print("\n".join(verdict.lines()))
    print(f"model: {out}; page: {out / 'report.html'}; next: mecam predict {shlex.quote(str(out))} PHOTO.jpg")
    return 0
