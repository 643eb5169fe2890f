"""Any averaging in the one loop that is written for all of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mecam.averaging import AVERAGINGS, BMA, EMA, SWAD, NoAveraging, create, loaded
from mecam.averaging._mean import WeightMean
from mecam.runs import checkpoint
from tests.averaging.nets import batch_norm_network, train_step


def loss_of(model: nn.Module) -> float:
    model.eval()
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        return nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()).item()


def train(name: str, folder: Path, *, interrupt: int | None = None) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Return the weights of the least loss, and all losses; after step `interrupt` the state goes through files."""
    model, averaging = batch_norm_network(), create(name)
    averaging.begin(model, 40)
    optimizer, generator = torch.optim.SGD(model.parameters(), lr=0.3), torch.Generator().manual_seed(1)
    losses: list[float] = []
    best: dict[str, torch.Tensor] = {}
    for step in range(40):
        train_step(model, optimizer, generator)
        averaging.update(model)
        if step % 4 == 3:
            weights = averaging.candidate(model)
            with loaded(model, weights):
                losses.append(loss_of(model))
                if losses[-1] == min(losses):
                    best = {key: value.clone() for key, value in model.state_dict().items()}
            if averaging.evaluated(step, losses[-1], model):
                break
        if step == interrupt:
            parts = [part.state_dict() for part in (model, averaging, optimizer)]
            checkpoint.save(folder, [parts, generator.get_state(), losses, best])
            model, averaging = batch_norm_network(), create(name)
            averaging.begin(model, 40)
            optimizer, generator = torch.optim.SGD(model.parameters(), lr=9), torch.Generator()
            parts, draws, losses, best = checkpoint.load(folder)
            for part, saved in zip((model, averaging, optimizer), parts, strict=True):
                part.load_state_dict(saved)
            generator.set_state(draws)
    return averaging.final() or best, losses


@pytest.mark.parametrize("name", AVERAGINGS)
def test_a_run_interrupted_at_any_step_keeps_the_same_weights(tmp_path: Path, name: str) -> None:
    whole, losses = train(name, tmp_path)
    for interrupt in (2, 11, 18, 33):
        weights, again = train(name, tmp_path, interrupt=interrupt)
        assert again == losses
        assert all(torch.equal(weights[key], value) for key, value in whole.items())
    batch_norm_network().load_state_dict(whole)


def test_training_itself_does_not_notice(tmp_path: Path) -> None:
    """The averages are other weights, and evaluating them leaves the training's alone."""
    kept = {name: train(name, tmp_path)[0] for name in AVERAGINGS}
    assert not torch.equal(kept["none"]["0.weight"], kept["ema"]["0.weight"])
    assert not torch.equal(kept["none"]["0.weight"], kept["swad"]["0.weight"])
    assert not torch.equal(kept["none"]["0.weight"], kept["bma"]["0.weight"])
    model, plain = batch_norm_network(), batch_norm_network()
    for one, averaging in ((model, create("swad")), (plain, create("none"))):
        optimizer, generator = torch.optim.SGD(one.parameters(), lr=0.3), torch.Generator().manual_seed(1)
        for step in range(6):
            train_step(one, optimizer, generator)
            averaging.update(one)
            with loaded(one, averaging.candidate(one)):
                averaging.evaluated(step, loss_of(one), one)
    for name, value in model.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name])


def test_loaded_gives_the_models_own_weights_back() -> None:
    model = batch_norm_network()
    addresses = [p.data_ptr() for p in model.parameters()]
    own = {name: value.clone() for name, value in model.state_dict().items()}
    others = {name: torch.zeros_like(value) for name, value in own.items()}

    def fail_inside() -> None:
        with loaded(model, others):
            assert model.state_dict()["0.weight"].abs().sum() == 0
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_inside()
    with pytest.raises(RuntimeError, match="Missing key"), loaded(model, {"0.weight": others["0.weight"]}):
        pass
    with loaded(model, None):
        pass
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())
    assert [p.data_ptr() for p in model.parameters()] == addresses


def test_another_model_is_refused() -> None:
    mean = WeightMean()
    mean.add(nn.Linear(2, 2).state_dict())
    with pytest.raises(ValueError, match="the model is not the one whose weights were averaged so far: bias came"):
        mean.add(nn.Linear(2, 2, bias=False).state_dict())


def test_all_are_listed() -> None:
    assert dict(AVERAGINGS) == {"none": NoAveraging, "ema": EMA, "swad": SWAD, "bma": BMA}


@pytest.mark.parametrize("name", AVERAGINGS)
def test_hyperparameters_are_what_can_be_set_and_their_defaults_are_allowed(name: str) -> None:
    averaging, defaults = AVERAGINGS[name], AVERAGINGS.defaults(name)
    assert averaging.name == name
    assert averaging.__doc__
    for setting, hyperparameter in averaging.hyperparameters.items():
        assert hyperparameter.meaning
        hyperparameter.check(name, setting, defaults[setting])
    assert type(create(name, **defaults)) is averaging


def test_the_papers_settings_are_the_defaults() -> None:
    settings = {"n_converge": 3, "n_tolerance": 6, "tolerance": 0.3, "judge": "current"}
    assert AVERAGINGS.defaults("swad") == settings | {"segment_loss": None}  # an older spelling of judge
    assert AVERAGINGS.defaults("none") == {}
    made = create("swad", tolerance=0.2)
    assert isinstance(made, SWAD)
    assert (made.tolerance, made.n_converge) == (0.2, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("name", "settings"), [("ema", {}), ("swad", {"judge": "segment"})])
def test_a_run_resumes_on_another_device(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    model, averaging, twin = nn.Linear(3, 2), create(name, **settings), create(name, **settings)
    averaging.update(model)
    averaging.evaluated(0, 1.0, model)
    averaging.update(model)
    checkpoint.save(tmp_path, averaging.state_dict())
    twin.load_state_dict(checkpoint.load(tmp_path))
    averaging.update(model)
    expected = averaging.candidate(model)
    model.cuda()
    twin.update(model)
    candidate = twin.candidate(model)
    assert expected is not None
    assert candidate is not None
    assert candidate["weight"].is_cuda
    torch.testing.assert_close(candidate["weight"].cpu(), expected["weight"])
    twin.evaluated(1, 1.0, model)
    checkpoint.save(tmp_path, twin.state_dict())
    if (final := twin.final()) is not None:
        model.load_state_dict(final)
