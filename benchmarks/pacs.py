"""Do the paper's claims hold on the real PACS? Trains what is still missing of the study, one run after another.

    python benchmarks/pacs.py --phases search main --minutes 25 --curvature --device cuda
    python benchmarks/pacs.py --phases main --list

All runs share one process, and with it data on the device and compiled kernels. After each run what came out of it is
added to a JSON file; runs in that file are not run again, so work goes on where it stopped; nor are those that a longer
run in it holds. The tables are made by benchmarks/pacs_table.py. PACS is looked for in $MECAM_DATA.

The study with ResNet-50 and the paper's settings is the phases resnet50 and resnet50_more:

    python benchmarks/pacs.py --phases resnet50 resnet50_more --weights FILE --keep RUNS --minutes 9 --device cuda

Repeat this command until it has nothing left to do. Each run is measured right after its training (curvature, largest
eigenvalue, for seed 0 the loss landscape), so that only the JSON file must outlive the machine. When the minutes are
over, the current run is saved in RUNS, and the same command resumes it. --whole begins no run that would not end in
time: for the last minutes on a machine. Recipes name the weights by their file name, so run ids do not depend on where
the file is. `--out FILE --known benchmarks/results/pacs_resnet50.json` writes elsewhere.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

import pacs_plan
from machine import commit, describe, versions
from mecam.analysis import compare_landscapes, spectrum
from mecam.analysis import curvature as curvatures
from mecam.analysis.landscape import Landscape
from mecam.analysis.runs import PARTS, objective_of
from mecam.benchmark.plan import SETTINGS
from mecam.data.domains import DomainSet
from mecam.data.known import KNOWN
from mecam.data.open import open_data
from mecam.models.weights import FOLDER, find_weights
from mecam.optim.registry import find as find_optimizer
from mecam.recipe import Recipe, assign
from mecam.runs import RunFolder, write_atomic
from mecam.runs.atomic import make_folder
from mecam.training import Interrupted, train
from mecam.training.loop import Progress, Watcher

DRAWN = {"ERM": "adam", "SAM": "sam", "MeCAM": "mecam"}  # whose landscapes are drawn
BATCH = 256  # images at once when curvature is measured on a GPU
GRIDS: dict[str, Literal[1, 2]] = {"line": 1, "plane": 2}
TOLERANCE, DRAWS = 1e-2, 8  # of the largest eigenvalue, relative; of the trace
# of a run that nothing like was seen yet, in seconds: its start and end, an evaluation, a pass; curvature, landscape
START, EVALUATION, PASS = 4.0, 0.5, 0.0125
MEASURING, DRAWING = 40.0, 20.0
SAVING, WORTH = 10.0, 30.0  # seconds kept to save a run that time runs out on; left at least when one is begun
# by study, what is measured unless options say otherwise: for ResNet-50 about a fifth of the time of training
USUAL: dict[bool, dict[str, Any]] = {
    False: {
        "curvature": [],
        "curvature_images": None,
        "landscape_steps": 25,
        "landscape_images": compare_landscapes.IMAGES,
        "landscape_radius": 1.0,
    },
    True: {
        "curvature": [0, 1, 2],
        "curvature_images": 1024,
        "landscape_steps": 11,
        "landscape_images": 256,
        "landscape_radius": 0.25,  # there the loss of the pretrained network on photos is 0.5 to 3, at its weights 0.07
    },
}


class Deadline:
    """When to stop; never without minutes."""

    def __init__(self, minutes: float | None) -> None:
        self.end = math.inf if minutes is None else time.perf_counter() + 60 * minutes

    def left(self) -> float:
        """Seconds."""
        return self.end - time.perf_counter()


def main() -> int:
    options = parse()
    deadline = Deadline(options.minutes)
    values: dict[str, Any] = {}
    for assignment in options.set:
        assign(values, assignment)
    name = values.get("data", "PACS")
    data = None if options.list and name in KNOWN else open_data(name)
    domains = {name: KNOWN[name].domains if data is None else data.domains}
    for option, targets in (("landscapes", [options.landscapes]), ("curvature-target", options.curvature_target)):
        for target in targets:
            if target not in (None, *domains[name]):
                sys.exit(f"--{option} {target}: the domains are {', '.join(domains[name])}")
    records = {**pacs_plan.load(options.known), **pacs_plan.load(options.out)}
    if options.list:
        show(options, domains, values, records)
        return 0
    assert data is not None
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        out = options.keep or Path(temporary)
        for phase in options.phases:
            recipes = plan(phase, options, domains, values, records)
            for name in {recipe.weights for recipe in recipes if recipe.weights is not None}:
                if not find_weights(name).is_file():
                    sys.exit(f"there is no file {find_weights(name)}; give --weights FILE, or its folder in ${FOLDER}")
            if held := pacs_plan.held(recipes, records):
                print(f"{phase}: {len(held)} of {len(recipes)} runs are held by longer ones that are known")
            for recipe in recipes:
                if is_complete(recipe, phase, options, records, out):
                    continue
                try:
                    finished = run(recipe, phase, options, data, out, records, deadline)
                except Interrupted as stop:
                    print(f"{recipe.run_id}: {stop}")
                    return 1
                except Exception:
                    traceback.print_exc()
                    failed += 1
                    continue
                if not finished:
                    return finish(options, out, data, domains, values, records, failed)
        return finish(options, out, data, domains, values, records, failed)


def plan(
    phase: str,
    options: argparse.Namespace,
    domains: Mapping[str, Sequence[str]],
    values: Mapping[str, Any],
    records: pacs_plan.Records,
) -> list[Recipe]:
    """The runs of a phase that are asked for, in order."""
    if phase in pacs_plan.RESNET50 and options.weights is not None:
        values = {**values, "weights": options.weights.name}
    choice = None
    if options.chosen:
        choice = pacs_plan.chosen(records, pacs_plan.planned("search", domains, values=values))
    recipes = pacs_plan.planned(phase, domains, values=values, choice=choice)
    if options.shorten and phase in pacs_plan.RESNET50:
        if pacs_plan.selects_early(records, pacs_plan.planned("resnet50", domains, values=values)):
            recipes = [pacs_plan.shortened(recipe, records) for recipe in recipes]
        else:
            print(f"{phase}: not shortened; not every run of seed 0 is known to select a step below {pacs_plan.EARLY}")
    found = [recipe for recipe in recipes if all(matches(recipe, assignment) for assignment in options.only)]
    if not found:
        print(f"{phase}: no run is {' '.join(options.only)}")
    return found


def matches(recipe: Recipe, assignment: str) -> bool:
    """Whether a recipe has what `optimizer=adam,sam` or `optimizer_settings.rho=0.0` says; a value may hold a comma."""
    name, _, among = assignment.partition("=")
    entry, _, setting = name.partition(".")
    value = getattr(recipe, entry)
    if setting:
        if setting not in value:
            return False
        value = value[setting]
    return any(says(text, value) for text in (among, *among.split(",")))


def says(text: str, value: Any) -> bool:
    """Whether a value is what is written: 1e-4 is 0.0001."""
    try:
        return text == str(value) or (not isinstance(value, str) and float(text) == value)
    except ValueError:
        return False


def is_complete(recipe: Recipe, phase: str, options: argparse.Namespace, records: pacs_plan.Records, out: Path) -> bool:
    """Whether all that is asked of a run is there: its record, what is measured on it, its weights for a picture."""
    record = pacs_plan.known(recipe, records)
    if record is None or lacking(recipe, phase, options, record):
        return False
    return not wants_picture(recipe, phase, options) or RunFolder(out / recipe.run_id).is_done()


def is_plain(recipe: Recipe, phase: str) -> bool:
    """Whether this is a row of a main table without method or averaging, which are looked at closer."""
    return recipe.method == "erm" and recipe.averaging == "none" and phase in (*pacs_plan.TABLES, "resnet50")


def wants_curvature(recipe: Recipe, phase: str, options: argparse.Namespace) -> bool:
    asked = recipe.seed in options.curvature and (recipe.target in (options.curvature_target or [recipe.target]))
    return is_plain(recipe, phase) and recipe.optimizer in pacs_plan.CURVED and asked


def wants_landscape(recipe: Recipe, phase: str, options: argparse.Namespace) -> bool:
    """Whether the run's landscape goes into its record."""
    asked = recipe.seed == options.landscape_seed and options.landscapes in (None, recipe.target)
    return is_plain(recipe, phase) and phase in pacs_plan.RESNET50 and asked


