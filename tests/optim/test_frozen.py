"""Parameters that a forward changes itself (key encoders of MoCo and BYOL) change as in one plain pass, bit for bit."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mecam.optim import SAM, MeCAM, SharpnessAware, _frozen
from mecam.optim._buffers import Buffers
from mecam.optim._frozen import Frozen

torch.manual_seed(0)
X = torch.randn(8, 5, dtype=torch.float64)
GIVEN = pytest.mark.parametrize("given", [True, False], ids=["model given", "model found"])


def in_place(key: Tensor, query: Tensor) -> None:
    key.mul_(0.9).add_(query, alpha=0.1)


def new_memory(key: Tensor, query: Tensor) -> None:
    key.data = key.data * 0.9 + query.data * 0.1


def through_data(key: Tensor, query: Tensor) -> None:
    """Which PyTorch does not count as a new version."""
    key.data.mul_(0.9).add_(query.data, alpha=0.1)


class Contrast(nn.Module):
    """A query encoder and its average, which the forward updates."""

    def __init__(self, average: Callable[[Tensor, Tensor], None], updates: Callable[[int], bool] = bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.query = nn.Linear(5, 3, dtype=torch.float64)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.average, self.updates, self.calls = average, updates, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        with torch.no_grad():
            for key, query in zip(self.key.parameters(), self.query.parameters(), strict=True):
                if self.updates(self.calls):
                    self.average(key, query)
            targets = self.key(x.flip(1))
        return (self.query(x) - targets).square().mean()


def closure_for(optimizer: SharpnessAware, model: nn.Module, forwards: int = 1) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.stack([model(x) for x in X.chunk(forwards)]).mean()
        loss.backward()
        return loss

    return closure


def step(
    method: type[SharpnessAware], model: nn.Module, given: bool, forwards: int = 1, steps: int = 1
) -> SharpnessAware:
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer: Any = method(trained, torch.optim.SGD, lr=0.1, rho=0.5, model=model if given else None)
    for _ in range(steps):
        optimizer.step(closure_for(optimizer, model, forwards))
    return optimizer


@GIVEN
@pytest.mark.parametrize("forwards", [1, 2])
@pytest.mark.parametrize("average", [in_place, new_memory, through_data])
@pytest.mark.parametrize("method", [SAM, MeCAM])
def test_a_key_encoder_is_averaged_once_a_step(
    method: type[SharpnessAware], average: Callable[[Tensor, Tensor], None], forwards: int, given: bool
) -> None:
    model = Contrast(average)
    plain = copy.deepcopy(model)
    optimizer = step(method, model, given, forwards, steps=0)
    for _ in range(3):
        plain.load_state_dict(model.state_dict())
        for x in X.chunk(forwards):
            plain(x)
        optimizer.step(closure_for(optimizer, model, forwards))
        for found, expected in zip(model.key.parameters(), plain.key.parameters(), strict=True):
            assert torch.equal(found, expected)
        assert not torch.equal(model.query.weight, plain.query.weight)


@GIVEN
@pytest.mark.parametrize("average", [in_place, new_memory, through_data])
def test_a_key_encoder_that_starts_as_a_copy(average: Callable[[Tensor, Tensor], None], given: bool) -> None:
    """The first average leaves the bias, zeros in both, as it is."""
    model = Contrast(average)
    nn.init.zeros_(model.query.bias)
    model.key.load_state_dict(model.query.state_dict())
    plain = copy.deepcopy(model)
    optimizer = step(SAM, model, given, steps=0)
    for _ in range(3):
        plain.load_state_dict(model.state_dict())
        plain(X)
        optimizer.step(closure_for(optimizer, model))
        torch.testing.assert_close(list(model.key.parameters()), list(plain.key.parameters()), rtol=0, atol=0)


@GIVEN
@pytest.mark.parametrize("average", [in_place, new_memory, through_data])
def test_what_only_a_later_pass_changes_is_refused(average: Callable[[Tensor, Tensor], None], given: bool) -> None:
    model = Contrast(average, updates=lambda call: call > 1)
    with pytest.raises(RuntimeError, match=r"changed 2 frozen parameters .* cannot be restored"):
        step(SAM, model, given)


def test_a_refusal_names_the_parameters() -> None:
    with pytest.raises(RuntimeError, match=r"frozen parameters \(key.weight, key.bias\)"):
        step(SAM, Contrast(in_place, updates=lambda call: call > 1), given=True)


def test_frozen_weights_that_do_not_change_are_not_copied() -> None:
    model = Contrast(in_place)
    model.base = nn.Linear(5, 5).requires_grad_(False)  # as the weights below an adapter
    for by_value in (True, False):
        frozen = Frozen(frozenset(map(id, model.query.parameters())), by_value=by_value)
        with Buffers(model, frozen).first():
            model(X)
        assert set(frozen.saved) == set(model.key.parameters())


@GIVEN
def test_a_pass_that_raises_leaves_the_average_of_the_first(given: bool) -> None:
    model = Contrast(in_place)
    plain = copy.deepcopy(model)
    plain(X)

    def fail(call: int) -> bool:
        if call > 2:
            raise ValueError("stop")
        return True

    model.updates = fail
    with pytest.raises(ValueError, match="stop"):
        step(MeCAM, model, given)
    assert torch.equal(model.key.weight, plain.key.weight)


def test_parameters_that_appear_while_a_module_runs_are_not_marked() -> None:
    """FSDP2 frees the memory of unsharded ones again."""
    model = Contrast(in_place)
    frozen = Frozen(frozenset(map(id, model.query.parameters())))
    with Buffers(None, frozen).first():
        model(X)
        model.key.weight = nn.Parameter(torch.zeros(3, 5, dtype=torch.float64), requires_grad=False)
        model(X)
    assert len(frozen.marks) == 2
    assert model.key.weight not in frozen.marks


def unusual() -> dict[str, nn.Module]:
    sparse = nn.Module()
    sparse.adjacency = nn.Parameter(torch.eye(3).to_sparse(), requires_grad=False)
    return {
        "meta": nn.Linear(3, 3, device="meta").requires_grad_(False),
        "sparse": sparse,
        "lazy": nn.LazyLinear(3),
    }


@GIVEN
@pytest.mark.parametrize("kind", ["meta", "sparse", "lazy"])
def test_frozen_parameters_without_plain_memory_are_left_alone(kind: str, given: bool) -> None:
    model = nn.ModuleDict({"used": Contrast(in_place), "other": unusual()[kind]})
    model.forward = lambda x: model["used"](x)  # type: ignore[method-assign]
    trained = model["used"].query.parameters()
    optimizer = SAM(trained, torch.optim.SGD, lr=0.1, model=model if given else None)
    for _ in range(2):
        optimizer.step(closure_for(optimizer, model))


@GIVEN
@pytest.mark.parametrize("per_sample", [True, False])
def test_gradients_by_torch_func(per_sample: bool, given: bool) -> None:
    a, b = nn.Linear(5, 3, dtype=torch.float64), nn.Linear(5, 3, dtype=torch.float64)
    b.load_state_dict(a.state_dict())
    one, two = (SAM(m.parameters(), torch.optim.SGD, lr=0.1, model=m if given else None) for m in (a, b))

    def loss_at(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(a, parameters, (x,))
        return output.square().mean()

    def functional() -> Tensor:
        weights = {name: p.detach() for name, p in a.named_parameters()}
        grad = torch.func.grad(loss_at)
        found = torch.func.vmap(grad, (None, 0))(weights, X) if per_sample else grad(weights, X)
        for name, p in a.named_parameters():
            p.grad = found[name].mean(0) if per_sample else found[name]
        return loss_at(weights, X)

    def plain() -> Tensor:
        two.zero_grad()
        loss = b(X).square().mean()
        loss.backward()
        return loss

    one.step(functional)
    two.step(plain)
    torch.testing.assert_close(a.weight, b.weight, rtol=0, atol=1e-12)


def test_checksums_are_taken_in_the_first_step_of_several_passes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain steps, as all are before `start`, have nothing to restore."""
    taken: list[int] = []
    checksum = _frozen._checksum
    monkeypatch.setattr(_frozen, "_checksum", lambda tensor: taken.append(1) or checksum(tensor))
    model = Contrast(through_data)
    plain = copy.deepcopy(model)
    optimizer = MeCAM(model.query.parameters(), torch.optim.SGD, lr=0.1, start=2, model=model)
    counts = []
    for _ in range(4):
        plain.load_state_dict(model.state_dict())
        plain(X)
        taken.clear()
        optimizer.step(closure_for(optimizer, model))
        counts.append(len(taken))
        assert torch.equal(model.key.weight, plain.key.weight)
    assert counts == [0, 0, 4, 0]
