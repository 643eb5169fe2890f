"""Base optimizers by name: each against its formula in float64, alone and below SAM; and the caveats of the docs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mecam.optim import OPTIMIZERS, clear_state, create
from mecam.optim.muon import MuonAdamW
from tests.optim.flat import batch, closure_for, flatten, gradient, network

X, Y = batch()
LR, DECAY = 0.01, 0.1


Gradient = Callable[[Tensor], Tensor]


def trained(name: str, steps: int, optimizer: str | None = None) -> nn.Module:
    model = network()
    own = create(optimizer or name, model.parameters(), base=name, lr=LR, weight_decay=DECAY)
    for _ in range(steps):
        own.step(closure_for(own, model, X, Y))
    return model


def start() -> Tensor:
    return flatten(list(network().parameters()))


def lion(g: Gradient, steps: int) -> Tensor:
    theta, m = start(), torch.zeros(66, dtype=torch.float64)
    for _ in range(steps):
        each = g(theta)
        theta = theta - LR * ((0.9 * m + 0.1 * each).sign() + DECAY * theta)
        m = 0.99 * m + 0.01 * each
    return theta


def ademamix(g: Gradient, steps: int) -> Tensor:
    theta = start()
    fast = slow = square = torch.zeros_like(theta)
    for t in range(1, steps + 1):
        each = g(theta)
        fast, slow = 0.9 * fast + 0.1 * each, 0.9999 * slow + 0.0001 * each
        square = 0.999 * square + 0.001 * each**2
        root = (square / (1 - 0.999**t)).sqrt() + 1e-8
        theta = theta - LR * ((fast / (1 - 0.9**t) + 5 * slow) / root + DECAY * theta)
    return theta


def sequences(g: Gradient, steps: int) -> tuple[Tensor, Tensor]:
    """Return Schedule-Free's y, where gradients are taken, and its average x."""
    z = x = y = start()
    square = torch.zeros_like(z)
    for t in range(1, steps + 1):
        each = g(y)
        square = 0.999 * square + 0.001 * each**2
        z = z - LR * (each / ((square / (1 - 0.999**t)).sqrt() + 1e-8) + DECAY * y)
        x = x + (z - x) / t  # a constant learning rate: all steps count the same
        y = 0.1 * z + 0.9 * x
    return y, x


def schedulefree(g: Gradient, steps: int) -> Tensor:
    return sequences(g, steps)[0]


def plain(theta: Tensor) -> Tensor:
    return gradient(theta, X, Y)


def sam(theta: Tensor) -> Tensor:
    return plain(theta + 0.05 * unit(plain(theta)))


@pytest.mark.parametrize("aware", [None, "sam"])
@pytest.mark.parametrize("formula", [lion, ademamix, schedulefree])
def test_the_update_is_that_of_the_paper(formula: Callable[[Gradient, int], Tensor], aware: str | None) -> None:
    model = trained(formula.__name__, 5, aware)
    expected = formula(plain if aware is None else sam, 5)
    torch.testing.assert_close(flatten(list(model.parameters())), expected, rtol=0, atol=1e-9)


def unit(v: Tensor) -> Tensor:
    return v / v.norm()


def test_muon_orthogonalizes_matrices_and_leaves_the_rest_to_adamw() -> None:
    parts = plain(start()).split([35, 7, 21, 3])
    decayed = [part * (1 - LR * DECAY) for part in start().split([35, 7, 21, 3])]
    after = flatten(list(trained("muon", 1).parameters())).split([35, 7, 21, 3])
    for place, shape in ((0, (7, 5)), (2, (3, 7))):
        step = (decayed[place] - after[place]).view(shape) / (LR * 0.2 * max(shape) ** 0.5)
        u, s, v = torch.linalg.svd(parts[place].view(shape), full_matrices=False)
        real = s > 1e-9  # the rows of a head's gradient sum to zero: it lacks a rank
        sizes = (u.T @ step @ v.T).diagonal()[real]
        assert len(sizes) >= 2
        assert ((sizes > 0.6) & (sizes < 1.25)).all()  # what five iterations of the quintic leave, in bfloat16
        torch.testing.assert_close(u[:, real].T @ step @ v[real].T, sizes.diag(), rtol=0, atol=0.05)
    for place in (1, 3):  # the first step of AdamW
        expected = decayed[place] - LR * parts[place] / (parts[place].abs() + 1e-8)
        torch.testing.assert_close(after[place], expected, rtol=0, atol=1e-9)


