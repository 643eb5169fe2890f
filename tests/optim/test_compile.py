"""torch.compile: the same steps and statistics as without, and nothing compiled twice."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

from mecam.optim import SAM, MeCAM

torch.manual_seed(0)
X, Y = torch.randn(8, 3, 6, 6, dtype=torch.float64), torch.randint(0, 4, (8,))
Forward = Callable[[Tensor], Tensor]


class Network(nn.Module):
    """With batch norm, and a virtual domain of its own: a Python flag, which a compiled forward must be guarded by."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(64, 4)
        self.virtual = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        if self.virtual:
            x = x * 1.5
        hidden: Tensor = self.head(x.flatten(1))
        return hidden

    @contextmanager
    def active(self) -> Iterator[None]:
        self.virtual = True
        try:
            yield
        finally:
            self.virtual = False


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # other tests must not take their models for compiled ones


def module(model: nn.Module, backend: Any) -> Forward:
    return torch.compile(model, backend=backend, fullgraph=True)  # type: ignore[return-value]


def in_place(model: nn.Module, backend: Any, fullgraph: bool = True) -> Forward:
    model.compile(backend=backend, fullgraph=fullgraph)
    return model


def function(model: nn.Module, backend: Any, fullgraph: bool = True) -> Forward:
    return torch.compile(lambda x: model(x), backend=backend, fullgraph=fullgraph)  # type: ignore[return-value]


def inside(model: nn.Module, backend: Any) -> Forward:
    return nn.Sequential(nn.Identity(), torch.compile(model, backend=backend, fullgraph=True))  # type: ignore[arg-type]


def part(model: nn.Module, backend: Any) -> Forward:
    model.features = torch.compile(model.features, backend=backend, fullgraph=True)  # type: ignore[assignment]
    return model


def plain(model: nn.Module, _: Any) -> Forward:
    return model


def build(model: Network, given: bool, **options: Any) -> MeCAM:
    return MeCAM(
        model.parameters(),
        torch.optim.Adam,
        lr=0.01,
        alpha=0.3,
        beta=0.2,
        virtual_domain=model,
        model=model if given else None,
        **options,
    )


def closure_for(optimizer: torch.optim.Optimizer, forward: Forward, set_to_none: bool = True) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = F.cross_entropy(forward(X), Y)
        loss.backward()
        return loss

    return closure


def train(
    how: Callable[[nn.Module, Any], Forward], given: bool, steps: int = 5, backend: Any = "aot_eager", **zeroing: bool
) -> tuple[Network, list[int]]:
    """The trained network, and how many graphs had been compiled after each step."""
    model, counter = Network().double(), CompileCounterWithBackend(backend)
    forward, optimizer = how(model, counter), build(model, given)
    compiled = []
    for _ in range(steps):
        optimizer.step(closure_for(optimizer, forward, **zeroing))
        compiled.append(counter.frame_count)
    return model, compiled


def assert_like_eager(model: Network, steps: int = 5) -> None:
    eager, _ = train(plain, given=True, steps=steps)
    for one, two in zip(model.state_dict().values(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-12)
    assert [int(b) for name, b in model.named_buffers() if name.endswith("num_batches_tracked")] == [steps]


@pytest.mark.works_with("torch.compile", "a module or function, or a part of it, with model=", packages=["torch"])
@pytest.mark.parametrize("how", [module, in_place, function, inside, part])
def test_with_the_model_given_everything_is_as_in_eager_mode(how: Callable[[nn.Module, Any], Forward]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model, compiled = train(how, given=True)
    assert_like_eager(model)
    graphs = 1 if how is part else 2  # one for the passes; one for the virtual domain, which is outside the part
    assert compiled == [graphs] * 5, "nothing is compiled after the first step"


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
@pytest.mark.parametrize("how", [module, inside, part])
def test_a_compiled_module_is_found(how: Callable[[nn.Module, Any], Forward]) -> None:
    model, compiled = train(how, given=False)
    assert_like_eager(model)
    graphs = 1 if how is part else 2  # one for the passes; one for the virtual domain, which is outside the part
    assert compiled == [graphs] * 5, "nothing is compiled after the first step"


@pytest.mark.parametrize("how", [in_place, function])
def test_a_function_is_compiled_once_without_the_model(how: Callable[..., Forward]) -> None:
    """The compiler guards on hooks: each pass must have the same one."""
    model, counter = nn.Sequential(nn.Flatten(), nn.Linear(108, 4)).double(), CompileCounterWithBackend("eager")
    optimizer, forward = SAM(model.parameters(), torch.optim.SGD, lr=0.1), how(model, counter, fullgraph=False)
    compiled = []
    for _ in range(5):
        optimizer.step(closure_for(optimizer, forward))
        compiled.append(counter.frame_count)
    assert compiled == compiled[:1] * 5, "nothing is compiled after the first step"


def test_gradients_that_are_kept_and_zeroed_compile_nothing_again() -> None:
    """Gradients present on entry are watched by a hook on a parameter, which must not count as a change."""
    model, compiled = train(module, given=True, set_to_none=False)
    assert_like_eager(model)
    assert compiled == [2] * 5


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("how", [in_place, function])
def test_a_forward_that_cannot_be_seen_is_refused(how: Callable[..., Forward], fullgraph: bool) -> None:
    """Module.__call__ goes straight to the compiled code there, past every hook."""
    model = Network().double()
    optimizer, before = build(model, given=False), copy.deepcopy(list(model.parameters()))
    forward = how(model, "aot_eager", fullgraph=fullgraph)
    with pytest.raises(RuntimeError, match=r"not observed.*SAM\(model\.parameters\(\), \.\.\., model=model\)"):
        optimizer.step(closure_for(optimizer, forward))
    assert all(map(torch.equal, model.parameters(), before))
    assert not optimizer.state


def test_a_container_that_the_compiler_declines_is_refused_too() -> None:
    """Nothing of nn.Sequential is compiled, but the hooks it calls are: to nothing."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 4), nn.BatchNorm1d(4)).double()
    model.compile(backend="aot_eager")
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(RuntimeError, match="not observed"):
        optimizer.step(closure_for(optimizer, model))


def test_torch_warns_of_the_hook_on_a_compiled_module_and_of_nothing_else() -> None:
    """OptimizedModule.__call__ warns before any hook could hide. Inside another module there is nothing to warn of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(module, given=False, steps=1)
    messages = [str(each.message) for each in caught]
    assert all("there are global hooks" in message for message in messages)
    # one per pass, of which Python's default filter shows one
    assert len(messages) == (0 if torch.__version__.startswith("2.6.") else 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        train(inside, given=False, steps=1)


@torch._inductor.config.patch(compile_threads=1)  # starting a pool of compilers takes longer than one compilation
@pytest.mark.works_with("torch.compile", "default mode, through Inductor", packages=["torch"])
def test_inductor() -> None:
    def trained(backend: str | None) -> list[Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Flatten(), nn.Linear(108, 4, dtype=torch.float64), nn.BatchNorm1d(4).double())
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, model=model)
        counter = CompileCounterWithBackend("inductor")
        forward = model if backend is None else function(model, counter)
        for _ in range(3):
            optimizer.step(closure_for(optimizer, forward))
            assert counter.frame_count == (backend is not None)
        return list(model.state_dict().values())

    torch.testing.assert_close(trained("inductor"), trained(None), rtol=0, atol=1e-12)
