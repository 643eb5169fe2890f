"""AdaHessian as base: the Hessian diagonal is estimated at theta, in the first pass, and handed over."""

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_optimizer import AdaHessian
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.optim import SAM, LookSAM, MeCAM, SharpnessAware
from mecam.optim._hessian import hutchinson
from tests.optim.flat import Tilt, batch, flatten, gradient, loss_at, network

pytestmark = pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph:UserWarning")
X, Y = batch()
BASE = {"lr": 0.1, "weight_decouple": False, "eps": 1e-8}


def closure_for(optimizer: Any, model: nn.Module) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward(create_graph=getattr(optimizer, "needs_graph", True))
        return loss

    return closure


def draw(model: nn.Module, distribution: str = "rademacher") -> Tensor:
    """The next z, parameter by parameter, as one flat vector."""
    if distribution == "gaussian":
        return torch.cat([torch.randn_like(p).flatten() for p in model.parameters()])
    return torch.cat([torch.randint_like(p, 0, 2).flatten() * 2 - 1 for p in model.parameters()])


def estimate(theta: Tensor, z: Tensor) -> Tensor:
    """z * (H z) from the network's loss as a function of one flat vector."""
    _, product = torch.autograd.functional.vhp(lambda t: loss_at(t, X, Y), theta, z)
    return z * product


class Oracle:
    """AdaHessian written on one flat vector."""

    def __init__(
        self, size: int, lr: float = 0.1, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        self.lr, self.betas, self.eps = lr, betas, eps
        self.m, self.v, self.t = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64), 0

    def step(self, theta: Tensor, g: Tensor, diagonal: Tensor | None, weight_decay: float = 0.0) -> Tensor:
        (b1, b2), self.t = self.betas, self.t + 1
        self.m = b1 * self.m + (1 - b1) * (g + weight_decay * theta)
        if diagonal is not None:
            self.v = b2 * self.v + (1 - b2) * diagonal**2
        return theta - self.lr / (1 - b1**self.t) * self.m / ((self.v / (1 - b2**self.t)).sqrt() + self.eps)


def sam(theta: Tensor) -> Tensor:
    g = gradient(theta, X, Y)
    return gradient(theta + 0.05 * g / g.norm(), X, Y)


def mecam(theta: Tensor) -> Tensor:
    g = gradient(theta, X, Y)
    delta = 0.1 * g / g.norm()
    return 0.5 * g + 0.3 * gradient(theta + delta, X, Y) + 0.2 * gradient(theta - delta, X, Y, tilt=0.3)


@pytest.mark.parametrize("distribution", ["rademacher", "gaussian"])
@pytest.mark.parametrize("samples", [1, 3])
def test_the_estimate_is_z_times_hz(distribution: str, samples: int) -> None:
    model = network()
    parameters = list(model.parameters())
    F.cross_entropy(model(X), Y).backward(create_graph=True)
    torch.manual_seed(7)
    found = hutchinson(parameters, samples=samples, distribution=distribution)
    torch.manual_seed(7)
    theta = flatten(parameters)
    expected = torch.stack([estimate(theta, draw(model, distribution)) for _ in range(samples)]).mean(0)
    torch.testing.assert_close(flatten(found), expected, rtol=0, atol=1e-14)


