"""The training loop: from a recipe and its data to selected weights in a run folder.

Steps are numbered as in the protocol: step 0 to `steps`, an update each, evaluated after step 0, k, 2k, ... and the
last.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

from mecam import ranks
from mecam.data.domains import DomainSet, source_domains
from mecam.data.notes import warn_about
from mecam.data.open import open_data
from mecam.data.pack import require_outside
from mecam.progress import Event, Progress, showing, silent
from mecam.recipe import Recipe, compose, departures, names_in, read, recipe_of
from mecam.runs import RunFolder, sessions
from mecam.runs.timing import timed
from mecam.training.build import check_start
from mecam.training.interrupt import Interrupted, StopSignals
from mecam.training.machine import find_machine
from mecam.training.nonfinite import BadStep, step_error
from mecam.training.reopen import note_weights
from mecam.training.result import finish, validate
from mecam.training.run import Run
from mecam.training.sizing import Length, decided
from mecam.training.state import load_state_dict, state_dict
from mecam.training.step import start_tracking, train_step
from mecam.training.watch import accuracies, watching

SAVE_EVERY = 60.0  # least seconds between checkpoints: one of a large network takes seconds
LISTEN_EVERY = 10  # steps between exchanges of received signals among processes
FINAL = "final evaluation"  # the task of its events
Warn = Callable[[Warning], None]


def train(
    recipe: Recipe | Path | str | None = None,
    out: Path | str = "runs",
    *,
    data: DomainSet | Path | str | None = None,
    minutes: float | None = None,
    device: str = "auto",
    progress: Progress | bool = False,
    warn: Warn = warnings.warn,
    **entries: Any,
) -> RunFolder:
    """Train one model in <out>/<run id>, as `mecam train` does, or resume it; no-op for a finished run.

        run = mecam.train(data="root", optimizer="mecam", out="tuned", progress=True)
        print(run.summary())

    One process at a time works on a run (ClaimedError), whoever starts it. A run resumes on the data and weights that
    it began with (RunError).

    Args:
        recipe: a recipe or a TOML file, of which `data` and `entries` replace entries.
        data: a folder root/<domain>/<class>/<image>, a store or the name of a data set; or the recipe's data set,
            already open.
        minutes: sets the steps to those that fit into this time, measured at the start. The same call resumes with
            them.
        progress: True shows progress as the command does. A function gets the events of packing, of computing
            features, and of every step.
        warn: gets a DataWarning for skipped images, duplicates and the like, and a CircumstancesWarning if the run
            resumes with other code, or another instruction set, torch version, device or number of threads.
        entries: entries of the recipe, such as `optimizer="mecam", steps=500`.
    """
    if isinstance(data, (Path, str)):
        data, entries["data"] = None, str(data)
    asked = recipe
    recipe = compose(recipe, entries) if entries or not isinstance(recipe, Recipe) else recipe
    if not RunFolder(Path(out) / recipe.run_id).exists():
        check_start(recipe)
        if Path(recipe.data).is_dir():
            require_outside(Path(out), Path(recipe.data))
    if minutes is not None:
        machine = find_machine(device, recipe.precision, deterministic=recipe.deterministic)
        with showing(progress if machine.writes else silent) as show:
            data = open_data(recipe.data, **recipe.reading, progress=show) if data is None else data
        stated = {} if asked is None else departures(asked) if isinstance(asked, Recipe) else read(Path(asked))
        given = frozenset(entries) | stated.keys() - {"steps"}  # steps of a recipe give way to minutes
        recipe = decided(Length(recipe, minutes, given), Path(out), machine, data)
    return carry_out(recipe, out, data=data, device=device, progress=progress, warn=warn)


def carry_out(
    recipe: Recipe, out: Path | str, *, data: DomainSet | None, device: str, progress: Progress | bool, warn: Warn
) -> RunFolder:
    """Run or resume a recipe as it is, also one of an earlier version with entries that nothing uses."""
    machine = find_machine(device, recipe.precision, deterministic=recipe.deterministic)
    folder = RunFolder(Path(out) / recipe.run_id)
    if ranks.from_first(folder.is_done()):
        return folder
    if not machine.writes:
        progress = silent
    if data is None:
        with showing(progress) as show:
            data = open_data(recipe.data, **recipe.reading, progress=show)
        if machine.writes:
            warn_about(data, warn)
    start = time.monotonic()
    with _watched(progress, recipe, data) as shown, ExitStack() as stack:
        run = Run(recipe, machine, data, shown)
        if machine.writes:
            note_weights(recipe, run.fingerprints["weights"])
            stack.enter_context(folder.claimed())
        write = folder.writer.write if machine.writes else None
        with timed(folder.path, shown, write, since=start) as show, StopSignals() as signals:
            state = ranks.from_first(_begin(folder, run, warn) if machine.writes else None)
            if not ranks.from_first(folder.is_done()):
                try:
                    _take_steps(run, folder, state, signals, show)
                except (Interrupted, FloatingPointError) as error:
                    if machine.writes:
                        folder.end_session(str(error))
                    raise
    return folder


def _watched(progress: Progress | bool, recipe: Recipe, data: DomainSet) -> AbstractContextManager[Progress]:
    """Yield the function that shows the steps."""
    if isinstance(progress, bool):
        return watching(recipe, len(source_domains(data, recipe.target, names_in(recipe.sources))), quiet=not progress)
    return nullcontext(progress)


def _begin(folder: RunFolder, run: Run, warn: Warn) -> dict[str, Any] | None:
    """Start the run in its folder, or resume it; warn if its last session had other code or circumstances."""
    recipe, environment = run.recipe, run.machine.describe()
    if folder.has_checkpoint() and not folder.is_done():
        last = [folder.read_run(), *folder.read_sessions()][-1]  # a run without sessions.jsonl has its run.json
        change = sessions.resumed(last.get("environment"), environment)
        if change is not None:
            warn(change)  # which may refuse it: before the session is recorded
    values = recipe.to_dict()
    if folder.run_file.exists() and recipe_of(folder.path) == recipe:  # perhaps written by another version
        values = folder.read_run()["recipe"]
    return folder.begin(values, environment, run_id=recipe.run_id, fingerprints=run.fingerprints)


def _take_steps(
    run: Run, folder: RunFolder, state: dict[str, Any] | None, signals: StopSignals, progress: Progress
) -> None:
    """Train from the checkpoint's state, or from the start, to the end."""
    steps, first, saved = run.recipe.steps, 0, time.monotonic()
    on_cpu, writes = run.machine.device.type == "cpu", run.machine.writes
    if state is not None:
        load_state_dict(run, state)
        first = state["step"] + 1
    if run.recipe.track:
        start_tracking(run, folder, first - 1)
    for step in range(first, steps + 1):
        if run.best.stopped:
            break
        try:
            loss = train_step(run, step)
            record = validate(run, step) if step % run.recipe.evaluate_every == 0 or step == steps else None
        except BadStep as bad:
            state = state_dict(run, step - 1)
            raise step_error(folder, bad, state) if writes else FloatingPointError(bad.reason) from bad
        if record is not None and writes:
            folder.append(record)
        if record is not None and ranks.from_first(time.monotonic() - saved > SAVE_EVERY):
            _save(run, folder, step)
            saved = time.monotonic()
        seen = None if loss is None or not (on_cpu or record) else float(loss)  # reading it makes a GPU wait
        progress(Event("step", step, steps, loss=seen, record=record))
        if number := _signal(signals, step):
            _save(run, folder, step)
            raise Interrupted(number, step)
    everything = sum(map(len, run.splits.values()))
    progress(Event(FINAL, text=f"the selected weights, on {everything:,} images"))
    result = finish(run)
    progress(Event(FINAL, text=accuracies(result.metrics, run.recipe), kind="done"))
    if writes:
        folder.write_model(result.weights, result.facts)
        folder.write_predictions(result.predictions)
        folder.finish(result.metrics)


def _save(run: Run, folder: RunFolder, step: int) -> None:
    state = state_dict(run, step)
    if run.machine.writes:
        folder.save_checkpoint(state)


def _signal(signals: StopSignals, step: int) -> int | None:
    """Return the signal to stop at, the same in every process."""
    if ranks.count() == 1:
        return signals.received
    if step % LISTEN_EVERY:
        return None
    return max(number or 0 for number in ranks.gather(signals.received)) or None
