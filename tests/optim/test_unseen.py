"""Without `model=`, what cannot be seen to run is refused if it changes, and nothing else is."""

import copy
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from mecam.optim import SAM, MeCAM
from mecam.optim._unseen import modules_in

torch.manual_seed(0)
X = torch.randn(8, 3)
BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager"])


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def closure_for(optimizer: torch.optim.Optimizer, forward: Callable[[Tensor], Tensor], x: Tensor = X) -> Callable:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = forward(x).square().mean()
        loss.backward()
        return loss

    return closure


class Queue(nn.Module):
    """Keeps features in a buffer, in a method that is not forward: LightningModule.training_step, encode_image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("queue", torch.zeros(3))

    def encode(self, x: Tensor) -> Tensor:
        features: Tensor = self.layer(x)
        self.queue.add_(features.detach().mean(0))
        return features


def test_a_buffer_that_changes_in_another_method_is_refused() -> None:
    model = Queue()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    before = copy.deepcopy(list(model.parameters()))
    with pytest.raises(RuntimeError, match=r"queue of Queue changed .* through another method.*model=model"):
        optimizer.step(closure_for(optimizer, model.encode))
    assert all(map(torch.equal, model.parameters(), before))


def test_the_closure_is_searched_in_the_first_step_with_several_passes() -> None:
    model = Queue()
    optimizer = MeCAM(model.parameters(), torch.optim.SGD, lr=0.1, start=2)
    for _ in range(2):
        optimizer.step(closure_for(optimizer, model.encode))
    with pytest.raises(RuntimeError, match="not observed"):
        optimizer.step(closure_for(optimizer, model.encode))


def test_with_the_model_it_changes_once_a_step() -> None:
    model, plain = Queue(), Queue()
    plain.load_state_dict(model.state_dict())
    optimizer = MeCAM(model.parameters(), torch.optim.SGD, lr=0.1, model=model)
    plain.encode(X)
    optimizer.step(closure_for(optimizer, model.encode))
    assert torch.equal(model.queue, plain.queue)


@BACKENDS
@pytest.mark.parametrize("owned", [True, False])
def test_a_frozen_backbone_in_a_compiled_function_is_refused(backend: str, owned: bool) -> None:
    """Its parameters have no gradients, and may not even be the optimizer's."""
    backbone, head = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).requires_grad_(False), nn.Linear(3, 2)
    features = torch.compile(lambda x: backbone(x), backend=backend)
    parameters = [*backbone.parameters(), *head.parameters()] if owned else list(head.parameters())
    optimizer = SAM(parameters, torch.optim.SGD, lr=0.1)
    with pytest.raises(RuntimeError, match=r"of BatchNorm1d changed .* not observed"):
        optimizer.step(closure_for(optimizer, lambda x: head(features(x))))


def test_what_is_compiled_after_the_first_step_is_refused_then() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    optimizer.step(closure_for(optimizer, model))
    compiled = torch.compile(lambda x: model(x), backend="eager")
    with pytest.raises(RuntimeError, match="not observed"):
        optimizer.step(closure_for(optimizer, compiled))


def test_parameters_without_a_module_work_though_something_was_compiled() -> None:
    torch.compile(lambda x: x + 1, backend="eager")(X)
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = SAM([weight], torch.optim.SGD, lr=0.1)
    optimizer.step(closure_for(optimizer, lambda x: x @ weight))
    assert not torch.equal(weight, torch.ones(3, 2))


class Proxy:
    """Stands for an object that is not there, as a request's does outside of one."""

    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override]
        raise KeyError("nothing is bound")


class Holder:
    def __init__(self, model: nn.Module) -> None:
        self.parts = {"model": (model,)}
        self.proxy = Proxy()

    def loss(self, x: Tensor) -> Tensor:
        loss: Tensor = self.parts["model"][0](x).sum()
        return loss


def test_a_closure_is_searched_for_modules_wherever_it_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = nn.BatchNorm1d(3)
    model = nn.Sequential(inner)
    holder = Holder(model)
    library = ModuleType("library")
    library.model = model  # type: ignore[attr-defined]
    monkeypatch.setitem(globals(), "imported", library)
    ways: dict[str, Callable] = {
        "a variable": lambda: model(X),
        "a default": lambda m=model: m(X),
        "a method": holder.loss,
        "a partial": partial(holder.loss, X),
        "a compiled function": torch.compile(lambda x: model(x), backend="eager"),
        "a compiled module": torch.compile(model, backend="eager"),
        "an imported module": lambda: imported.model(X),  # type: ignore[name-defined]  # noqa: F821
        "a function in it": lambda: [holder.loss(x) for x in (X,)],
    }
    for name, way in ways.items():
        assert inner in modules_in(way), name
    assert modules_in(lambda: X) == []


def test_two_threads_keep_their_statistics_apart() -> None:
    """Each must end as it does alone, and no hook may stay behind."""

    def train(seed: int, results: dict[int, dict[str, Tensor]]) -> None:
        generator = torch.Generator().manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
        optimizer = MeCAM(model.parameters(), torch.optim.SGD, lr=0.01)
        for _ in range(30):
            optimizer.step(closure_for(optimizer, model, torch.randn(8, 3, generator=generator)))
        results[seed] = copy.deepcopy(model.state_dict())

    alone: dict[int, dict[str, Tensor]] = {}
    together: dict[int, dict[str, Tensor]] = {}
    for seed in range(4):
        train(seed, alone)
    threads = [threading.Thread(target=train, args=(seed, together)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together.keys() == alone.keys(), "no thread failed"
    for seed, expected in alone.items():
        for name, value in expected.items():
            assert torch.equal(together[seed][name], value), (seed, name)
    assert not torch.nn.modules.module._global_forward_pre_hooks