def wants_picture(recipe: Recipe, phase: str, options: argparse.Namespace) -> bool:
    """Whether the run's weights are kept for landscapes that are drawn at the end."""
    asked = (recipe.seed, recipe.target) == (options.landscape_seed, options.landscapes)
    return is_plain(recipe, phase) and phase in pacs_plan.TABLES and recipe.optimizer in DRAWN.values() and asked


def lacking(recipe: Recipe, phase: str, options: argparse.Namespace, record: Mapping[str, Any]) -> list[str]:
    """What is asked of a run and was not measured yet."""
    parts = []
    if wants_curvature(recipe, phase, options):
        found = record.get("curvature", {})
        parts += [] if found else ["C"]
        parts += ["spectrum"] if options.spectrum_images and "spectrum" not in found else []
    if wants_landscape(recipe, phase, options) and "landscape" not in record:
        parts.append("landscape")
    return parts


def run(
    recipe: Recipe,
    phase: str,
    options: argparse.Namespace,
    data: DomainSet,
    out: Path,
    records: pacs_plan.Records,
    deadline: Deadline,
) -> bool:
    """Train, measure, and save the record; False if there is no time to begin it or, with --keep, to end it."""
    expected = remaining(recipe, records, out) + measuring(recipe, phase, options, records)
    left, resumable = deadline.left(), options.keep is not None
    if expected > left and not (resumable and not options.whole and left > WORTH):
        print(f"stopped: {recipe.run_id} would take about {expected:.0f} s, {left:.0f} s are left")
        return False
    known = records.get(recipe.run_id)
    there = known is not None and RunFolder(out / recipe.run_id).is_done()
    try:
        folder, spent = trained(recipe, out, options, data, deadline)
    except Interrupted as stop:
        if not resumable or deadline.left() > SAVING:
            raise
        print(f"{recipe.run_id}: {stop}; the same command resumes it")
        return False
    gc.collect()  # recorded steps hang in cycles, and hold memory of the device
    record = {
        **summary(recipe, folder),
        **spent,
        "commit": commit(),
        "machine": describe(options.device),
        "versions": versions(),
    }
    if known is not None and there:  # trained before, perhaps elsewhere, and its weights kept
        record = dict(known)
    elif known is not None and "curvature" in known and not lacking(recipe, phase, options, known):
        record = known  # trained again for its weights alone
    records[recipe.run_id] = record
    pacs_plan.save(records, options.out)
    for part in lacking(recipe, phase, options, record):
        if resumable and deadline.left() <= 0:
            print(f"{recipe.run_id}: no time left to measure {part}; the same command resumes it")
            return False
        start = time.perf_counter()
        if part == "landscape":
            record["landscape"] = landscape(folder, data, options)
            record["landscape_seconds"] = round(time.perf_counter() - start, 1)
        else:
            record["curvature"] = {**record.get("curvature", {}), **curvature(folder, data, options, part)}
            seconds = record.get("curvature_seconds", 0.0) + time.perf_counter() - start
            record["curvature_seconds"] = round(seconds, 1)
        pacs_plan.save(records, options.out)
    target = record["target_accuracy"]
    print(f"{phase}: {recipe.run_id}: {100 * target:.2f} % on the target, {record['seconds']:.1f} s", flush=True)
    if options.keep is None and not wants_picture(recipe, phase, options):
        shutil.rmtree(folder.path)
    return True


