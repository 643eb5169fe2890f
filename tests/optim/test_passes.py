"""The closure contract, and what the passes put back: weights bit for bit, whatever happens inside a closure."""

import signal
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.optim import OPTIMIZERS, SAM, WSAM, MeCAM, SharpnessAware, _passes
from tests.optim.flat import batch, closure_for, flatten, network

METHODS = [entry.sharpness_aware for entry in OPTIMIZERS.values() if entry.sharpness_aware is not None]
GENERIC = pytest.mark.works_with(
    "any torch program",
    "what optimizers do, of each method: state, copies, groups, closures, hooks, kernels, errors",
    packages=["torch"],
)
X, Y = batch()
pytestmark = pytest.mark.filterwarnings("ignore:.* parameters are torch:UserWarning")  # of half precision


def bits(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def assert_same_bits(model: nn.Module, before: list[Tensor]) -> None:
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.detach().view(torch.uint8), old.view(torch.uint8))


class Still(torch.optim.Optimizer):
    """A base optimizer that never moves, so that what a step leaves behind is what the wrapper left."""

    def __init__(self, params: object, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})  # type: ignore[arg-type]

    def step(self, _closure: object = None) -> None:  # type: ignore[override]
        return


@GENERIC
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_weights_come_back_bit_for_bit(method: type[SharpnessAware], dtype: torch.dtype) -> None:
    model = network(dtype=dtype)
    with torch.no_grad():
        model[0].bias[:3] = torch.tensor([0.0, -0.0, 1e-40])
    coupled = {"decouple": False} if method is WSAM else {}  # decoupled, it moves the weights itself after the step
    optimizer = method(model.parameters(), Still, rho=0.7, **coupled)
    before = bits(model)
    for _ in range(3):
        optimizer.step(closure_for(optimizer, model, X.to(dtype), Y))
        assert_same_bits(model, before)


@GENERIC
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_weights_come_back_when_a_closure_raises(method: type[SharpnessAware], error: type[BaseException]) -> None:
    for failing in range(method.passes):
        model = network()
        optimizer = method(model.parameters(), torch.optim.Adam, lr=0.1)
        before, calls = bits(model), 0

        def closure(failing: int = failing, model: nn.Module = model, optimizer: SharpnessAware = optimizer) -> Tensor:
            nonlocal calls
            calls += 1
            if calls == failing + 1:
                raise error("stop")
            return closure_for(optimizer, model, X, Y)()

        with pytest.raises(error, match="stop"):
            optimizer.step(closure)
        assert_same_bits(model, before)
        assert optimizer.first_pass
        assert not optimizer.state
        optimizer.step(closure_for(optimizer, model, X, Y))  # and it goes on


def test_weights_come_back_when_a_real_signal_interrupts_a_later_pass() -> None:
    model = network()
    optimizer = MeCAM(model.parameters(), torch.optim.Adam, lr=0.1)
    before = bits(model)

    def closure() -> Tensor:
        if not optimizer.first_pass:
            signal.raise_signal(signal.SIGINT)
        return closure_for(optimizer, model, X, Y)()

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    assert_same_bits(model, before)


@pytest.mark.parametrize("method", METHODS)
def test_step_returns_the_loss_at_theta(method: type[SharpnessAware]) -> None:
    model = network()
    optimizer = method(model.parameters(), torch.optim.Adam, lr=0.1)
    expected = F.cross_entropy(model(X), Y).item()
    loss = optimizer.step(closure_for(optimizer, model, X, Y))
    assert loss.item() == expected
    assert not loss.requires_grad


@pytest.mark.parametrize("method", METHODS)
def test_number_of_passes(method: type[SharpnessAware]) -> None:
    model = network()
    optimizer = method(model.parameters(), torch.optim.Adam, lr=0.1)
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        return closure_for(optimizer, model, X, Y)()

    optimizer.step(closure)
    assert calls == method.passes


