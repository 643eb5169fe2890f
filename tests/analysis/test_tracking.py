"""Tracking: what falls out of a step against the loss evaluated apart, and a training that does not notice."""

import itertools
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_optimizer import AdaHessian
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.analysis.tracked import Record, panels, plot, read, summary
from mecam.analysis.tracking import Tracker
from mecam.optim import CRSAM, FSAM, MSAM, SAM, LookSAM, MeCAM, SharpnessAware
from mecam.optim.registry import OPTIMIZERS
from tests.analysis.nets import at, data, flat, network
from tests.optim.test_frozen import Contrast, in_place, new_memory, through_data
from tests.optim.test_frozen import closure_for as contrast_closure

X, Y = data()
Closure = Callable[[], Tensor]


class Shifted:
    """A virtual domain: the inputs of a model, moved."""

    def __init__(self, model: nn.Module) -> None:
        self.on = False
        model.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,) if self.on else None)

    @contextmanager
    def active(self) -> Iterator[None]:
        self.on = True
        yield
        self.on = False


class Cubic(nn.Module):
    """f(x) = Σ a x + b x² + c x³, on which an extrapolation by cubics is exact."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.3, -0.8, 0.5], dtype=torch.float64))

    def forward(self) -> Tensor:
        return (2 * self.x + 0.7 * self.x**2 - 1.3 * self.x**3).sum()


def closure_for(optimizer: SharpnessAware, model: nn.Module, count: list[int] | None = None) -> Closure:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model() if isinstance(model, Cubic) else F.cross_entropy(model(X), Y)
        loss.backward()  # type: ignore[no-untyped-call]
        if count is not None:
            count.append(1)
        return loss

    return closure


def at_offset(model: nn.Module, rho: float, inputs: Tensor = X) -> float:
    """f(θ + rho u), computed apart."""
    theta = flat(list(model.parameters()))
    g = torch.func.grad(lambda t: at(t, X, Y))(theta)
    return float(at(theta + rho * g / g.norm(), inputs, Y))


def one(model: nn.Module, optimizer: SharpnessAware, **options: Any) -> Record:
    tracker = Tracker(optimizer, **options)
    tracker.step(closure_for(optimizer, model))
    (record,) = tracker.records
    return record


@pytest.mark.parametrize("kind", [MeCAM, CRSAM])
def test_three_passes_on_the_same_data_give_the_differences_of_the_loss(kind: type[SharpnessAware]) -> None:
    model = network()
    f, plus, minus = (at_offset(model, rho) for rho in (0.0, 0.2, -0.2))
    g = torch.func.grad(lambda t: at(t, X, Y))(flat(list(model.parameters())))
    record = one(model, kind(model.parameters(), torch.optim.SGD, lr=0.1, rho=0.2))  # type: ignore[call-arg]
    assert record.minus_from == "pass"
    assert record.f == pytest.approx(f)
    assert [record.plus, record.minus] == pytest.approx([plus - f, minus - f])
    second = plus + minus - 2 * f
    assert record.numerator == pytest.approx(second, rel=1e-8)
    assert record.curvature == pytest.approx(abs(second) / float(g @ g + 1), rel=1e-8)
    assert record.ratio == pytest.approx(second / (plus - minus), rel=1e-8)
    assert record.norms["theta"] == pytest.approx(float(g.norm()))
    assert set(record.cosines) == {"theta plus", "theta minus", "plus minus"}
    assert (record.meta, record.beta) == (None, None)


def test_two_passes_on_a_cubic_give_what_the_third_would_have() -> None:
    model = Cubic()
    x = model.x.detach()
    g = 2 + 1.4 * x - 3.9 * x**2
    u = g / g.norm()

    def f(t: float) -> float:
        y = x + t * u
        return float((2 * y + 0.7 * y**2 - 1.3 * y**3).sum())

    minus = f(-0.3) - f(0)
    record = one(model, SAM(model.parameters(), torch.optim.SGD, lr=0.1, rho=0.3))
    assert record.minus_from == "extrapolated"
    assert record.minus == pytest.approx(minus, rel=1e-10)


def test_the_extrapolation_errs_by_the_fourth_power_of_rho() -> None:
    errors = []
    for rho in (0.1, 0.2, 0.4):
        model = network()
        true = at_offset(model, -rho) - at_offset(model, 0)
        record = one(model, SAM(model.parameters(), torch.optim.SGD, lr=0.1, rho=rho))
        assert record.minus is not None
        errors.append(abs(record.minus - true))
    assert [math.log2(b / a) for a, b in itertools.pairwise(errors)] == pytest.approx([4, 4], abs=0.35)


def test_proposition_3_5_with_a_virtual_domain() -> None:
    model = network()
    optimizer = MeCAM(model.parameters(), torch.optim.SGD, lr=0.1, rho=0.2, alpha=0.3, virtual_domain=Shifted(model))
    f, minus = at_offset(model, 0.0), at_offset(model, -0.2)
    meta = at_offset(model, -0.2, X + 1)
    record = one(model, optimizer, measure=True)
    assert record.minus_from == "measured"
    assert record.minus == pytest.approx(minus - f)
    assert record.meta == pytest.approx(meta - f)
    assert record.beta == pytest.approx(0.3 * (minus - f) / (meta - f))
    assert set(record.losses) == {"theta", "plus", "meta"}


def dropping() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3)).double()


@pytest.mark.filterwarnings("ignore:the model has dropout")
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("known", [True, False])  # whether the optimizer is given the model
def test_training_is_the_same_bit_for_bit(shared: bool, known: bool) -> None:
    states = []
    for measure in (None, False, True):
        model = dropping()
        optimizer = MeCAM(
            model.parameters(),
            torch.optim.Adam,
            lr=0.01,
            virtual_domain=Shifted(model),
            model=model if known else None,
            shared_noise=shared,
        )
        tracker = None if measure is None else Tracker(optimizer, every=2, measure=measure)
        torch.manual_seed(1)
        for _ in range(4):
            closure = closure_for(optimizer, model)
            optimizer.step(closure) if tracker is None else tracker.step(closure)
        states.append((model.state_dict(), torch.get_rng_state()))
    for weights, random in states[1:]:
        assert torch.equal(random, states[0][1])
        assert all(torch.equal(value, states[0][0][name]) for name, value in weights.items())


@pytest.mark.parametrize("average", [in_place, new_memory, through_data])
@pytest.mark.parametrize("known", [True, False])
def test_the_extra_pass_does_not_move_a_key_encoder(average: Callable[[Tensor, Tensor], None], known: bool) -> None:
    states = []
    for measure in (False, True):
        model = Contrast(average)
        optimizer = SAM(model.query.parameters(), torch.optim.SGD, lr=0.1, model=model if known else None)
        tracker = Tracker(optimizer, every=2, measure=measure)
        for _ in range(3):
            tracker.step(contrast_closure(optimizer, model))
        states.append(model.state_dict())
    assert all(torch.equal(value, states[0][name]) for name, value in states[1].items())


def test_no_pass_is_added_but_the_one_asked_for_and_in_logged_steps_alone() -> None:
    calls = {}
    for measure in (False, True):
        model = network()
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
        tracker = Tracker(optimizer, every=3, measure=measure)
        count: list[int] = []
        for _ in range(7):
            tracker.step(closure_for(optimizer, model, count))
            assert optimizer.track is False
        calls[measure] = len(count)
        assert [record.step for record in tracker.records] == [0, 3, 6]
    assert calls == {False: 14, True: 17}


@pytest.mark.parametrize("name", [name for name, entry in OPTIMIZERS.items() if entry.passes > 1])
def test_every_optimizer_with_several_passes_can_be_tracked(name: str) -> None:
    kind = OPTIMIZERS[name].sharpness_aware
    assert kind is not None
    model = network()
    optimizer = kind(model.parameters(), torch.optim.SGD, lr=0.1)  # type: ignore[call-arg]
    tracker = Tracker(optimizer, measure=True)
    f = at_offset(model, 0.0)
    for _ in range(2):
        tracker.step(closure_for(optimizer, model))
    first = tracker.records[0]
    assert first.f == pytest.approx(f)
    assert first.norms["theta"] is not None
    assert len(first.losses) == len(first.norms)
    json.dumps(first.losses, allow_nan=False)


def test_a_gradient_with_a_graph_keeps_it() -> None:
    model = network()
    optimizer = SAM(model.parameters(), AdaHessian, lr=0.1)
    tracker = Tracker(optimizer, measure=True)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward(create_graph=optimizer.needs_graph)  # type: ignore[no-untyped-call]
        return loss

    tracker.step(closure)
    assert tracker.records[0].minus_from == "extrapolated"


def test_what_is_not_there_is_none() -> None:
    model = network()
    record = one(model, FSAM(model.parameters(), torch.optim.SGD, lr=0.1))  # its second pass is not at θ+δ
    assert (record.plus, record.minus, record.ratio, record.curvature) == (None, None, None, None)
    assert set(record.losses) == {"theta", "1"}
    model = network()
    optimizer = LookSAM(model.parameters(), torch.optim.SGD, lr=0.1, k=2)
    tracker = Tracker(optimizer)
    for _ in range(2):
        tracker.step(closure_for(optimizer, model))
    assert [len(record.losses) for record in tracker.records] == [2, 1]
    model = network()
    groups = [{"params": model[0].parameters(), "rho": 0.1}, {"params": model[2].parameters(), "rho": 0.4}]
    record = one(model, SAM(groups, torch.optim.SGD, lr=0.1))
    assert record.rho is None
    assert record.plus is not None
    assert record.minus is None
    model = network()
    assert one(model, SAM(model.parameters(), torch.optim.SGD, lr=0.1), extrapolate=False).minus is None


def test_steps_without_a_loss_and_losses_that_are_not_finite() -> None:
    model = network()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, nonfinite="skip")
    tracker = Tracker(optimizer)

    def nothing() -> None:
        optimizer.zero_grad()

    def broken() -> Tensor:
        return closure_for(optimizer, model)() * torch.nan

    assert tracker.step(nothing) is None
    assert tracker.records == []
    tracker.step(broken)
    assert (tracker.records[0].step, tracker.records[0].f, tracker.records[0].ratio) == (1, None, None)


def test_records_are_json_lines_and_a_resumed_run_continues_them(tmp_path: Path) -> None:
    model = network()
    optimizer = MeCAM(model.parameters(), torch.optim.SGD, lr=0.1)
    path = tmp_path / "tracking.jsonl"
    tracker = Tracker(optimizer, every=2, path=path)
    for step in range(7):
        tracker.step(closure_for(optimizer, model), step)
    assert read(path) == tracker.records
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 2, 4, 6]
    again = Tracker(optimizer, every=2, path=path)
    again.resume(after=3)
    for step in range(4, 7):
        again.step(closure_for(optimizer, model), step)
    assert [record.step for record in read(path)] == [0, 2, 4, 6]
    assert read(path)[:2] == tracker.records[:2]
    assert read(path) == again.records


def descended(start: float, steps: int = 60) -> Tracker:
    """MeCAM on f = ½‖x‖² from afar: H is the same everywhere, and ‖∇f‖ falls."""
    model = nn.Linear(1, 3, bias=False).double()
    nn.init.constant_(model.weight, start)
    optimizer = MeCAM(model.parameters(), torch.optim.SGD, lr=0.1, rho=0.1)
    tracker = Tracker(optimizer, every=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = 0.5 * (model.weight**2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(steps):
        tracker.step(closure)
    return tracker


def test_the_summary_shows_the_principles_on_a_bowl() -> None:
    tracker = descended(10.0)
    for record in tracker.records:
        slope = record.norms["theta"]
        assert slope is not None
        assert record.ratio == pytest.approx(0.1 / (2 * slope))
    result = tracker.summary()
    assert result.small_far
    assert result.grows
    assert result.correlation == pytest.approx(-1)
    assert [result.far_hessian, result.near_hessian] == pytest.approx([1, 1])
    assert "shows both" in result.text()


def test_the_summary_reports_where_they_do_not_show() -> None:
    near_from_the_start = descended(0.001).summary()
    assert not near_from_the_start.small_far
    assert "shows the second only" in near_from_the_start.text()
    backwards = [replace(r, f=-r.f) for r in descended(10.0).records if r.f is not None]
    assert not summary(backwards).grows
    assert "shows neither" in summary(backwards).text()
    with pytest.raises(ValueError, match=r"5 records .* at least 6"):
        summary(backwards[:5])


def test_the_summary_counts_betas() -> None:
    betas = [-0.1, 0.05, 0.1, 0.2, None] + [0.05] * 25
    records = [replace(r, beta=beta) for r, beta in zip(descended(1.0).records, betas, strict=True)]
    result = summary(records)
    assert result.betas is not None
    assert (result.betas.defined, result.betas.positive, result.betas.allowed) == (29, 28 / 29, 27 / 29)
    assert "Proposition 3.5" in result.text()


def test_the_summary_reports_what_is_extrapolated() -> None:
    tracker = descended(10.0)
    assert tracker.summary().extrapolated == 0
    assert "Caution" not in tracker.summary().text()
    records = [replace(r, minus_from="extrapolated") for r in tracker.records[:7]] + tracker.records[7:]
    result = summary(records)
    assert result.extrapolated == 7
    assert "shows both (extrapolated, see below)." in result.text()
    assert "Caution: f(θ−δ) is extrapolated in 7 of 30 records" in result.text()
    assert "track_measures=true" in result.text()


def test_there_is_no_verdict_from_the_noise_of_dropout() -> None:
    records = descended(10.0).records
    result = summary(records, noisy=True)
    assert result.verdict is None
    assert "this run shows" not in result.text()
    assert "small" not in result.text()
    assert result.text().startswith("No verdict: every pass drew its own dropout masks")
    assert f"{summary(records).far:.3g} far from convergence" in result.text()
    with pytest.warns(UserWarning, match="shared_noise"):
        noisy = Tracker(SAM((model := dropping()).parameters(), torch.optim.SGD, lr=0.1, model=model))
    quiet = Tracker(SAM(model.parameters(), torch.optim.SGD, lr=0.1, model=model, shared_noise=True))
    for tracker in (noisy, quiet):
        tracker.records = records
    assert (noisy.summary().verdict, quiet.summary().verdict) == (None, "both")


@pytest.mark.parametrize(("every", "measure", "source"), [
    (10, None, "measured"), (9, None, "extrapolated"), (10, False, "extrapolated"), (1, True, "measured"),
])  # fmt: skip
def test_the_loss_at_minus_delta_is_measured_where_that_is_cheap(every: int, measure: bool | None, source: str) -> None:
    model = network()
    record = one(model, SAM(model.parameters(), torch.optim.SGD, lr=0.1), every=every, measure=measure)
    assert record.minus_from == source


def test_plot_of_a_run_with_gaps_in_it(tmp_path: Path) -> None:
    cosines = [{"theta plus": 0.1 * n, "theta minus": -0.1 * n, "plus minus": 0.5} for n in range(10)]
    pairs = zip(descended(1.0, 20).records, cosines, strict=True)
    records = [replace(record, cosines={**three}) for record, three in pairs]
    records[3] = replace(records[3], f=None, ratio=None, cosines={})
    curves = panels(records)
    assert len(curves["cosines of gradients"]) == 3
    for pair, values in curves["cosines of gradients"].items():
        assert values[:3] == [cosine[pair] for cosine in cosines[:3]]
        assert math.isnan(values[3])
    assert set(curves["gaps"]) == {"f(θ+δ) − f", "f(θ−δ) − f"}
    assert curves["|ratio|"]["ratio"][1] == abs(records[1].ratio or 0)
    guessed = panels([replace(records[0], minus_from="extrapolated"), *records[1:]])["gaps"]
    assert set(guessed) == {"f(θ+δ) − f", "f(θ−δ) − f", "f(θ−δ) − f, extrapolated"}
    assert guessed["f(θ−δ) − f, extrapolated"][0] == records[0].minus
    assert math.isnan(guessed["f(θ−δ) − f"][0])
    assert plot(records, tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in plot(records[:1], tmp_path / "t.svg").read_bytes()


def test_bad_requests() -> None:
    model = network()
    with pytest.raises(TypeError, match="SGD takes one pass"):
        Tracker(torch.optim.SGD(model.parameters()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="MSAM takes one pass per step; tracking needs an optimizer with several"):
        Tracker(MSAM(model.parameters(), torch.optim.SGD, lr=0.1))
    with pytest.raises(ValueError, match="every=0"):
        Tracker(SAM(model.parameters(), torch.optim.SGD, lr=0.1), every=0)