def trained(
    recipe: Recipe, out: Path, options: argparse.Namespace, data: DomainSet, deadline: Deadline
) -> tuple[RunFolder, dict[str, Any]]:
    """The finished run, and the seconds it took over all sessions; those of a session that was killed are lost."""
    make_folder(out)
    file = out / f"{recipe.run_id}.json"
    before = json.loads(file.read_text()) if file.exists() else {"seconds": 0.0}
    sessions = before.get("sessions", 0) + 1
    spent = {**before, **({"sessions": sessions} if sessions > 1 else {})}
    write_atomic(file, json.dumps({**before, "sessions": sessions}).encode())
    watch = None if options.keep is None else stop_at(deadline)  # without --keep, what is saved is thrown away
    start = time.perf_counter()
    try:
        folder = train(recipe, out, device=options.device, data=data, watch=watch)
    finally:
        spent["seconds"] = round(before["seconds"] + time.perf_counter() - start, 1)
        write_atomic(file, json.dumps({**spent, "sessions": sessions}).encode())
    return folder, spent


def stop_at(deadline: Deadline) -> Watcher:
    """Stop a run as a signal would, between two steps and saved, in time for the deadline."""

    def watch(progress: Progress) -> None:
        if deadline.left() < SAVING and progress.step < progress.steps:
            signal.raise_signal(signal.SIGTERM)

    return watch