def test_a_missing_closure_says_how_to_write_one() -> None:
    optimizer = SAM(network().parameters(), torch.optim.Adam, lr=0.1)
    with pytest.raises(TypeError, match=r"def closure\(\):(.|\n)*zero_grad(.|\n)*backward(.|\n)*return loss"):
        optimizer.step()


def test_at_learning_rate_0_a_closure_is_needed_too() -> None:
    """As at the start of a linear warm-up. Only the call by which DCP makes state, with zero gradients, has none."""
    model = network()
    optimizer = SAM(model.parameters(), torch.optim.Adam, lr=0.0)
    F.cross_entropy(model(X), Y).backward()
    with pytest.raises(TypeError, match="step\\(\\) needs a closure"):
        optimizer.step()
    assert not optimizer.state
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert optimizer.state


def test_a_loss_is_no_closure() -> None:
    model = network()
    optimizer = SAM(model.parameters(), torch.optim.Adam, lr=0.1)
    with pytest.raises(TypeError, match="closure must be callable, got a Tensor; pass a function"):
        optimizer.step(F.cross_entropy(model(X), Y))  # type: ignore[arg-type]


def test_a_closure_that_does_nothing_after_a_backward_shows_how_to_write_one() -> None:
    """Lightning's manual optimizer.step() hands over such a closure."""
    model = network()
    optimizer = SAM(model.parameters(), torch.optim.Adam, lr=0.1)
    F.cross_entropy(model(X), Y).backward()
    with pytest.raises(TypeError, match=r"the closure did nothing[\s\S]*def closure\(\):"):
        optimizer.step(lambda: None)


def test_a_closure_that_returns_nothing_is_refused() -> None:
    model = network()
    optimizer = SAM(model.parameters(), torch.optim.Adam, lr=0.1)

    def closure() -> None:
        closure_for(optimizer, model, X, Y)()

    with pytest.raises(TypeError, match="must return the loss"):
        optimizer.step(closure)


def test_a_closure_without_backward_is_refused() -> None:
    model = network()
    optimizer = SAM(model.parameters(), torch.optim.Adam, lr=0.1)
    with pytest.raises(RuntimeError, match=r"Was loss.backward\(\) called"):
        optimizer.step(lambda: F.cross_entropy(model(X), Y))


def test_a_closure_that_leaves_out_its_batch_does_nothing() -> None:
    model = network()
    optimizer = SAM(model.parameters(), torch.optim.Adam, lr=0.1)
    before = bits(model)
    assert optimizer.step(lambda: None) is None
    assert_same_bits(model, before)


