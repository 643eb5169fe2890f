"""Do the paper's claims hold on the real PACS? Trains what is still missing of the study, one run after another.

    python benchmarks/pacs.py --phases search main --minutes 25 --curvature --device cuda
    python benchmarks/pacs.py --phases main --list

All runs share one process, and with it data on the device and compiled kernels. After each run what came out of it is
added to a JSON file; runs in that file are not run again, so work goes on where it stopped; nor are those that a longer
run in it holds. The tables are made by benchmarks/pacs_table.py. PACS is looked for in $MECAM_DATA.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import pacs_plan
from machine import commit, describe, versions
from mecam.analysis import compare_landscapes, spectrum
from mecam.analysis import curvature as curvatures
from mecam.analysis.runs import PARTS, objective_of
from mecam.benchmark.plan import SETTINGS
from mecam.data.domains import DomainSet
from mecam.data.known import KNOWN
from mecam.data.open import open_data
from mecam.optim.registry import find as find_optimizer
from mecam.recipe import Recipe, assign
from mecam.runs import RunFolder, write_atomic
from mecam.training import Interrupted, train

DRAWN = {"ERM": "adam", "SAM": "sam", "MeCAM": "mecam"}  # whose landscapes are drawn
BATCH = 256  # images at once when curvature is measured on a GPU
TOLERANCE, DRAWS = 1e-2, 8  # of the largest eigenvalue, relative; of the trace
# of a run that nothing like was seen yet, in seconds: its start and end, an evaluation, a pass; its curvature
START, EVALUATION, PASS = 4.0, 0.5, 0.0125
MEASURING = 40.0


def main() -> int:
    options = parse()
    began = time.perf_counter()
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
            if held := pacs_plan.held(recipes, records):
                print(f"{phase}: {len(held)} of {len(recipes)} runs are held by longer ones that are known")
            for recipe in recipes:
                if is_complete(recipe, phase, options, records, out):
                    continue
                left = None if options.minutes is None else 60 * options.minutes - (time.perf_counter() - began)
                expected = estimate(recipe, records)
                if wants_curvature(recipe, phase, options):
                    expected += measuring(records)
                if left is not None and expected > left:
                    print(f"stopped: {recipe.run_id} would take about {expected:.0f} s, {left:.0f} s are left")
                    return finish(options, out, data, domains, values, records, failed)
                try:
                    run(recipe, phase, options, data, out, records)
                except Interrupted as stop:
                    print(f"{recipe.run_id}: {stop}")
                    return 1
                except Exception:
                    traceback.print_exc()
                    failed += 1
        return finish(options, out, data, domains, values, records, failed)


def plan(
    phase: str,
    options: argparse.Namespace,
    domains: Mapping[str, Sequence[str]],
    values: Mapping[str, Any],
    records: pacs_plan.Records,
) -> list[Recipe]:
    """The runs of a phase that are asked for, in order."""
    choice = None
    if options.chosen:
        choice = pacs_plan.chosen(records, pacs_plan.planned("search", domains, values=values))
    recipes = pacs_plan.planned(phase, domains, values=values, choice=choice)
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
    """Whether all that is asked of a run is there: its record, its curvature, its weights for a landscape."""
    record = pacs_plan.known(recipe, records)
    if record is None or (wants_curvature(recipe, phase, options) and lacking(record, options)):
        return False
    return not wants_landscape(recipe, phase, options) or RunFolder(out / recipe.run_id).is_done()


def wants_curvature(recipe: Recipe, phase: str, options: argparse.Namespace) -> bool:
    plain = recipe.method == "erm" and recipe.averaging == "none" and phase in pacs_plan.TABLES
    asked = recipe.seed in options.curvature and (recipe.target in (options.curvature_target or [recipe.target]))
    return plain and recipe.optimizer in pacs_plan.CURVED and asked


def lacking(record: Mapping[str, Any], options: argparse.Namespace) -> list[str]:
    """What is asked of a run's curvature and was not measured yet."""
    found = record.get("curvature", {})
    lacks_spectrum = options.spectrum_images and "spectrum" not in found
    return [*(["C"] if not found else []), *(["spectrum"] if lacks_spectrum else [])]


def wants_landscape(recipe: Recipe, phase: str, options: argparse.Namespace) -> bool:
    plain = recipe.method == "erm" and recipe.averaging == "none" and phase in pacs_plan.TABLES
    return plain and recipe.optimizer in DRAWN.values() and (recipe.seed, recipe.target) == options.drawn


def run(
    recipe: Recipe, phase: str, options: argparse.Namespace, data: DomainSet, out: Path, records: pacs_plan.Records
) -> None:
    """Train, measure, and keep what came out of it."""
    measure = wants_curvature(recipe, phase, options)
    known = records.get(recipe.run_id)
    there = known is not None and RunFolder(out / recipe.run_id).is_done()
    start = time.perf_counter()
    folder = train(recipe, out, device=options.device, data=data)
    seconds = time.perf_counter() - start
    gc.collect()  # recorded steps hang in cycles, and hold memory of the device
    record = {
        **summary(recipe, folder),
        "seconds": round(seconds, 1),
        "commit": commit(),
        "machine": describe(options.device),
        "versions": versions(),
    }
    if known is not None and there:  # trained before, perhaps elsewhere, and its weights kept
        record = dict(known)
    elif known is not None and "curvature" in known and not (measure and lacking(known, options)):
        record = known  # trained again for its weights alone
    records[recipe.run_id] = record
    pacs_plan.save(records, options.out)
    if measure and (parts := lacking(record, options)):
        start = time.perf_counter()
        found = curvature(folder, data, options, parts)
        record["curvature"] = {**record.get("curvature", {}), **found}
        record["curvature_seconds"] = round(record.get("curvature_seconds", 0.0) + time.perf_counter() - start, 1)
        pacs_plan.save(records, options.out)
    target = record["target_accuracy"]
    print(f"{phase}: {recipe.run_id}: {100 * target:.2f} % on the target, {record['seconds']:.1f} s", flush=True)
    if options.keep is None and not wants_landscape(recipe, phase, options):
        shutil.rmtree(folder.path)


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


