"""Every method hands its base optimizer the gradient of its formula, computed here independently on flat vectors."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mecam.optim import (
    ASAM,
    CRSAM,
    ESAM,
    FAD,
    FSAM,
    GAM,
    GSAM,
    MSAM,
    SAGM,
    SAM,
    WSAM,
    LookSAM,
    MeCAM,
    SharpnessAware,
    StableSAM,
    VaSSO,
)
from tests.optim.flat import Tilt, batch, closure_for, flatten, gradient, loss_at, network

X, Y = batch()
LR = 0.5


def g(theta: Tensor) -> Tensor:
    return gradient(theta, X, Y)


def n(v: Tensor) -> Tensor:
    return v / (v.norm() + 1e-12)


def across(a: Tensor, b: Tensor) -> Tensor:
    return a - (a @ b) / (b @ b) * b


def mecam(theta: Tensor) -> Tensor:
    d = 0.3 * n(g(theta))
    return 0.5 * g(theta) + 0.3 * g(theta + d) + 0.2 * gradient(theta - d, X, Y, tilt=0.4)


def sam(theta: Tensor) -> Tensor:
    return g(theta + 0.3 * n(g(theta)))


def asam(theta: Tensor) -> Tensor:
    e = 0.3 * theta**2 * g(theta) / ((theta.abs() * g(theta)).norm() + 1e-12)
    return g(theta + e)


def gsam(theta: Tensor) -> Tensor:
    gs = sam(theta)
    return gs - 0.4 * across(g(theta), gs)


def four(theta: Tensor, rho: float, radius: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g0 = g(theta)
    g1 = g(theta + rho * n(g0))
    theta2 = theta + radius * n(g1 - g0)
    g2 = g(theta2)
    return g0, g1, g2, g(theta2 + rho * n(g2))


def gam(theta: Tensor) -> Tensor:
    g0, g1, g2, g3 = four(theta, 0.1, 0.3)
    plus, minus = 0.6 * g1 + 0.4 * g3, 0.7 * g0 + 0.3 * g2
    return plus - 0.2 * across(minus, plus)


def fad(theta: Tensor) -> Tensor:
    g0, g1, g2, g3 = four(theta, 0.3, 0.3)
    return g0 + 0.8 * (0.25 * (g1 - g0) + 0.75 * (g3 - g2))


def sagm(theta: Tensor) -> Tensor:
    g0 = g(theta)
    return 0.5 * g0 + 0.5 * g(theta + (0.3 / (g0.norm() + 1e-12) - 0.05) * g0)


def crsam(theta: Tensor) -> Tensor:
    e = 0.3 * n(g(theta))
    gw, gb = g(theta + e), g(theta - e)
    return gw + 0.2 * (gw + gb - 2 * g(theta)) + 0.15 * (gw - gb)


def stablesam(theta: Tensor) -> Tensor:
    return g(theta).norm() * n(sam(theta))


def wsam(theta: Tensor) -> Tensor:
    w = 0.8 / (1 - 0.8)
    return w * sam(theta) + (1 - w) * g(theta)


METHODS: dict[str, tuple[Callable[..., torch.optim.Optimizer], Callable[[Tensor], Tensor]]] = {
    "sam": (lambda p, b: SAM(p, b, rho=0.3, lr=LR), sam),
    "asam": (lambda p, b: ASAM(p, b, rho=0.3, lr=LR), asam),
    "gsam": (lambda p, b: GSAM(p, b, rho=0.3, alpha=0.4, lr=LR), gsam),
    "gam": (lambda p, b: GAM(p, b, rho=0.1, rho_norm=0.3, alpha=0.6, beta=0.7, gamma=0.2, lr=LR), gam),
    "sagm": (lambda p, b: SAGM(p, b, rho=0.3, alpha=0.05, lr=LR), sagm),
    "fad": (lambda p, b: FAD(p, b, rho=0.3, alpha=0.8, beta=0.25, lr=LR), fad),
    "crsam": (lambda p, b: CRSAM(p, b, rho=0.3, gamma=0.2, beta=0.15, lr=LR), crsam),
    "stablesam": (lambda p, b: StableSAM(p, b, rho=0.3, lr=LR), stablesam),
    "vasso, theta = 1": (lambda p, b: VaSSO(p, b, rho=0.3, theta=1.0, lr=LR), sam),
    "wsam": (lambda p, b: WSAM(p, b, rho=0.3, gamma=0.8, decouple=False, lr=LR), wsam),
    "esam without mask": (lambda p, b: ESAM(p, b, rho=0.3, beta=1.0, lr=LR), sam),
    "fsam, first step": (lambda p, b: FSAM(p, b, rho=0.3, lr=LR), sam),
    "looksam, first step": (lambda p, b: LookSAM(p, b, rho=0.3, lr=LR), sam),
}


def handed(optimizer: torch.optim.Optimizer) -> Tensor:
    return flatten([p.grad for p in optimizer.param_groups[0]["params"]])


@pytest.mark.parametrize("name", METHODS)
def test_gradient_equals_formula(name: str) -> None:
    build, formula = METHODS[name]
    model = network()
    optimizer = build(model.parameters(), torch.optim.SGD)
    theta = flatten(list(model.parameters()))
    for _ in range(1 if "first" in name else 3):
        expected = formula(theta)
        optimizer.step(closure_for(optimizer, model, X, Y))
        torch.testing.assert_close(handed(optimizer), expected, rtol=0, atol=1e-12)
        theta = theta - LR * expected
        torch.testing.assert_close(flatten(list(model.parameters())), theta, rtol=0, atol=1e-12)


def test_mecam_with_virtual_domain() -> None:
    model = network()
    domain = Tilt(model, 0.4)
    optimizer = MeCAM(model.parameters(), torch.optim.SGD, rho=0.3, alpha=0.3, beta=0.2, virtual_domain=domain, lr=LR)
    theta = flatten(list(model.parameters()))
    for _ in range(3):
        expected = mecam(theta)
        optimizer.step(closure_for(optimizer, model, X, Y))
        torch.testing.assert_close(handed(optimizer), expected, rtol=0, atol=1e-12)
        theta = theta - LR * expected


def test_fsam_keeps_its_running_mean() -> None:
    model = network()
    optimizer = FSAM(model.parameters(), torch.optim.SGD, rho=0.3, sigma=0.7, lam=0.6, lr=LR)
    theta, m = flatten(list(model.parameters())), None
    for _ in range(4):
        q = g(theta) if m is None else g(theta) - 0.7 * m
        expected = g(theta + 0.3 * n(q))
        m = g(theta) if m is None else 0.6 * m + 0.4 * g(theta)
        optimizer.step(closure_for(optimizer, model, X, Y))
        torch.testing.assert_close(handed(optimizer), expected, rtol=0, atol=1e-12)
        theta = theta - LR * expected


def test_vasso_perturbs_along_its_running_mean() -> None:
    model = network()
    optimizer = VaSSO(model.parameters(), torch.optim.SGD, rho=0.3, theta=0.4, lr=LR)
    theta = flatten(list(model.parameters()))
    d = g(theta)
    for _ in range(4):
        d = 0.6 * d + 0.4 * g(theta)
        expected = g(theta + 0.3 * n(d))
        optimizer.step(closure_for(optimizer, model, X, Y))
        torch.testing.assert_close(handed(optimizer), expected, rtol=0, atol=1e-12)
        theta = theta - LR * expected


def test_msam_takes_its_one_gradient_ahead_along_the_momentum() -> None:
    model = network()
    optimizer = MSAM(model.parameters(), torch.optim.SGD, rho=0.3, mu=0.8, lr=LR)
    theta, v = flatten(list(model.parameters())), torch.zeros(66, dtype=torch.float64)
    for _ in range(5):
        ahead = theta - 0.3 * n(v)
        expected = g(ahead)
        v = 0.8 * v + expected
        loss = optimizer.step(closure_for(optimizer, model, X, Y))
        torch.testing.assert_close(loss, loss_at(ahead, X, Y))
        torch.testing.assert_close(handed(optimizer), expected, rtol=0, atol=1e-12)
        theta = theta - LR * expected
        torch.testing.assert_close(flatten(list(model.parameters())), theta, rtol=0, atol=1e-12)


def test_looksam_looks_every_k_steps() -> None:
    model = network()
    optimizer = LookSAM(model.parameters(), torch.optim.SGD, rho=0.3, alpha=0.7, k=3, lr=LR)
    theta, v = flatten(list(model.parameters())), torch.zeros(())
    for t in range(7):
        if t % 3 == 0:
            expected = sam(theta)
            v = across(expected, g(theta))
        else:
            expected = g(theta) + 0.7 * g(theta).norm() / v.norm() * v
        optimizer.step(closure_for(optimizer, model, X, Y))
        torch.testing.assert_close(handed(optimizer), expected, rtol=0, atol=1e-12)
        theta = theta - LR * expected


def test_looksam_tells_its_looks_before_they_come() -> None:
    model, passes, planned = network(), list[int](), list[object]()
    optimizer = LookSAM(model.parameters(), torch.optim.SGD, rho=0.3, k=3, lr=LR)

    def closure() -> Tensor:
        passes[-1] += 1
        return closure_for(optimizer, model, X, Y)()

    for _ in range(7):
        planned.append(optimizer.plan())
        passes.append(0)
        optimizer.step(closure)
    assert planned == [True, False, False, True, False, False, True]
    assert passes == [2, 1, 1, 2, 1, 1, 2]


def test_wsam_decoupled_moves_after_the_base_step() -> None:
    model = network()
    optimizer = WSAM(model.parameters(), torch.optim.SGD, rho=0.3, gamma=0.8, lr=LR)
    theta = flatten(list(model.parameters()))
    for _ in range(3):
        expected = theta - LR * g(theta) - LR * 4 * (sam(theta) - g(theta))
        optimizer.step(closure_for(optimizer, model, X, Y))
        theta = flatten(list(model.parameters()))
        torch.testing.assert_close(theta, expected, rtol=0, atol=1e-12)


def test_esam_perturbs_the_masked_tensors_only() -> None:
    model = network()
    optimizer = ESAM(model.parameters(), torch.optim.SGD, rho=0.3, beta=0.5, seed=3, lr=LR)
    sizes = [p.numel() for p in model.parameters()]
    masks = set()
    for step in range(8):
        theta, seen = flatten(list(model.parameters())), []

        def closure(seen: list[Tensor] = seen) -> Tensor:
            seen.append(flatten(list(model.parameters())))
            return closure_for(optimizer, model, X, Y)()

        optimizer.step(closure)
        moved = [bool((part != 0).any()) for part in (seen[1] - theta).split(sizes)]
        mask = torch.cat(
            [torch.full((size,), float(m), dtype=torch.float64) for size, m in zip(sizes, moved, strict=True)]
        )
        torch.testing.assert_close(seen[1], theta + 2 * 0.3 * mask * n(g(theta)), rtol=0, atol=1e-12)
        torch.testing.assert_close(handed(optimizer), g(seen[1]), rtol=0, atol=1e-12)
        masks.add(tuple(moved))
        assert optimizer.param_groups[0]["taken"] == step + 1
    assert len(masks) > 1


def test_against_the_other_library() -> None:
    """pytorch_optimizer computes its norm in float32, so it is an oracle to about 1e-7."""
    other = pytest.importorskip("pytorch_optimizer")
    pairs = [
        (SAM, other.SAM, {"rho": 0.3}, {"rho": 0.3}),
        (FSAM, other.FriendlySAM, {"rho": 0.3, "sigma": 1.0, "lam": 0.6}, {"rho": 0.3, "sigma": 1.0, "lmbda": 0.6}),
        (WSAM, other.WSAM, {"rho": 0.3, "gamma": 0.8}, {"rho": 0.3, "gamma": 0.8, "decouple": True}),
    ]
    for ours, theirs, our_settings, their_settings in pairs:
        a, b = network(), network()
        one = ours(a.parameters(), torch.optim.Adam, lr=0.01, **our_settings)
        if theirs is other.WSAM:
            two = theirs(b, b.parameters(), base_optimizer=torch.optim.Adam, lr=0.01, **their_settings)
        else:
            two = theirs(b.parameters(), base_optimizer=torch.optim.Adam, lr=0.01, **their_settings)
        for _ in range(5):
            one.step(closure_for(one, a, X, Y))
            closure = closure_for(two, b, X, Y)
            closure()
            two.step(closure)
        torch.testing.assert_close(
            flatten(list(a.parameters())), flatten(list(b.parameters())), rtol=1e-6, atol=1e-7, msg=ours.__name__
        )


@pytest.mark.parametrize("method", [SAM, ESAM, LookSAM])
def test_a_step_on_the_cpu_does_not_ask_for_a_gpu(
    method: Callable[..., SharpnessAware], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.cuda.is_available() asks the driver, which takes long beside a step of a small network."""
    model, asked = network(), []
    optimizer = method(model.parameters(), torch.optim.SGD, lr=LR)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(asked.append(1)))
    optimizer.step(closure_for(optimizer, model, X, Y))
    assert not asked