def summary(recipe: Recipe, folder: RunFolder) -> dict[str, Any]:
    """What came out of a run, in few numbers: of each split accuracy and loss, of each evaluation the means."""
    result = folder.read_result()
    plain = Recipe().to_dict()
    return {
        "recipe": {name: value for name, value in recipe.to_dict().items() if value != plain[name]},
        "seed": recipe.seed,
        "target": recipe.target,
        "selected_step": result["selected_step"],
        "target_accuracy": rounded(result["target_accuracy"]),
        "splits": {name: [rounded(m["accuracy"]), rounded(m["loss"])] for name, m in result["splits"].items()},
        "history": [evaluation(recipe, record) for record in folder.read_records()],
    }


def evaluation(recipe: Recipe, record: Mapping[str, Any]) -> list[float]:
    """Step, mean source validation accuracy and loss, accuracy on the target."""
    splits = record["splits"]
    sources = [m for name, m in splits.items() if name.endswith(" out") and name != f"{recipe.target} out"]
    means = [sum(m[what] for m in sources) / len(sources) for what in ("accuracy", "loss")]
    return [record["step"], *map(rounded, means), rounded(splits[f"{recipe.target} in"]["accuracy"])]


def rounded(value: float) -> float:
    return round(value, 5)


def significant(value: float) -> float:
    return float(f"{value:.5g}")


def curvature(folder: RunFolder, data: DomainSet, options: argparse.Namespace, part: str) -> dict[str, Any]:
    """The paper's metric on each split, or eigenvalue and trace on a sample of the training split; in float32."""
    common: dict[str, Any] = {"device": options.device, "data": data}
    machine = describe(options.device)
    if part == "C":
        return {"rho": list(curvatures.RADII), **metric(folder, options, **common), "machine": machine}
    return {"spectrum": {**sampled_spectrum(folder, options, **common), "machine": machine}}


def metric(folder: RunFolder, options: argparse.Namespace, **common: Any) -> dict[str, Any]:
    """The paper's C and what it is made of, by split."""
    found: dict[str, Any] = {}
    if options.device != "cpu":
        common["batch"] = BATCH
    for split in PARTS[:2] if options.resnet50 else PARTS:
        objective = objective_of(folder.path, split, limit=options.curvature_images, **common)
        objective.batches = list(objective.batches)  # ready on the device for all passes
        at = curvatures.curvature(objective)
        found[split] = {
            "images": at.samples,
            "loss": significant(at.loss),
            "gradient_norm": significant(at.gradient_norm),
            "C": [significant(each.curvature) for each in at.at],
            "numerator": [significant(each.numerator) for each in at.at],
        }
    return found


def sampled_spectrum(folder: RunFolder, options: argparse.Namespace, **common: Any) -> dict[str, Any]:
    if options.device != "cpu":
        common["batch"] = BATCH // 4  # a second backward holds several times what a first one does
    objective = objective_of(folder.path, "train", limit=options.spectrum_images, **common)
    objective.batches = list(objective.batches)
    largest = spectrum.largest(objective, tolerance=TOLERANCE)
    found = {
        "images": largest.samples,
        "eigenvalue": significant(largest.values[0]),
        "tolerance": significant(largest.tolerance),
        "products": largest.products,
    }
    if not options.resnet50:
        trace = spectrum.trace(objective, draws=DRAWS)
        found |= {"trace": significant(trace.estimate), "trace_error": significant(trace.standard_error)}
        found |= {"draws": trace.draws}
    return found


def landscape(folder: RunFolder, data: DomainSet, options: argparse.Namespace) -> dict[str, Any]:
    """Line and plane around a run's weights; directions are the same for all runs, each scaled by its own filters."""
    found = {
        name: numbers(compare_landscapes.around(folder.path, data=data, at_once=1, **grid(dimensions, options))[0])
        for name, dimensions in GRIDS.items()
    }
    return {**found, "machine": describe(options.device)}


def grid(dimensions: Literal[1, 2], options: argparse.Namespace) -> dict[str, Any]:
    """What a landscape is asked for; a line has twice as many points as the side of a plane."""
    steps = options.landscape_steps
    return {
        "dimensions": dimensions,
        "images": options.landscape_images,
        "steps": steps if dimensions == 2 else 2 * steps - 1,
        "radius": options.landscape_radius,
        "device": options.device,
    }