def test_on_a_quadratic_with_diagonal_hessian_it_is_the_diagonal() -> None:
    diagonal = torch.tensor([3.0, -0.7, 1e5, 1e-5, 0.0])
    parameters = [nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(2))]
    theta = torch.cat(list(parameters))
    (0.5 * (diagonal * theta * theta).sum() + theta.sum()).backward(create_graph=True)
    found = hutchinson(parameters, samples=1, distribution="rademacher")
    assert torch.equal(torch.cat(found), diagonal)


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"update_period": 3}, {"num_samples": 2}], ids=str)
@pytest.mark.parametrize("method", [SAM, MeCAM])
def test_steps_equal_an_independent_computation(method: type[SharpnessAware], options: dict[str, Any]) -> None:
    model = network()
    if method is SAM:
        optimizer: Any = SAM(model.parameters(), AdaHessian, **BASE, **options)
    else:
        domain = Tilt(model, 0.3)
        optimizer = MeCAM(model.parameters(), AdaHessian, alpha=0.3, beta=0.2, virtual_domain=domain, **BASE, **options)
    combined = sam if method is SAM else mecam
    theta = flatten(list(model.parameters()))
    oracle = Oracle(len(theta))
    for step in range(5):
        torch.manual_seed(step)
        optimizer.step(closure_for(optimizer, model))
        torch.manual_seed(step)
        diagonal = None
        if step % options.get("update_period", 1) == 0:
            samples = range(options.get("num_samples", 1))
            diagonal = torch.stack([estimate(theta, draw(model)) for _ in samples]).mean(0)
        theta = oracle.step(theta, combined(theta), diagonal, options.get("weight_decay", 0.0))
        torch.testing.assert_close(flatten(list(model.parameters())), theta, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.1}, {"update_period": 2}, {"num_samples": 3}, {"hessian_distribution": "gaussian"}],
    ids=str,
)
def test_mecam_with_alpha_and_beta_zero_is_plain_adahessian(options: dict[str, Any]) -> None:
    a, b = network(), network()
    plain = AdaHessian(a.parameters(), **BASE, **options)
    wrapped = MeCAM(b.parameters(), AdaHessian, alpha=0.0, beta=0.0, **BASE, **options)
    for step in range(5):
        for optimizer, model in ((plain, a), (wrapped, b)):
            torch.manual_seed(step)
            optimizer.step(closure_for(optimizer, model))
        torch.testing.assert_close(list(a.parameters()), list(b.parameters()), rtol=0, atol=0)


def test_the_graph_is_asked_for_in_the_first_pass_of_the_steps_that_need_it() -> None:
    model = network()
    optimizer = MeCAM(model.parameters(), AdaHessian, update_period=2, **BASE)
    asked: list[bool] = []

    def closure() -> Tensor:
        asked.append(optimizer.needs_graph)
        return closure_for(optimizer, model)()

    for _ in range(4):
        optimizer.step(closure)
    assert asked == [True, False, False, False, False, False] * 2
    assert not SAM(model.parameters(), torch.optim.Adam).needs_graph


def test_frozen_and_unused_parameters() -> None:
    model, unused = network(), nn.Parameter(torch.ones(2, dtype=torch.float64))
    model[0].weight.requires_grad_(False)
    optimizer = SAM([*model.parameters(), unused], AdaHessian, **BASE)
    before = [p.detach().clone() for p in (model[0].weight, unused, model[2].weight)]
    for _ in range(2):
        optimizer.step(closure_for(optimizer, model))
    assert torch.equal(model[0].weight, before[0])
    assert torch.equal(unused, before[1])
    assert not torch.equal(model[2].weight, before[2])

    closure_for(optimizer, model)()
    model[0].weight.grad = torch.ones_like(model[0].weight)  # left from before it was frozen
    zero, *_ = hutchinson(list(model.parameters()), samples=1, distribution="rademacher")
    assert not zero.any()


def test_a_parameter_in_which_the_gradient_is_constant() -> None:
    """Its gradient carries no graph; its part of the Hessian is zero."""
    linear, curved = (nn.Parameter(torch.tensor([1.0, 2.0])) for _ in range(2))
    (linear.sum() + (curved**3).sum()).backward(create_graph=True)
    assert not linear.grad.requires_grad  # type: ignore[union-attr]
    zero, six = hutchinson([linear, curved], samples=2, distribution="rademacher")
    assert torch.equal(zero, torch.zeros(2))
    assert torch.equal(six, 6 * curved)


def test_micro_batches_add_up() -> None:
    a, b = network(), network()
    whole, parts = (SAM(m.parameters(), AdaHessian, **BASE) for m in (a, b))

    def closure() -> Tensor:
        parts.zero_grad()
        total = torch.zeros(())
        for x, y in zip(X.chunk(3), Y.chunk(3), strict=True):
            loss = F.cross_entropy(b(x), y) / 3
            loss.backward(create_graph=parts.needs_graph)
            total = total + loss.detach()
        return total

    for _ in range(3):
        torch.manual_seed(5)
        whole.step(closure_for(whole, a))
        torch.manual_seed(5)
        parts.step(closure)
    torch.testing.assert_close(list(a.parameters()), list(b.parameters()), rtol=0, atol=1e-10)


def test_a_forgotten_create_graph_is_refused_with_the_reason() -> None:
    model = network()
    optimizer = SAM(model.parameters(), AdaHessian, **BASE)
    before = flatten(list(model.parameters()))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match=r"create_graph=optimizer\.needs_graph"):
        optimizer.step(closure)
    assert torch.equal(flatten(list(model.parameters())), before)
    assert not optimizer.state


