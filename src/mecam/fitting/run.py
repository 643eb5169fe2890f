"""`mecam fit`: leave out each domain in turn, train the final model, write it with its export and a page.

    OUT/                    the run folder of the final model
    OUT/fit.json            what was asked for and decided, for resuming
    OUT/verdict.json        the expected accuracy in a new domain
    OUT/confidence.safetensors  novelty and thresholds for predictions in a new domain
    OUT/leave-one-out/      a run for each left-out domain, as mecam bench leaves them
    OUT/final/              runs on all domains
    OUT/exported/           ONNX and its preprocessing
    OUT/report.html

Every part is a run that resumes. The head on all domains comes first: from then on OUT is a usable model.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from mecam.data.domains import DomainSet, check_several, most_frequent
from mecam.data.notes import counts, notes_on
from mecam.data.open import open_data
from mecam.data.pack import require_outside
from mecam.fitting.confidence import estimate
from mecam.fitting.plan import Plan, begin, check_backbone
from mecam.fitting.tuning import FEWEST, Rates, batch_on, least_seconds_per_step, settings
from mecam.fitting.verdict import Verdict, accuracy_of, interval, nested, recalls
from mecam.progress import Event, Progress, clock, notes_and_tenths, showing
from mecam.recipe import Recipe, RecipeError, spelled
from mecam.report import write as write_report
from mecam.runs import RunError, RunFolder, claim
from mecam.runs.claim import Writer
from mecam.serving import Confidence, ExportError, export, load_model
from mecam.storage.checksums import digest, read_sealed, seal
from mecam.storage.files import read_bytes
from mecam.training import train
from mecam.training.features import has_features
from mecam.training.loop import FINAL as FINAL_EVALUATION
from mecam.training.machine import Machine, find_machine
from mecam.training.speed import images_per_second, seconds_per_step

MINUTES = {"cpu": 15.0, "cuda": 30.0}
LEFT_OUT, FINAL, EXPORTED, REPORT, VERDICT = "leave-one-out", "final", "exported", "report.html", "verdict.json"
NOTE = "fit"  # the task of events that are notes
PRECISION = 0.95  # whose share of answers is printed
HEAD_SECONDS = 3.0  # a guess of what training a head takes
Warn = Callable[[Warning], None]


def fit(
    root: Path | str,
    *,
    minutes: float | None = None,
    out: Path | str = "model",
    backbone: str = "lite0",
    weights: str | None = None,
    seed: int = 0,
    device: str = "auto",
    skip_unreadable: bool = False,
    layout: str | None = None,
    domain_from: str | None = None,
    allow_missing_classes: bool = False,
    progress: Progress | bool = False,
    warn: Warn = warnings.warn,
) -> Verdict:
    """Train a model on all domains of a data set, and estimate its accuracy in a new one by leaving out each in turn.

    The same call resumes, and does nothing but report for what is finished. `out` is then the folder of a finished run,
    for `mecam predict`, `mecam export` and `load_model`.

    Args:
        root: a folder root/<domain>/<class>/<image>, a CSV file, a store, or the name of a data set.
        minutes: time budget. Default: 15 on a CPU, 30 on a GPU. The estimate with a frozen backbone is always made.
        out: folder to write.
        backbone: a backbone with pretrained weights.
        weights: a checkpoint of the backbone, in place of its own weights.
        skip_unreadable, layout, domain_from, allow_missing_classes: how to read the folder, as in a `Recipe`.
        progress: True shows progress as the command does. A function gets the steps of all parts, and notes about them
            as events of the task "fit".
    """
    check_backbone(backbone, weights)
    out, machine = Path(out), find_machine(device)
    if Path(root).is_dir():
        require_outside(out, Path(root))
    budget = 60 * (MINUTES.get(machine.device.type, MINUTES["cuda"]) if minutes is None else minutes)
    if not budget > 0:
        raise RecipeError(f"minutes={minutes} is not allowed; it must be positive")
    reading = skip_unreadable, layout, domain_from, allow_missing_classes
    given = Plan(spelled(str(root)), backbone, weights, seed, *reading, minutes)
    begin(out, given)  # refuses another fit before the data is packed
    with showing(progress, lines=notes_and_tenths()) as show:
        data = _open(given, show)  # before the folder is made: it may be refused
        with claim(out) as writer:
            plan = begin(out, replace(given, fingerprint=data.fingerprint))
            plan.write(out, writer.write)
            return _Fit(plan, out, writer, data, machine, time.monotonic(), budget, show, warn).run()


@dataclass(frozen=True)
class _Fit:
    """The parts of a fit; `run` goes through them."""

    plan: Plan
    out: Path
    writer: Writer
    data: DomainSet
    machine: Machine
    start: float
    budget: float
    progress: Progress
    warn: Warn

    def run(self) -> Verdict:
        self._announce()
        final = self._train(self.plan.probe(None), FINAL, "final head")
        if not RunFolder(self.out).is_done():
            publish(final, self.out, self.writer)
            self._note(f"{self.out} is a usable model from now on: a head on the frozen backbone")
        heads = {
            domain: self._train(self.plan.probe(domain), LEFT_OUT, f"head without {domain}")
            for domain in self.data.domains
        }
        verdict = self._verdict({"head": heads})
        self._note(verdict.lines()[0])
        seconds = self.budget - (time.monotonic() - self.start)
        plan, advice = self._plan_tuning(seconds)
        if plan.tuning:
            self._note(f"fine-tuning all weights: {plan.tuning['steps']} steps of {plan.tuning['optimizer']} per run")
            tuned = {
                domain: self._train(plan.tuned(domain, head.model_file), LEFT_OUT, f"all weights without {domain}")
                for domain, head in heads.items()
            }
            verdict = self._verdict({"head": heads, "all": tuned})
            if verdict.chosen == "all":
                heads, final = tuned, self._train(plan.tuned(None, final.model_file), FINAL, "final, all weights")
        publish(final, self.out, self.writer)
        answered = self._judge(heads)
        return self._deliver(replace(verdict, notes=(*verdict.notes, *answered, *advice)))

    def _announce(self) -> None:
        """Note what will be done, and how long it takes."""
        probe, images = self.plan.probe(None), sum(len(self.data.labels(d)) for d in range(len(self.data.domains)))
        runs = len(self.data.domains) + 1
        seconds = HEAD_SECONDS * runs
        speed = "its features are in the cache"
        if not has_features(probe, self.machine, self.data):
            rate = images_per_second(probe, self.machine, self.data)
            seconds += images / rate
            speed = f"{rate:,.0f} images per second here"
        self._note(
            f"{self.plan.backbone}, frozen: {speed}; {runs - 1} heads that leave out a domain each and the final one "
            f"take about {clock(seconds)}"
        )
        if seconds > self.budget:
            self._note(f"that is more than the budget of {clock(self.budget)}; a smaller backbone or a GPU is faster")

    def _train(self, recipe: Recipe, folder: str, name: str) -> RunFolder:
        """Run or resume a recipe in a folder of the fit."""

        def show(event: Event) -> None:
            if event.task == FINAL_EVALUATION:  # the event of the end of the run has its accuracy
                return
            if event.task == "step":
                event = replace(event, task=name, text="" if event.loss is None else f"loss {event.loss:.3f}")
            self.progress(event)

        run = train(
            recipe, self.out / folder, device=str(self.machine.device), progress=show, data=self.data, warn=self.warn
        )
        accuracy = run.read_result()["target_accuracy"]
        text = "" if accuracy is None else f"{100 * accuracy:.1f} % on {recipe.target}"
        self.progress(Event(name, recipe.steps, recipe.steps, text=text, kind="done"))
        return run

    def _plan_tuning(self, seconds: float) -> tuple[Plan, list[str]]:
        """Return the plan with the settings of fine-tuning in this time, and advice if the time is too short."""
        device, domains = self.machine.device.type, len(self.data.domains)
        probe, batch = self.plan.probe(None), batch_on(device, domains)
        images = images_per_second(probe, self.machine, self.data) if not self.plan.tuning else 1.0
        counts = [len(self.data.labels(domain)) for domain in range(domains)]
        rates = Rates(least_seconds_per_step(domains - 1, batch, images), images, counts, 2 if device == "cpu" else 5)
        plan = self.plan
        if plan.tuning is None:
            if rates.steps(seconds) >= FEWEST:
                rates = replace(rates, step=self._seconds_per_step(batch))
            plan = replace(plan, tuning=settings(rates, seconds, batch))
            plan.write(self.out, self.writer.write)
        if plan.tuning:
            return plan, []
        minutes = 5 * math.ceil((self.budget - seconds + rates.seconds(FEWEST)) / 300)
        advice = f"fine-tuning all weights was not tried: it takes {minutes} minutes or more here, a GPU some minutes; "
        return plan, [f"{advice}with more time, repeat the command with --minutes {minutes}"]

    def _seconds_per_step(self, batch: int) -> float:
        """Measure a step of fine-tuning that leaves out a domain."""
        head = RunFolder(self.out).model_file
        plan = replace(self.plan, tuning={"batch": batch})
        return seconds_per_step(plan.tuned(self.data.domains[0], head), self.machine, self.data)

    def _verdict(self, tried: Mapping[str, Mapping[str, RunFolder]]) -> Verdict:
        """Return the verdict on the runs by left-out domain; the best training on average is chosen."""
        results = {name: {domain: run.read_result() for domain, run in runs.items()} for name, runs in tried.items()}
        accuracies = {
            name: {domain: accuracy_of(result) for domain, result in of.items()} for name, of in results.items()
        }
        means = {name: fmean(values.values()) for name, values in accuracies.items()}
        chosen = max(means, key=means.__getitem__)
        expected = list(nested(accuracies).values())
        low, high = interval(expected)
        return Verdict(
            path=self.out,
            chosen=chosen,
            accuracy=fmean(expected),
            low=low,
            high=high,
            by_domain=accuracies[chosen],
            by_class=recalls(results[chosen], self.data.classes),
            majority=fmean(100 * most_frequent(self.data, domain)[1] for domain in self.data.domains),
            others={name: mean for name, mean in means.items() if name != chosen},
            seconds=self._spent(),
        )

    def _judge(self, left_out: Mapping[str, RunFolder]) -> list[str]:
        """Write novelty and thresholds for the final model unless they exist; return a note on the share of answers."""
        out = RunFolder(self.out)
        out.writer = self.writer
        confidence = Confidence.read(out)
        if confidence is None:
            self._note("measuring the novelty of left-out domains")
            confidence = estimate(out, left_out, self.data, self.machine)
            confidence.write(out)
        with suppress(RunError):  # the precision is not reached
            share = confidence.answered(confidence.threshold(PRECISION))
            return [f"--wanted-precision {PRECISION} in mecam predict answers {100 * share:.1f} % of left-out images"]
        return []

    def _deliver(self, verdict: Verdict) -> Verdict:
        """Write the page, the export and the verdict. The export of an unchanged model is kept."""
        title = f"{self.data.name}: each domain left out in turn"
        write_report(self.out / LEFT_OUT, self.out / REPORT, title=title, lead=verdict.lines())
        model, file = digest(read_bytes(RunFolder(self.out).model_file)), self.out / EXPORTED / "model.onnx"
        if not file.exists() or _exported(self.out) != model:
            self._note("exporting to ONNX")
            try:
                export(load_model(self.out), self.out / EXPORTED)
            except ExportError as error:
                model, verdict = "", replace(verdict, notes=(*verdict.notes, f"not exported: {error}"))
        verdict = replace(verdict, seconds=round(self._spent(), 1))
        self.writer.write(self.out / VERDICT, seal({**verdict.to_dict(), "exported": model}))
        return verdict

    def _spent(self) -> float:
        return time.monotonic() - self.start

    def _note(self, text: str) -> None:
        self.progress(Event(NOTE, text=text, kind="warning"))


def publish(run: RunFolder, out: Path, writer: Writer) -> None:
    """Copy the files of a finished run to `out`; a no-op if they are there.

    All copies are complete before the first one takes its place, so that a kill finds the former run or the new one. In
    the few microseconds between the names a reader may find files of both, and reports a wrong checksum; publishing
    again repairs that.
    """
    files = (run.run_file, run.sessions_file, run.records_file, run.model_file, run.predictions_file, run.done_file)
    present = [file for file in files if file.exists()]
    if all(_same(file, out / file.name) for file in present):
        return
    run.verify()
    writer.write_together({out / file.name: read_bytes(file) for file in present})  # done.json is the last


def _same(file: Path, other: Path) -> bool:
    return other.exists() and read_bytes(file) == read_bytes(other)


def _exported(out: Path) -> str | None:
    """Return the digest of the model that was exported last."""
    with suppress(RunError):
        return str(read_sealed(out / VERDICT).get("exported"))
    return None


def _open(plan: Plan, progress: Progress) -> DomainSet:
    """Open the data set, which packs a folder on first use, and note what is in it."""
    data = open_data(plan.data, **plan.probe(None).reading, progress=progress)
    check_several(data)
    progress(Event(NOTE, text=f"{plan.data}: {counts(data)}", kind="warning"))
    for line in notes_on(data):
        progress(Event(NOTE, text=line, kind="warning"))
    return data
