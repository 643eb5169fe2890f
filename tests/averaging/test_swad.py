"""SWAD against the rule written out over the whole history, and by hand."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from mecam.averaging import SWAD
from mecam.averaging.swad import Judge
from mecam.runs import checkpoint
from tests.averaging.nets import OneWeight, batch_norm_network, train_step

EVERY = 100  # steps of training between two evaluations, in name


@dataclass
class Outcome:
    stopped: int | None  # index of the segment at whose end training stops
    kept: list[int]  # indices of the averaged segments


def by_the_book(losses: list[float], n_converge: int, n_tolerance: int, tolerance: float) -> Outcome:
    """The valley from the full list of losses: where it starts, and the first run of n_tolerance above it."""
    for now in range(n_converge - 1, len(losses)):
        first = now - n_converge + 1
        window = losses[first : now + 1]
        if window[0] == min(window):
            break
    else:
        return Outcome(None, [len(losses) - 1])
    threshold = max(sum(window) / n_converge, min(window)) * (1 + tolerance)
    start = first
    for earlier in range(first - 1, max(-1, first - 1 - (n_tolerance - n_converge)), -1):
        if losses[earlier] > threshold:
            break
        start = earlier
    below = [i for i in range(first, len(losses)) if losses[i] <= threshold]
    for last, following in zip(below, [*below[1:], len(losses)], strict=True):
        if following - last > n_tolerance:
            return Outcome(max(now, last + n_tolerance), list(range(start, last + 1)))
    return Outcome(None, list(range(start, below[-1] + 1)))


def train_along(
    swad: SWAD, segments: list[list[float]], loss: Callable[[int, float], float]
) -> tuple[int | None, float, list[int]]:
    """Train along these weights, with `loss` of the segment and the weight that is evaluated.

    Return the segment at whose end training stopped, the final weight and the kept segments.
    """
    model = OneWeight()
    for index, weights in enumerate(segments):
        for weight in weights:
            swad.update(model.set(weight))
        candidate = swad.candidate(model)
        judged = weights[-1] if candidate is None else candidate["w"].item()
        if swad.evaluated(index * EVERY, loss(index, judged), model):
            break
        assert len(swad.segments) <= max(swad.n_tolerance, swad.n_converge)
    else:
        index = -1
    final = swad.final()
    assert final is not None
    return (None if index < 0 else index), final["w"].item(), [step // EVERY for step in swad.kept()]


def follow(swad: SWAD, losses: list[float], segments: list[list[float]]) -> tuple[int | None, float, list[int]]:
    """Train along these weights, with given losses."""
    return train_along(swad, segments, lambda index, _: losses[index])


few = st.sampled_from([0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 4.0])  # many ties, exact sums
runs = st.lists(
    st.tuples(few | st.floats(0.01, 10), st.lists(st.floats(-5, 5), min_size=1, max_size=3)), min_size=1, max_size=30
)


@settings(max_examples=250, deadline=None)
@given(run=runs, n_converge=st.integers(1, 4), n_tolerance=st.integers(1, 7), tolerance=st.sampled_from([0.0, 0.25, 1]))
@example(run=[(x, [x]) for x in (2.0, 1.25, 1.0, 1.0, 1.0, 1.25, 1.5)], n_converge=3, n_tolerance=6, tolerance=0.25)
@example(run=[(1.0, [float(i)]) for i in range(30)], n_converge=3, n_tolerance=6, tolerance=0.25)
# the mean of three equal losses is rounded to less than each
@example(run=[(5.479566135268874, [0.0])] * 3, n_converge=3, n_tolerance=1, tolerance=0.0)
def test_any_run_is_averaged_by_the_rule(
    run: list[tuple[float, list[float]]], n_converge: int, n_tolerance: int, tolerance: float
) -> None:
    losses, segments = [loss for loss, _ in run], [weights for _, weights in run]
    expected = by_the_book(losses, n_converge, n_tolerance, tolerance)
    swad = SWAD(n_converge=n_converge, n_tolerance=n_tolerance, tolerance=tolerance)
    stopped, weight, kept = follow(swad, losses, segments)
    assert stopped == expected.stopped
    assert kept == expected.kept
    means = [math.fsum(segments[i]) / len(segments[i]) for i in expected.kept]
    assert weight == pytest.approx(math.fsum(means) / len(means), abs=1e-12)


@pytest.mark.parametrize(
    ("losses", "stopped", "kept"),
    [
        pytest.param([9, 8, 7, 6, 5, 4, 3, 2], None, [7], id="falls to the end: the last segment"),
        pytest.param([9], None, [0], id="one evaluation"),
        pytest.param([1, 2], None, [1], id="too short for a window"),
        pytest.param([1, 1, 1], None, [0, 1, 2], id="starts at the first window, all flushed"),
        # threshold (1 + 1.2 + 1.4) / 3 * 1.3 = 1.56
        pytest.param([1, 1.2, 1.4, 1.5], None, [0, 1, 2, 3], id="flush to the end"),
        pytest.param([1, 1.2, 1.4, 1.6, 1.6], None, [0, 1, 2], id="flush to the last under the threshold"),
        pytest.param([1, 1.2, 1.4, 1.6, 1.5, 1.6], None, [0, 1, 2, 3, 4], id="one above between two under"),
        pytest.param([1, 1.2, 1.4, *[2] * 6], 8, [0, 1, 2], id="dead after six above"),
        pytest.param([1, 1.2, 1.4, *[2] * 5, 1.5, *[2] * 9], 14, [*range(9)], id="five above, then one under"),
        pytest.param([1, 1.2, 1.4, *[2] * 5], None, [0, 1, 2], id="five above at the end"),
        # the window is 3, 4, 5; up to 6 - 3 segments before 3 are looked at
        pytest.param([1.6, 1.5, 1.5, 1, 1.2, 1.4], None, [1, 2, 3, 4, 5], id="earlier ones, as far as under"),
        pytest.param([1.55, 1.6, 1.5, 1, 1.2, 1.4], None, [2, 3, 4, 5], id="earlier ones end at the first above"),
        pytest.param([1.54, 1.53, 1.52, 1.51, 1, 1.2, 1.4], None, [1, 2, 3, 4, 5, 6], id="at most three earlier"),
        pytest.param([5, 1, 3, 0.5, 0.9, 0.9], None, [3, 4, 5], id="no window before the least"),
        pytest.param([3, 2, 2, 2, 1, 1, 1], None, [1, 2, 3, 4, 5, 6], id="ties start a valley"),
    ],
)
def test_runs_by_hand(losses: list[float], stopped: int | None, kept: list[int]) -> None:
    segments = [[10.0**i] for i in range(len(losses))]  # the sum of the kept is their digits
    got = follow(SWAD(), losses, segments)
    assert got[0] == stopped
    assert got[2] == kept
    assert got[1] == pytest.approx(float(sum(Fraction(10) ** i for i in kept) / len(kept)), rel=1e-12)


def test_segments_count_alike_whatever_their_length() -> None:
    _, weight, _ = follow(SWAD(), [1, 1, 1], [[3.0], [0.0, 6.0, 6.0, 0.0], [9.0, 9.0]])
    assert weight == pytest.approx((3 + 3 + 9) / 3)


def test_final_changes_nothing() -> None:
    swad, model = SWAD(), OneWeight()
    for step, loss in enumerate([1, 1, 1, 5, 1, 5]):
        swad.update(model.set(step))
        swad.evaluated(step, loss, model)
        first, second = swad.final(), swad.final()
        assert first is not None
        assert second is not None
        assert torch.equal(first["w"], second["w"])
        first["w"].fill_(100)
    assert swad.final()["w"].item() == pytest.approx(2.0)  # type: ignore[index]


def test_before_and_between_evaluations() -> None:
    swad, model = SWAD(), OneWeight()
    assert swad.candidate(model) is None
    assert swad.final() is None
    assert swad.evaluated(0, 0.1, model) is False  # an evaluation before the first step is no segment
    assert swad.segments == []
    swad.update(model.set(1))
    swad.update(model.set(2))
    assert swad.final()["w"] == 1.5  # type: ignore[index] # no evaluation yet: what there is
    swad.evaluated(1, 1.0, model)
    swad.update(model.set(50))
    assert swad.final()["w"] == 1.5  # type: ignore[index] # steps after the last evaluation have no loss


def test_a_dead_valley_stays_dead() -> None:
    swad, model = SWAD(n_converge=1, n_tolerance=1), OneWeight()
    swad.update(model.set(1))
    assert not swad.evaluated(0, 1.0, model)
    swad.update(model.set(2))
    assert swad.evaluated(1, 9.0, model)
    swad.update(model.set(3))
    assert swad.candidate(model) is None
    assert swad.evaluated(2, 0.1, model)
    assert swad.final()["w"] == 1  # type: ignore[index]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_weights_gone_astray_end_the_valley(broken: float) -> None:
    stopped, weight, kept = follow(SWAD(), [1, 1, 1, 1.2, broken], [[1.0], [2.0], [3.0], [4.0], [math.inf]])
    assert (stopped, weight, kept) == (4, 2.5, [0, 1, 2, 3])
    # before a start they neither start a valley nor join it
    stopped, weight, kept = follow(
        SWAD(), [1, broken, broken, 1, 1, 1], [[1.0], [math.inf], [math.inf], [4.0], [5.0], [6.0]]
    )
    assert (stopped, weight, kept) == (None, 5.0, [3, 4, 5])


def loss_at(_: int, weight: float) -> float:
    """A validation loss with several valleys."""
    return 0.2 + (weight - 1) ** 2 / 4 + 0.15 * math.sin(9 * weight) ** 2


def random_walk(generator: random.Random) -> list[list[float]]:
    """Weights of some segments of several steps each, from far away into and out of a valley."""
    weight, drift, segments = generator.uniform(-3, 4), generator.uniform(0.02, 0.3), []
    for _ in range(generator.randint(1, 40)):
        segment = []
        for _ in range(generator.randint(1, 6)):
            weight += drift * (1 - weight) / 2 + generator.gauss(0, drift)
            segment.append(weight)
        segments.append(segment)
    return segments


@pytest.mark.parametrize("judge", ["current", "segment"])
def test_random_histories_are_judged_by_the_current_model_or_by_segment_means(judge: Judge) -> None:
    """200 histories against the rule on the losses of the models at the evaluations, or of the segments' means."""
    generator, stopped_early, differ = random.Random(7), 0, 0
    for _ in range(200):
        segments = random_walk(generator)
        n_converge, n_tolerance = generator.randint(1, 4), generator.randint(1, 7)
        tolerance = generator.choice([0.1, 0.2, 0.3])
        means = [math.fsum(weights) / len(weights) for weights in segments]
        current, averaged = [loss_at(0, weights[-1]) for weights in segments], [loss_at(0, mean) for mean in means]
        settings: dict[str, Any] = {"n_converge": n_converge, "n_tolerance": n_tolerance, "tolerance": tolerance}
        expected = by_the_book(current if judge == "current" else averaged, **settings)
        given = {} if judge == "current" else {"judge": judge}  # the current model by default
        stopped, weight, kept = train_along(SWAD(**settings, **given), segments, loss_at)
        assert (stopped, kept) == (expected.stopped, expected.kept)
        assert weight == pytest.approx(math.fsum(means[i] for i in kept) / len(kept), rel=1e-12)
        stopped_early += stopped is not None
        differ += by_the_book(current, **settings) != by_the_book(averaged, **settings)
    assert stopped_early > 20
    assert differ > 50  # the two are different rules on most histories