def numbers(found: Landscape) -> dict[str, Any]:
    content = found.to_dict()
    content["loss"] = [[v if v is None else significant(v) for v in row] for row in content["loss"]]
    return content


def finish(
    options: argparse.Namespace,
    out: Path,
    data: DomainSet,
    domains: Mapping[str, Sequence[str]],
    values: Mapping[str, Any],
    records: pacs_plan.Records,
    failed: int,
) -> int:
    """The landscapes, if they were asked for and their runs are there."""
    if options.landscapes and not options.resnet50:
        phase = next((phase for phase in options.phases if phase in pacs_plan.TABLES), "main")
        recipes = plan(phase, options, domains, values, records)
        there = {r.optimizer: out / r.run_id for r in recipes if wants_picture(r, phase, options)}
        runs = {name: there[optimizer] for name, optimizer in DRAWN.items() if optimizer in there}
        if len(runs) == len(DRAWN) and all(RunFolder(path).is_done() for path in runs.values()):
            landscapes(runs, data, options)
        else:
            print("no landscapes: the runs of ERM, SAM and MeCAM were not all trained here")
    return int(failed > 0)


def landscapes(runs: Mapping[str, Path], data: DomainSet, options: argparse.Namespace) -> None:
    """Lines and planes through the three, on one scale: figures, and the numbers in them."""
    content = {}
    for dimensions in GRIDS.values():
        found, files = compare_landscapes.compare(runs, options.figures, data=data, **grid(dimensions, options))
        content |= {f"{name}, {dimensions}-D": numbers(one) for name, one in found.items()}
        for file in files:
            if file.suffix == ".svg":  # of some MB
                file.unlink()
    write_atomic(options.figures / "landscapes.json", json.dumps(content).encode())
    print(f"landscapes are in {options.figures}")


def estimate(recipe: Recipe, records: pacs_plan.Records) -> float:
    """Seconds that a run will take: as others of its kind took, else from its passes and the pace of the others."""
    kind = _kind(recipe.to_dict())
    seen = [(Recipe(**record["recipe"]), record["seconds"]) for record in records.values()]
    same = [seconds for other, seconds in seen if _kind(other.to_dict()) == kind]
    if same:
        return statistics.fmean(same[-4:])
    pace = statistics.median([seconds / _guess(other) for other, seconds in seen]) if seen else 1.0
    return pace * _guess(recipe)


def remaining(recipe: Recipe, records: pacs_plan.Records, out: Path) -> float:
    """Seconds that the rest of a run will take, by its last evaluation."""
    folder = RunFolder(out / recipe.run_id)
    if folder.is_done():
        return 0.0
    evaluations = folder.read_records() if folder.exists() else []
    share = evaluations[-1]["step"] / recipe.steps if evaluations and recipe.steps else 0.0
    return (1 - share) * estimate(recipe, records)


def measuring(recipe: Recipe, phase: str, options: argparse.Namespace, records: pacs_plan.Records) -> float:
    """Seconds that measuring a run takes."""
    total = 0.0
    if wants_curvature(recipe, phase, options):
        total += _mean_of(records, "curvature_seconds", MEASURING)
    if wants_landscape(recipe, phase, options):
        total += _mean_of(records, "landscape_seconds", DRAWING)
    return total


def _mean_of(records: pacs_plan.Records, name: str, otherwise: float) -> float:
    seen = [record[name] for record in records.values() if name in record]
    return statistics.fmean(seen) if seen else otherwise


def _kind(recipe: Mapping[str, Any]) -> str:
    """What the time of a run depends on; of an optimizer's settings, those that are switches and counts."""
    names = ("data", "backbone", "method", "optimizer", "averaging", "virtual", "steps", "record", "virtual_settings")
    switches = {name: value for name, value in recipe["optimizer_settings"].items() if isinstance(value, int)}
    return json.dumps([*(recipe[name] for name in names), switches], sort_keys=True)


def _guess(recipe: Recipe) -> float:
    passes = find_optimizer(recipe.optimizer).passes
    evaluations = recipe.steps / recipe.evaluate_every + 1
    return START + EVALUATION * evaluations + PASS * passes * recipe.steps


