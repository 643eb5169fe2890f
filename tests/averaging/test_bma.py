"""BMA against SciPy's Beta distribution."""

from pathlib import Path

import pytest
import torch
from scipy.stats import beta as beta_distribution

from mecam.averaging import BMA
from mecam.data.shapes import shapes
from mecam.models.network import Network
from mecam.recipe import Recipe
from mecam.training import train
from tests.averaging.nets import OneWeight

DATA = shapes(per_class=4)


@pytest.mark.parametrize("b", [0.1, 0.5, 1, 3])
def test_every_average_has_the_shares_of_the_beta_distribution(b: float) -> None:
    weights, model, bma = [3.0, -1.0, 0.5, 7.0, 2.0], OneWeight(), BMA(beta=b)
    bma.begin(model.set(weights[0]), 4)
    for k, weight in enumerate(weights[1:], start=2):
        bma.update(model.set(weight))
        shares = beta_distribution.pdf([(j + 0.5) / 5 for j in range(k)], b, b)
        expected = sum(s * w for s, w in zip(shares, weights, strict=False)) / sum(shares)
        assert bma.candidate(model)["w"].item() == pytest.approx(expected, abs=1e-9)  # type: ignore[index]


def test_it_resumes_from_its_state() -> None:
    model, whole, resumed = OneWeight(), BMA(), BMA()
    whole.begin(model.set(1), 3)
    whole.update(model.set(2))
    resumed.begin(model.set(9), 3)  # as after a restart: with fresh weights, before the state is loaded
    resumed.load_state_dict(whole.state_dict())
    for bma in (whole, resumed):
        bma.update(model.set(5))
    assert torch.equal(whole.candidate(model)["w"], resumed.candidate(model)["w"])  # type: ignore[index]


def test_more_steps_than_announced_are_an_error() -> None:
    bma, model = BMA(), OneWeight()
    bma.update(model)
    with pytest.raises(ValueError, match=r"more than 0 times; call begin\(model, steps\) first"):
        bma.update(model)


@pytest.mark.parametrize("b", [0, -1, 11, float("nan")])
def test_values_that_are_refused(b: float) -> None:
    with pytest.raises(ValueError, match="BMA: beta="):
        BMA(beta=b)


def test_a_run_counts_its_initial_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    update = BMA.update

    def recording(self: BMA, model: Network) -> None:
        seen.append(model.head.weight.detach().clone())
        update(self, model)

    monkeypatch.setattr(BMA, "update", recording)
    recipe = Recipe(steps=2, batch=4, image_size=16, target="sketch", lr=0.01, averaging="bma", selection="last")
    averaged = train(recipe, tmp_path, device="cpu", data=DATA).read_model()[0]["head.weight"]
    weights = torch.from_numpy(beta_distribution.pdf([(j + 0.5) / 4 for j in range(4)], 0.5, 0.5)).float()
    expected = torch.einsum(
        "j,jab->ab", weights / weights.sum(), torch.stack(seen)
    )  # before steps 0, 1 and 2, and after
    torch.testing.assert_close(averaged, expected)
    assert not torch.allclose(seen[0], seen[-1], atol=1e-3)