@pytest.mark.parametrize(("older", "judge"), [(True, "segment"), (False, "current"), (None, "current")])
def test_stored_recipes_name_the_judge_by_segment_loss(older: bool | None, judge: str) -> None:
    swad, model = SWAD(segment_loss=older), OneWeight()
    assert swad.judge == judge
    swad.update(model.set(1))
    swad.update(model.set(2))
    candidate = swad.candidate(model)
    assert (None if candidate is None else candidate["w"].item()) == (1.5 if judge == "segment" else None)


def test_an_unknown_judge_is_refused() -> None:
    with pytest.raises(ValueError, match="SWAD: judge='mean' is not allowed; it must be one of current, segment"):
        SWAD(judge="mean")  # type: ignore[arg-type]


def losses_of_a_run(steps: int) -> list[float]:
    return [3, 2, 1, 1.1, 1.2, 1.1, 2, 1.3, 1.1, 2, 2, 1][:steps]


@pytest.mark.parametrize("cut", range(0, 37, 5))
def test_a_run_resumes_bit_for_bit(tmp_path: Path, cut: int) -> None:
    """Through files, at any step: in a segment, at an evaluation, before and after the start of the valley."""

    def train(stop_at: int | None) -> tuple[dict[str, torch.Tensor] | None, list[int]]:
        model, swad = batch_norm_network(), SWAD()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(1)
        for step in range(36):
            if step == stop_at:
                parts = [part.state_dict() for part in (model, swad, optimizer)]
                checkpoint.save(tmp_path, [*parts, generator.get_state()])
                model, swad = batch_norm_network(), SWAD()
                optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
                *parts, draws = checkpoint.load(tmp_path)
                for part, saved in zip((model, swad, optimizer), parts, strict=True):
                    part.load_state_dict(saved)
                generator = torch.Generator()
                generator.set_state(draws)
            train_step(model, optimizer, generator)
            swad.update(model)
            if step % 3 == 2:
                swad.evaluated(step, losses_of_a_run(12)[step // 3], model)
        return swad.final(), swad.kept()

    (whole, kept), (resumed, kept_again) = train(None), train(cut)
    assert kept == kept_again
    assert whole is not None
    assert resumed is not None
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_loading_is_a_copy() -> None:
    swad, twin, model = SWAD(), SWAD(), OneWeight()
    swad.update(model.set(1))
    twin.load_state_dict(swad.state_dict())
    twin.update(model.set(5))
    assert swad.final()["w"] == 1  # type: ignore[index]
    assert twin.final()["w"] == 3  # type: ignore[index]


def test_half_precision_weights_are_averaged_in_float32_and_come_back_as_they_are() -> None:
    swad, model = SWAD(), OneWeight(torch.bfloat16)
    for step in range(30):
        for _ in range(50):
            swad.update(model.set(1.0))
            swad.update(model.set(1.0078125))  # the next bfloat16
        swad.evaluated(step, 1.0, model)
    assert swad.mean.values["w"].dtype == torch.float32
    assert swad.mean.values["w"].item() == pytest.approx(1.00390625, abs=1e-6)
    assert swad.final()["w"].dtype == torch.bfloat16  # type: ignore[index]


def test_the_final_weights_fit_the_model() -> None:
    model, swad = batch_norm_network(), SWAD()
    optimizer, generator = torch.optim.SGD(model.parameters(), lr=0.1), torch.Generator().manual_seed(0)
    history: list[dict[str, torch.Tensor]] = []
    for step in range(8):
        train_step(model, optimizer, generator)
        swad.update(model)
        history.append({name: value.clone() for name, value in model.state_dict().items()})
        if step % 2:
            swad.evaluated(step, 1.0, model)
    final = swad.final()
    assert final is not None
    model.load_state_dict(final)
    assert final["1.num_batches_tracked"].item() == 8
    for name in ("0.weight", "1.running_mean", "1.running_var"):
        torch.testing.assert_close(final[name], torch.stack([state[name] for state in history]).mean(0))


@pytest.mark.parametrize(
    ("setting", "value"), [("n_converge", 0), ("n_converge", 2.5), ("n_tolerance", 0), ("tolerance", -0.1)]
)
def test_settings_are_checked(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"SWAD: {setting}={value} is not allowed"):
        SWAD(**{setting: value})  # type: ignore[arg-type]


def test_frozen_weights_come_back_bit_for_bit() -> None:
    torch.manual_seed(3)
    model, swad = nn.Linear(50, 50), SWAD()
    for step in range(20):
        for _ in range(7):
            swad.update(model)
        swad.evaluated(step, 1.0, model)
    assert torch.equal(swad.final()["weight"], model.weight)  # type: ignore[index]