def curvature(folder: RunFolder, data: DomainSet, options: argparse.Namespace, parts: Sequence[str]) -> dict[str, Any]:
    """The paper's metric on each split, eigenvalue and trace on a sample of the training split; in float32."""
    common: dict[str, Any] = {"device": options.device, "data": data}
    machine = describe(options.device)
    found: dict[str, Any] = {}
    if "C" in parts:
        found = {"rho": list(curvatures.RADII), **metric(folder, options, **common), "machine": machine}
    if "spectrum" in parts:
        found["spectrum"] = {**sampled_spectrum(folder, options, **common), "machine": machine}
    return found


def metric(folder: RunFolder, options: argparse.Namespace, **common: Any) -> dict[str, Any]:
    """The paper's C and what it is made of, by split."""
    found: dict[str, Any] = {}
    if options.device != "cpu":
        common["batch"] = BATCH
    for split in PARTS:
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
        common["batch"] = BATCH // 2  # a second backward holds several times what a first one does
    objective = objective_of(folder.path, "train", limit=options.spectrum_images, **common)
    objective.batches = list(objective.batches)
    trace = spectrum.trace(objective, draws=DRAWS)
    found = {
        "images": trace.samples,
        "trace": significant(trace.estimate),
        "trace_error": significant(trace.standard_error),
        "draws": trace.draws,
    }
    try:
        eigenvalues = spectrum.eigenvalues(objective, tolerance=TOLERANCE)
    except ImportError as error:
        print(f"no largest eigenvalue: {error}")
    else:
        found |= {"eigenvalue": significant(eigenvalues.values[0]), "tolerance": TOLERANCE}
    return found


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
    if options.landscapes:
        phase = next((phase for phase in options.phases if phase in pacs_plan.TABLES), "main")
        recipes = plan(phase, options, domains, values, records)
        there = {r.optimizer: out / r.run_id for r in recipes if wants_landscape(r, phase, options)}
        runs = {name: there[optimizer] for name, optimizer in DRAWN.items() if optimizer in there}
        if len(runs) == len(DRAWN) and all(RunFolder(path).is_done() for path in runs.values()):
            landscapes(runs, data, options)
        else:
            print("no landscapes: the runs of ERM, SAM and MeCAM were not all trained here")
    return int(failed > 0)


def landscapes(runs: Mapping[str, Path], data: DomainSet, options: argparse.Namespace) -> None:
    """Lines and planes through the three, on one scale: figures, and the numbers in them."""
    numbers = {}
    for dimensions in (1, 2):
        found, files = compare_landscapes.compare(
            runs,
            options.figures,
            dimensions=dimensions,
            images=options.landscape_images,
            steps=options.landscape_steps if dimensions == 2 else 2 * options.landscape_steps - 1,
            radius=options.landscape_radius,
            device=options.device,
            data=data,
        )
        for name, one in found.items():
            content = one.to_dict()
            content["loss"] = [[v if v is None else significant(v) for v in row] for row in content["loss"]]
            numbers[f"{name}, {dimensions}-D"] = content
        for file in files:
            if file.suffix == ".svg":  # of some MB
                file.unlink()
    write_atomic(options.figures / "landscapes.json", json.dumps(numbers).encode())
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


def measuring(records: pacs_plan.Records) -> float:
    """Seconds that the curvature of a run takes."""
    seen = [record["curvature_seconds"] for record in records.values() if "curvature_seconds" in record]
    return statistics.fmean(seen) if seen else MEASURING


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
    parser.add_argument("--phases", nargs="+", choices=pacs_plan.PHASES, default=list(pacs_plan.PHASES))
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME=VALUES",
        help="such as optimizer=adam,sam seed=0 optimizer_settings.rho=0.0",
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="in place of what the recipes say")
    parser.add_argument("--chosen", action="store_true", help="run what the search chose, not what the recipes say")
    parser.add_argument("--minutes", type=float, help="begin no run that is expected to end later than this")
    parser.add_argument("--list", action="store_true", help="say what waits, and run nothing")
    parser.add_argument("--known", type=Path, default=pacs_plan.RESULTS, help="results that are there already")
    parser.add_argument("--out", type=Path, default=pacs_plan.RESULTS, help="where all results go")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    parser.add_argument("--curvature", type=int, nargs="*", metavar="SEED", help="measure curvature (default: seed 0)")
    parser.add_argument("--curvature-target", nargs="+", default=[], metavar="TARGET", help="on these alone")
    parser.add_argument("--curvature-images", type=int, help="at most so many of each split (default: all)")
    parser.add_argument("--spectrum-images", type=int, default=512, help="behind eigenvalue and trace; 0: neither")
    parser.add_argument("--landscapes", metavar="TARGET", help="of ERM, SAM and MeCAM on this target")
    parser.add_argument("--landscape-seed", type=int, default=0)
    parser.add_argument("--landscape-steps", type=int, default=25)
    parser.add_argument("--landscape-radius", type=float, default=1.0, help="in filter-normalised directions")
    parser.add_argument("--landscape-images", type=int, default=compare_landscapes.IMAGES)
    parser.add_argument("--figures", type=Path, default=Path("figures"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    options.drawn = options.landscape_seed, options.landscapes
    if options.curvature_target and options.curvature is None:
        parser.error("--curvature-target says where curvature is measured; ask for it with --curvature")
    options.curvature = [] if options.curvature is None else options.curvature or [0]
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