@pytest.mark.parametrize("method", METHODS)
def test_accumulation_inside_the_closure_equals_the_full_batch(method: type[SharpnessAware]) -> None:
    a, b = network(), network()
    one, two = (method(m.parameters(), torch.optim.Adam, lr=0.1) for m in (a, b))

    def accumulating() -> Tensor:
        one.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for x, y in zip(X.split(3), Y.split(3), strict=True):
            loss = F.cross_entropy(a(x), y) / 4
            loss.backward()
            total += loss.detach()
        return total

    for _ in range(3):
        one.step(accumulating)
        two.step(closure_for(two, b, X, Y))
    torch.testing.assert_close(flatten(list(a.parameters())), flatten(list(b.parameters())), rtol=0, atol=1e-9)


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = SAM(table.parameters(), torch.optim.SGD, lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = table(torch.tensor([1])).sum()
        loss.backward()
        return loss

    with pytest.raises(TypeError, match="sparse gradients are not supported"):
        optimizer.step(closure)


def test_complex_parameters_are_refused() -> None:
    """Projections and products with the weights would be of complex numbers, and not of their two parts."""
    weight = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    optimizer = SAM([weight], torch.optim.SGD, lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = weight.abs().sum()
        loss.backward()
        return loss

    with pytest.raises(TypeError, match="complex64; complex parameters are not supported"):
        optimizer.step(closure)
    assert torch.equal(weight, torch.ones_like(weight))


def test_a_kept_gradient_is_no_alias_of_memory_that_the_next_pass_fills() -> None:
    """As DDP's gradient_as_bucket_view does: gradients are views of a buffer that every backward writes anew."""
    model = network()
    parameters = list(model.parameters())
    buffer = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    views = [v.view_as(p) for v, p in zip(buffer.split([p.numel() for p in parameters]), parameters, strict=True)]
    optimizer = MeCAM(model.parameters(), torch.optim.SGD, rho=0.3, alpha=0.3, beta=0.2, lr=0.1)
    other = network()
    reference = MeCAM(other.parameters(), torch.optim.SGD, rho=0.3, alpha=0.3, beta=0.2, lr=0.1)

    def closure() -> Tensor:
        loss = F.cross_entropy(model(X), Y)
        for parameter, view, grad in zip(parameters, views, torch.autograd.grad(loss, parameters), strict=True):
            view.copy_(grad)
            parameter.grad = view
        return loss

    for _ in range(3):
        optimizer.zero_grad()
        optimizer.step(closure)
        reference.step(closure_for(reference, other, X, Y))
    assert torch.equal(flatten(parameters), flatten(list(other.parameters())))


@pytest.mark.works_with(
    "torch.compile", 'mode="reduce-overhead": its reused memory, imitated on a CPU', packages=["torch"]
)
def test_what_a_compiled_cuda_graph_fills_again_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """With mode="reduce-overhead" gradients and losses of every replay lie in the same memory, and are no views."""
    monkeypatch.setattr(_passes, "filled_again", lambda _: True)
    model, other = network(), network()
    optimizer = MeCAM(model.parameters(), torch.optim.SGD, 0.3, alpha=0.3, beta=0.2, lr=0.1, track=True)
    reference = MeCAM(other.parameters(), torch.optim.SGD, 0.3, alpha=0.3, beta=0.2, lr=0.1, track=True)
    memory = [torch.empty_like(p) for p in model.parameters()]
    loss_memory = torch.empty((), dtype=torch.float64)

    def closure() -> Tensor:
        loss = F.cross_entropy(model(X), Y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for parameter, place, gradient in zip(model.parameters(), memory, gradients, strict=True):
            parameter.grad = place.copy_(gradient)
        return loss_memory.copy_(loss.detach())

    for _ in range(3):
        optimizer.zero_grad()
        loss = optimizer.step(closure)
        assert torch.equal(loss, reference.step(closure_for(reference, other, X, Y)))
        assert optimizer.last == reference.last
    assert torch.equal(flatten(list(model.parameters())), flatten(list(other.parameters())))


def test_nothing_is_copied_where_there_are_no_such_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _passes.filled_again(torch.device("cpu"))
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", None)
    assert not _passes.filled_again(torch.device("cuda", 0))
    managers = {0: object(), 1: None}
    trees = SimpleNamespace(get_manager=lambda index, create_if_none_exists: managers[index])  # noqa: ARG005
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
    assert _passes.filled_again(torch.device("cuda", 0))
    assert not _passes.filled_again(torch.device("cuda", 1))
    assert not _passes.filled_again(torch.device("cpu"))


@pytest.mark.parametrize("method", METHODS)
def test_gradients_that_share_memory_count_once_each(method: type[SharpnessAware]) -> None:
    """torch.autograd.grad hands out one tensor for both terms of a sum, and an expanded one for a plain sum."""
    found = []
    for copied in (True, False):
        torch.manual_seed(4)
        square, row, added = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((2, 3), 6, 3))
        parameters = [square, row, added]
        optimizer = method(parameters, torch.optim.SGD, lr=0.1)

        def closure(
            optimizer: SharpnessAware = optimizer, parameters: list[Tensor] = parameters, copied: bool = copied
        ) -> Tensor:
            optimizer.zero_grad()
            square, row, added = parameters
            loss = (square + row.view(2, 3)).pow(4).sum() + added.sum()
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = gradient.clone() if copied else gradient
            return loss

        for _ in range(3):
            optimizer.step(closure)
        found.append(flatten(parameters))
    assert torch.equal(*found)
