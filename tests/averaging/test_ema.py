"""EMA against its closed form."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mecam.averaging import EMA
from tests.averaging.nets import OneWeight, batch_norm_network, train_step


@settings(max_examples=100, deadline=None)
@given(weights=st.lists(st.floats(-5, 5), min_size=1, max_size=40), decay=st.floats(0, 0.9999))
def test_the_average_is_the_weighted_mean(weights: list[float], decay: float) -> None:
    ema, model = EMA(decay=decay), OneWeight()
    for weight in weights:
        ema.update(model.set(weight))
    shares = [decay ** (len(weights) - 1 - k) for k in range(len(weights))]
    expected = sum(s * w for s, w in zip(shares, weights, strict=True)) / sum(shares)
    candidate = ema.candidate(model)
    assert candidate is not None
    assert candidate["w"].item() == pytest.approx(expected, abs=1e-9)


def test_selection_is_among_the_averages_and_training_is_never_stopped() -> None:
    ema, model = EMA(), OneWeight()
    assert ema.candidate(model) is None
    for step, loss in enumerate([1.0, 9.0, 99.0, float("nan")]):
        ema.update(model.set(step))
        assert ema.evaluated(step, loss, model) is False
    assert ema.final() is None
    assert not ema.needs_bn_update


def test_a_candidate_is_a_copy() -> None:
    ema, model = EMA(decay=0.5), OneWeight()
    ema.update(model.set(1))
    kept = ema.candidate(model)
    ema.update(model.set(4))
    assert kept is not None
    assert kept["w"] == 1
    assert ema.candidate(model)["w"] == 3  # type: ignore[index]


def test_statistics_are_averaged_and_counts_are_not() -> None:
    model, ema = batch_norm_network(), EMA(decay=0.5)
    optimizer, generator = torch.optim.SGD(model.parameters(), lr=0.1), torch.Generator().manual_seed(0)
    history = []
    for _ in range(2):
        train_step(model, optimizer, generator)
        ema.update(model)
        history.append({name: value.clone() for name, value in model.state_dict().items()})
    candidate = ema.candidate(model)
    assert candidate is not None
    for name in ("0.weight", "1.running_var"):
        torch.testing.assert_close(candidate[name], history[0][name] / 3 + 2 * history[1][name] / 3)
    assert candidate["1.num_batches_tracked"] == 2


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_the_decay_is_checked(decay: float) -> None:
    with pytest.raises(ValueError, match=r"EMA: decay=.* is not allowed"):
        EMA(decay=decay)