def test_muon_is_torchs_two_optimizers_through_checkpoints_too() -> None:
    apart, together = network(), network()
    matrices, rest = ([p for p in apart.parameters() if (p.ndim == 2) is wanted] for wanted in (True, False))
    both = [torch.optim.Muon(matrices, lr=LR, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=LR, weight_decay=DECAY)]  # fmt: skip
    own = MuonAdamW(together.parameters(), lr=LR, weight_decay=DECAY)
    for _ in range(3):
        gradients = torch.autograd.grad(nn.functional.cross_entropy(apart(X), Y), list(apart.parameters()))
        for model in (apart, together):
            for parameter, g in zip(model.parameters(), gradients, strict=True):
                parameter.grad = g.clone()
        for optimizer in both:
            optimizer.step()
        own.step()
        resumed = MuonAdamW(together.parameters(), lr=1.0)
        resumed.load_state_dict(own.state_dict())
        own = resumed
    assert torch.equal(flatten(list(apart.parameters())), flatten(list(together.parameters())))


def test_soaps_first_step_moves_nothing_and_the_second_is_adam_in_the_eigenbasis() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3, bias=False).double()
    optimizer = create("soap", model.parameters(), lr=LR, weight_decay=0.0)
    theta, first, second = model.weight.detach().clone(), *torch.randn(2, 3, 4, dtype=torch.float64)
    model.weight.grad = first.clone()
    optimizer.step()
    assert torch.equal(model.weight, theta)
    left, right = (torch.linalg.eigh(a)[1] for a in (first @ first.T, first.T @ first))
    model.weight.grad = second.clone()
    optimizer.step()
    turned = left.T @ second @ right  # Adam's first step in this basis: the sign
    expected = theta - LR * left @ (turned / turned.abs()) @ right.T
    torch.testing.assert_close(model.weight.detach(), expected, rtol=0, atol=1e-5)


def test_schedule_free_is_evaluated_at_the_mean_of_its_steps() -> None:
    model = network()
    optimizer = create("sam", model.parameters(), base="schedulefree", lr=LR, weight_decay=DECAY, model=model)
    for _ in range(4):
        optimizer.step(closure_for(optimizer, model, X, Y))
    optimizer.base_optimizer.eval()  # type: ignore[attr-defined]
    torch.testing.assert_close(flatten(list(model.parameters())), sequences(sam, 4)[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["muon", "schedulefree", "ademamix", "soap", "lion"])
def test_a_cleared_optimizer_is_a_new_one(name: str) -> None:
    model = network()
    optimizer = create("sam", model.parameters(), base=name, lr=LR)
    for _ in range(3):
        optimizer.step(closure_for(optimizer, model, X, Y))
    new = network()
    new.load_state_dict(model.state_dict())
    clear_state(optimizer)
    other = create("sam", new.parameters(), base=name, lr=LR)
    for _ in range(2):
        optimizer.step(closure_for(optimizer, model, X, Y))
        other.step(closure_for(other, new, X, Y))
    assert torch.equal(flatten(list(model.parameters())), flatten(list(new.parameters())))


def test_muon_says_which_torch_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ImportError, match=r"muon needs torch 2\.9 or newer"):
        create("muon", network().parameters())
    assert "muon" in OPTIMIZERS  # which lists it all the same


def test_a_name_that_both_have_is_the_sharpness_aware_optimizers() -> None:
    group = create("mecam", network().parameters(), base="ademamix", alpha=0.2).param_groups[0]
    assert (group["sharpness_alpha"], group["alpha"]) == (0.2, 5.0)
