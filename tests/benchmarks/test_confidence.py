"""Temperature and AUROC of the benchmark on confidence, against independent computations in float64."""

import sys
from pathlib import Path

import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import confidence


@pytest.mark.parametrize("scale", [0.3, 4.0])
def test_the_temperature_has_the_least_cross_entropy(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 5, generator=generator).double()
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    rows, right = (scale * logits).numpy(), labels.numpy()

    def loss(temperature: float) -> float:
        scaled = rows / temperature
        return float((logsumexp(scaled, axis=1) - scaled[range(400), right]).mean())

    found = confidence.temperature(scale * logits, labels)
    best = minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-10})
    assert found == pytest.approx(best.x, rel=1e-5)
    assert loss(found) <= best.fun + 1e-14


def test_auroc_is_the_share_of_ordered_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    negative, positive = (
        torch.randint(0, 9, (count,), generator=generator).double() + up for count, up in ((40, 0), (30, 2))
    )
    pairs = [(high > low) + (high == low) / 2 for low in negative.tolist() for high in positive.tolist()]
    assert confidence.auroc(negative, positive) == pytest.approx(sum(pairs) / 1200, rel=1e-12)
