"""Average the weights of several runs into one model: uniform soups as in DiWA (Rame et al., 2022), and greedy ones.

Interpolation towards the initial weights follows WiSE-FT (Wortsman et al., 2022).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from mecam.averaging import Averaging
from mecam.averaging._mean import WeightMean
from mecam.recipe import Recipe, recipe_of
from mecam.runs import RunError, RunFolder, claim
from mecam.runs.find import find_runs
from mecam.splits import Part, summarize
from mecam.training.machine import find_machine
from mecam.training.reopen import reopen, require_weights
from mecam.training.result import finish, metrics
from mecam.training.run import Run

Weights = Mapping[str, Tensor]
SHARES = [share / 10 for share in range(11)]  # of the initial weights, on the line to the average


@dataclass(frozen=True)
class Soup:
    """A model of averaged weights, and the runs in it."""

    folder: RunFolder
    accuracy: float | None  # on the target
    members: Mapping[str, float | None]  # accuracy on the target of each run in the average, by run id
    left_out: Sequence[str]  # ids of runs that a greedy soup leaves out
    initial_share: float = 0.0  # of the initial weights


class _Given(Averaging):
    """Weights that are averaged already."""

    name = "soup"

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    def final(self) -> dict[str, Tensor]:
        return self.weights


def soup(
    paths: Iterable[os.PathLike[str] | str],
    out: Path | str,
    *,
    target: str | None = None,
    greedy: bool = False,
    interpolate: bool = False,
    data: Path | str | None = None,
    weights: Path | str | None = None,
    device: str = "auto",
) -> Soup:
    """Average the weights of finished runs with the same sources, evaluate them, and write them as a run.

    The runs themselves are only read. They should start from the same pretrained weights: otherwise their average is
    no better than chance. Batch-norm statistics are averaged with the weights.

    Args:
        paths: runs, or folders of runs such as the --out of `mecam bench`. Soups among them are left out.
        out: folder of the new run.
        target: take the runs that leave out this domain.
        greedy: start from the run with the best source validation, and add others in its order while the average gets
            no worse. Takes runs of one seed, which hold out the same images.
        interpolate: return the point of best source validation on the line from the average, or from one run, to the
            initial weights, in tenths; the one nearest to the average if several are equal. Takes runs of one seed.
        data, weights: the data of the runs, and the file that they start from. Default: the paths in the runs, if
            they were used here before.
    """
    done = [folder for folder in find_runs(paths) if folder.is_done()]
    folders = _members(
        [folder for folder in done if "soup" not in folder.read_result()], target, 1 if interpolate else 2
    )
    folder, first = RunFolder(out), recipe_of(folders[0].path)
    _require_new(folder)
    if (greedy or interpolate) and len({recipe_of(each.path).seed for each in folders}) > 1:
        option = "--greedy" if greedy else "--interpolate"
        raise RunError(f"{option} takes runs of one seed, which hold out the same images; leave out {option}")
    machine = find_machine(device, first.precision, deterministic=first.deterministic)
    # a saved model has no adapters
    plain = replace(first, trainable="all") if first.trainable == "lora" else first
    require_weights(folders[0].path, first, weights)
    run = Run(plain, machine, reopen(folders[0].path, first, data))
    initial = {name: value.clone() for name, value in run.trained.state_dict().items()}
    # a head's model has its frozen backbone, too
    trained = {each: {name: each.read_model()[0][name] for name in initial} for each in folders}
    chosen = _greedy(run, trained) if greedy else folders
    mean = _mean([trained[each] for each in chosen])
    share = max(SHARES, key=lambda share: _validation(run, _between(mean, initial, share))) if interpolate else 0.0
    run.averaging = _Given(_between(mean, initial, share))
    result = finish(run)
    ids = {each: str(each.read_run()["id"]) for each in folders}
    with claim(folder.path) as folder.writer:
        _require_new(folder)  # another process may have written one meanwhile
        environment = run.machine.describe()
        folder.begin(first.to_dict(), environment, run_id=f"soup-{ids[folders[0]]}", fingerprints=run.fingerprints)
        folder.write_model(result.weights, result.facts)
        folder.write_predictions(result.predictions)
        folder.finish({**result.metrics, "soup": [ids[each] for each in chosen], "initial_share": share})
    accuracies = {ids[each]: each.read_result()["target_accuracy"] for each in chosen}
    return Soup(
        folder, result.metrics["target_accuracy"], accuracies, [ids[e] for e in folders if e not in chosen], share
    )


def _require_new(folder: RunFolder) -> None:
    if folder.exists():
        raise RunError(f"{folder.path} holds a run already; give another --out")


def _members(folders: Sequence[RunFolder], target: str | None, least: int) -> list[RunFolder]:
    """Return the runs that leave out this domain; refuse fewer than two, and runs that do not fit together."""
    recipes = {folder: recipe_of(folder.path) for folder in folders}
    targets = dict.fromkeys(recipe.target for recipe in recipes.values())
    if target is None and len(targets) > 1:
        names = ", ".join(map(str, targets))
        raise RunError(f"the runs leave out different domains ({names}), so their sources differ; give --target")
    members = [folder for folder in folders if target is None or recipes[folder].target == target]
    if len(members) < least:
        raise RunError(f"a soup takes at least {least} finished run{'s' if least > 1 else ''}, got {len(members)}")
    first = members[0]
    for other in members[1:]:
        for what, of in (("network", _network), ("data", _data)):
            if of(other, recipes[other]) != of(first, recipes[first]):
                raise RunError(f"{other.path} has another {what} than {first.path}; give runs that share it")
    return members


def _network(folder: RunFolder, recipe: Recipe) -> object:
    return folder.read_model()[1], recipe.trainable, recipe.weights, recipe.pretrained


def _data(folder: RunFolder, recipe: Recipe) -> object:
    return folder.read_result().get("data"), recipe.sources


def _mean(several: Sequence[Weights]) -> dict[str, Tensor]:
    mean = WeightMean()
    for weights in several:
        mean.add(weights)
    return mean.weights()


def _between(mean: Weights, initial: Weights, share: float) -> dict[str, Tensor]:
    """Return the weights with this share of the initial ones."""
    between = WeightMean()
    between.add(mean)
    between.add(initial, share=share)
    return between.weights()


def _validation(run: Run, weights: Weights) -> float:
    """Return the source validation accuracy of these weights."""
    held_out = {
        split: indices
        for split, indices in run.splits.items()
        if split.part is Part.HELD_OUT and split.domain != run.recipe.target
    }
    run.trained.load_state_dict(weights)
    return summarize(metrics(run, held_out), run.recipe.target).validation or 0.0


def _greedy(run: Run, weights: Mapping[RunFolder, Weights]) -> list[RunFolder]:
    """Return the runs in the average of best source validation that adding one by one finds."""
    alone = {folder: _validation(run, weights[folder]) for folder in weights}
    first, *others = sorted(alone, key=lambda folder: -alone[folder])
    chosen, best = [first], alone[first]
    for other in others:
        if (together := _validation(run, _mean([weights[each] for each in [*chosen, other]]))) >= best:
            chosen, best = [*chosen, other], together
    return chosen