@pytest.mark.parametrize("donated_buffer", [True, False])  # the backward itself refuses, or the double backward does
def test_a_compiled_model_is_refused_with_the_reason(donated_buffer: bool) -> None:
    model = network()
    optimizer = SAM(model.parameters(), AdaHessian, model=model, **BASE)
    before = flatten(list(model.parameters()))
    compiled = torch.compile(model, backend="aot_eager")
    with (
        torch._functorch.config.patch(donated_buffer=donated_buffer),
        pytest.raises(RuntimeError, match=r"cannot work.*torch\.compile.*(double backward|donated buffers)"),
    ):
        optimizer.step(closure_for(optimizer, compiled))  # type: ignore[arg-type]
    assert torch.equal(flatten(list(model.parameters())), before)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # other tests must not take their models for compiled ones


@pytest.mark.parametrize("method", [SAM, MeCAM, LookSAM])
def test_the_graph_is_gone_before_the_next_pass(method: type[SharpnessAware]) -> None:
    """Without the garbage collector: backward(create_graph=True) makes a cycle of parameter, gradient and graph."""
    model = network()
    optimizer = method(model.parameters(), AdaHessian, **BASE)
    graph: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def closure() -> Tensor:
        alive.append(sum(t() is not None for t in graph))
        optimizer.zero_grad()
        hidden = model[1](model[0](X))
        loss = F.cross_entropy(model[2](hidden), Y)
        graph.extend([weakref.ref(hidden), weakref.ref(loss)])
        loss.backward(create_graph=optimizer.needs_graph)
        return loss

    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            optimizer.step(closure)
            assert sum(t() is not None for t in graph) == 0
            assert all(p.grad is not None and p.grad.grad_fn is None for p in model.parameters())
    finally:
        gc.enable()
    assert alive == [0] * (len(graph) // 2)


@pytest.mark.parametrize("spoiled", ["gradient", "estimate"])
def test_what_is_not_finite_never_reaches_the_state(spoiled: str) -> None:
    """A gradient or an estimate: the estimate alone can overflow, and would poison the base for ever."""
    model = network(dtype=torch.float32)
    optimizer = SAM(model.parameters(), AdaHessian, nonfinite="skip", **BASE)

    def closure() -> Tensor:
        optimizer.zero_grad()
        first = next(model.parameters()).view(-1)[0]
        loss = F.cross_entropy(model(X.float()), Y)
        if spoiled == "gradient":
            loss = loss * torch.nan
        elif optimizer.first_pass:
            loss = loss + 3e38 * (first - first.detach()) ** 2  # slope 0, curvature 6e38: too much for float32
        loss.backward(create_graph=optimizer.needs_graph)
        if spoiled == "estimate":
            assert all(p.grad.isfinite().all() for p in model.parameters())  # type: ignore[union-attr]
        return loss

    before = flatten(list(model.parameters()))
    optimizer.step(closure)
    assert optimizer.skipped == 1
    assert torch.equal(flatten(list(model.parameters())), before)
    assert not optimizer.state


def test_a_scaler_scales_the_estimate_too() -> None:
    a, b = network(), network()
    plain, scaled = (MeCAM(m.parameters(), AdaHessian, **BASE) for m in (a, b))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def closure() -> Tensor:
        scaled.zero_grad()
        loss = F.cross_entropy(b(X), Y)
        scaler.scale(loss).backward(create_graph=scaled.needs_graph)
        return loss

    for _ in range(3):
        torch.manual_seed(5)
        plain.step(closure_for(plain, a))
        torch.manual_seed(5)
        scaled.step(closure, scaler=scaler)
        scaler.update()
    torch.testing.assert_close(list(a.parameters()), list(b.parameters()), rtol=0, atol=0)


def test_checkpoint_and_resume() -> None:
    model = network()
    optimizer = SAM(model.parameters(), AdaHessian, update_period=2, **BASE)
    for step in range(3):
        torch.manual_seed(step)
        optimizer.step(closure_for(optimizer, model))
    other = network()
    other.load_state_dict(model.state_dict())
    resumed = SAM(other.parameters(), AdaHessian, update_period=2, **BASE)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(3):
        for current, network_ in ((optimizer, model), (resumed, other)):
            torch.manual_seed(step)
            current.step(closure_for(current, network_))
    torch.testing.assert_close(list(model.parameters()), list(other.parameters()), rtol=0, atol=0)