def show(
    options: argparse.Namespace,
    domains: Mapping[str, Sequence[str]],
    values: Mapping[str, Any],
    records: pacs_plan.Records,
) -> None:
    """What is done, what waits and for how long."""
    total = 0.0
    for phase in options.phases:
        recipes = plan(phase, options, domains, values, records)
        waiting = [recipe for recipe in recipes if pacs_plan.known(recipe, records) is None]
        held = pacs_plan.held(recipes, records)
        seconds = sum(estimate(recipe, records) for recipe in waiting)
        total += seconds
        done = f"{len(recipes) - len(waiting)} of {len(recipes)} runs done"
        done += f" ({len(held)} of them held by longer ones)" if held else ""
        print(f"{phase}: {done}, {seconds / 60:.0f} minutes to go")
        for recipe in waiting:
            print(f"  {recipe.run_id}  {estimate(recipe, records):.0f} s")
    print(f"{total / 60:.0f} minutes in all, curvature and landscapes not counted")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    phases = (*pacs_plan.PHASES, *pacs_plan.RESNET50)
    parser.add_argument("--phases", nargs="+", choices=phases, default=list(pacs_plan.PHASES))
    parser.add_argument(
        "--weights", type=Path, help="the checkpoint of ResNet-50 (default: as named, in $MECAM_WEIGHTS)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME=VALUES",
        help="such as optimizer=adam,sam seed=0 optimizer_settings.rho=0.0",
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="in place of what the recipes say")
    parser.add_argument("--chosen", action="store_true", help="run what the search chose, not what the recipes say")
    parser.add_argument(
        "--minutes", type=float, help="begin no run expected to end later; with --keep, save the current one then"
    )
    parser.add_argument(
        "--whole", action="store_true", help="with --keep: do not start a run that would not finish in time"
    )
    parser.add_argument(
        "--shorten",
        action="store_true",
        help=f"ResNet-50: later seeds take {pacs_plan.FEWER} steps if all of seed 0 select one below {pacs_plan.EARLY}",
    )
    parser.add_argument("--list", action="store_true", help="say what waits, and run nothing")
    parser.add_argument("--known", type=Path, help="results that are there already (default: those of the study)")
    parser.add_argument("--out", type=Path, help="where all results go (default: to those of the study)")
    parser.add_argument("--keep", type=Path, help="keep the run folders here, and resume those that are not finished")
    parser.add_argument(
        "--curvature",
        type=int,
        nargs="*",
        metavar="SEED",
        help="measure curvature (without a seed: of seed 0; ResNet-50: of all seeds, even if not asked for)",
    )
    parser.add_argument("--curvature-target", nargs="+", default=[], metavar="TARGET", help="on these alone")
    parser.add_argument("--curvature-images", type=int, help="at most so many of each split")
    parser.add_argument("--spectrum-images", type=int, default=512, help="behind eigenvalue and trace; 0: neither")
    parser.add_argument(
        "--landscapes",
        metavar="TARGET",
        help="of ERM, SAM and MeCAM on this target (ResNet-50: of all rows and targets)",
    )
    parser.add_argument("--landscape-seed", type=int, default=0)
    parser.add_argument("--landscape-steps", type=int, help="on each side of a plane")
    parser.add_argument("--landscape-radius", type=float, help="in filter-normalised directions")
    parser.add_argument("--landscape-images", type=int)
    parser.add_argument("--figures", type=Path, default=Path("figures"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    studies = {pacs_plan.results_of(phase) for phase in options.phases}
    if len(studies) > 1:
        parser.error("--phases: those with ResNet-50 have a results file of their own; run them apart from the others")
    (results,) = studies
    options.known, options.out = options.known or results, options.out or results
    options.resnet50 = options.phases[0] in pacs_plan.RESNET50
    if options.curvature_target and options.curvature is None and not options.resnet50:
        parser.error("--curvature-target says where curvature is measured; ask for it with --curvature")
    options.curvature = [0] if options.curvature == [] else options.curvature
    for name, value in USUAL[options.resnet50].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.weights is not None:
        os.environ[FOLDER] = str(options.weights.parent.resolve())
        if not options.weights.is_file():
            parser.error(f"--weights: there is no file {options.weights}")
    for assignment in options.only:
        name, equals, _ = assignment.partition("=")
        entry, dot, _ = name.partition(".")
        if not equals:
            parser.error(f"--only {assignment}: it is of the form name=value, or name=value,value")
        if entry not in Recipe.__dataclass_fields__:
            parser.error(f"--only {assignment}: a recipe has no such entry")
        if bool(dot) != (entry in SETTINGS) or name.endswith("."):
            parser.error(f"--only {assignment}: settings, and they alone, are named as in optimizer_settings.rho=0.0")
    return options


if __name__ == "__main__":
    sys.exit(main())
