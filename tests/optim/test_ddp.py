"""Two DDP processes train as one process does on both batches; with rank-local perturbation, as the formula says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mecam.optim import OPTIMIZERS
from tests.optim import distributed
from tests.optim.distributed import METHODS, Ranks, run
from tests.optim.flat import closure_for, flatten, gradient, network

STEPS = 4
CLOSE = 1e-9

Weights = list[Tensor]


class Holed(nn.Module):
    """A network with a layer for some inputs only (those whose first entry is positive), and one for none."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network(seed=3)
        self.side = nn.Linear(5, 3, dtype=torch.float64)
        self.never = nn.Linear(5, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        rows = x[:, 0] > 0
        out = self.body(x)
        return out + rows[:, None] * self.side(x) if rows.any() else out


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        ).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def batch(rank: int, step: int, *, holed: bool) -> tuple[Tensor, Tensor]:
    """This rank's half of a step's batch; the second rank's never reaches the side layer."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    x = torch.randn(6, 5, dtype=torch.float64, generator=generator)
    if holed and rank == 1:
        x[:, 0] = -x[:, 0].abs()
    return x, torch.randint(0, 3, (6,), generator=generator)


def joined(step: int, *, holed: bool) -> tuple[Tensor, Tensor]:
    (x0, y0), (x1, y1) = (batch(rank, step, holed=holed) for rank in (0, 1))
    return torch.cat([x0, x1]), torch.cat([y0, y1])


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two parameter groups, the second with a radius and a learning rate of its own."""
    parameters = list(model.parameters())
    return [{"params": parameters[:2]}, {"params": parameters[2:], "rho": 0.7, "lr": 0.05}]


def weights(model: nn.Module) -> Weights:
    return [p.detach().clone() for p in model.parameters()]


def build(holed: bool) -> nn.Module:
    torch.manual_seed(1)
    return Holed() if holed else network()


SGD: dict[str, Any] = {"base_optimizer": torch.optim.SGD, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
ADAM: dict[str, Any] = {"base_optimizer": torch.optim.Adam, "lr": 0.02}
SMALL_BUCKETS = 1e-4  # in MB: each parameter or two get a bucket of their own

# name -> (DDP's options, the optimizer's, whether the network has unused layers)
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "plain": ({}, SGD, False),
    "small buckets": ({"bucket_cap_mb": SMALL_BUCKETS}, ADAM, False),
    "static graph": ({"static_graph": True}, SGD, False),
    "find unused": ({"find_unused_parameters": True}, SGD, True),
    "bucket view": ({"gradient_as_bucket_view": True, "bucket_cap_mb": SMALL_BUCKETS}, SGD, False),
    "bucket view, find unused": ({"gradient_as_bucket_view": True, "find_unused_parameters": True}, ADAM, True),
    "bucket view, static graph": ({"gradient_as_bucket_view": True, "static_graph": True}, SGD, False),
    "clip": ({}, {**SGD, "clip_norm": 0.3}, False),
}


def train_together(method: str, kind: str, *, give_model: bool) -> tuple[Weights, Weights, list[float]]:
    """This rank's final weights and gradients, and the losses its steps returned."""
    ddp_options, options, holed = KINDS[kind]
    model = build(holed)
    ddp = DistributedDataParallel(model, **ddp_options)
    optimizer = METHODS[method](groups(model), model=ddp if give_model else None, **options)
    losses = [
        optimizer.step(closure_for(optimizer, ddp, *batch(dist.get_rank(), step, holed=holed))).item()
        for step in range(STEPS)
    ]
    return weights(model), [p.grad for p in model.parameters()], losses


def train_alone(method: str, kind: str) -> tuple[nn.Module, list[float]]:
    _, options, holed = KINDS[kind]
    model = build(holed)
    optimizer = METHODS[method](groups(model), **options)
    losses = [optimizer.step(closure_for(optimizer, model, *joined(step, holed=holed))).item() for step in range(STEPS)]
    return model, losses


def by_domain(method: str, model: nn.Module, forward: nn.Module, parts: list[list[tuple[Tensor, Tensor]]]) -> Weights:
    """The weights after steps on three domains each, as (images, labels)."""
    optimizer = METHODS[method](groups(model), **SGD, model=forward)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(forward(x), y)

    for domains in parts:

        def closure(domains: list[tuple[Tensor, Tensor]] = domains) -> Tensor:
            optimizer.zero_grad()
            loss = optimizer.over_domains([partial(loss_of, *domain) for domain in domains])
            loss.backward()
            return loss

        optimizer.step(closure)
    return weights(model)


def thirds(rank: int, step: int) -> list[tuple[Tensor, Tensor]]:
    """A rank's part of a step's batch of three domains."""
    x, y = batch(rank, step, holed=False)
    return list(zip(x.chunk(3), y.chunk(3), strict=True))


def domains_together(method: str) -> Weights:
    model = build(holed=False)
    return by_domain(
        method, model, DistributedDataParallel(model), [thirds(dist.get_rank(), step) for step in range(STEPS)]
    )


def train_locally(method: str, holed: bool, ddp_options: dict[str, Any]) -> tuple[Weights, Weights]:
    """This rank's final weights and gradients with rank-local perturbation."""
    model = build(holed)
    ddp = DistributedDataParallel(model, **ddp_options)
    optimizer = METHODS[method](
        groups(model), torch.optim.SGD, lr=0.1, momentum=0.9, model=ddp, local_perturbation=True
    )
    for step in range(STEPS):
        optimizer.step(closure_for(optimizer, ddp, *batch(dist.get_rank(), step, holed=holed)))
    return weights(model), [p.grad for p in model.parameters()]


def mean_of_two(method: str, holed: bool) -> Weights:
    """What rank-local perturbation means: each rank steps from the same weights on its own batch, then the mean.

    The base is linear in the gradient, so the mean of the steps is the step of the mean.
    """
    models = [build(holed), build(holed)]
    optimizers = [METHODS[method](groups(m), torch.optim.SGD, lr=0.1, momentum=0.9) for m in models]
    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.step(closure_for(optimizer, model, *batch(rank, step, holed=holed)))
        with torch.no_grad():
            for p, q in zip(*(m.parameters() for m in models), strict=True):
                p.add_(q).div_(2)
                q.copy_(p)
    return weights(models[0])


LOCAL_KINDS: dict[str, tuple[bool, dict[str, Any]]] = {
    "local": (False, {}),
    "local, holes": (True, {"find_unused_parameters": True}),
    "local, bucket view": (False, {"gradient_as_bucket_view": True}),
}


def all_reduces(method: str, local: bool, holed: bool) -> list[int]:
    """How many all-reduces each of three steps took."""
    model = build(holed)
    ddp = DistributedDataParallel(model, find_unused_parameters=holed)
    optimizer = METHODS[method](groups(model), torch.optim.SGD, lr=0.1, model=ddp, local_perturbation=local)
    counts = []
    for step in range(3):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            optimizer.step(closure_for(optimizer, ddp, *batch(dist.get_rank(), step, holed=holed)))
        counts.append(sum(event.name == "c10d::allreduce_" for event in profile.events()))
    return counts


def statistics(method: str, **options: Any) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """After each step: the batch-norm statistics, and those one plain DDP pass from the same start leaves."""
    torch.manual_seed(4)
    model, twin = Normed(), Normed()
    ddp, plain = DistributedDataParallel(model), DistributedDataParallel(twin)
    if options.pop("give_model"):
        options["model"] = ddp
    optimizer = METHODS[method](groups(model), torch.optim.SGD, lr=0.1, **options)
    found = []
    for step in range(3):
        twin.load_state_dict(model.state_dict())
        x, y = batch(dist.get_rank(), step, holed=False)
        nn.functional.cross_entropy(plain(x), y).backward()
        optimizer.step(closure_for(optimizer, ddp, x, y))
        found.append(
            tuple({name: buffer.clone() for name, buffer in m.named_buffers()} for m in (model, twin))  # type: ignore
        )
    return found  # type: ignore[return-value]


def poisoned(method: str, nonfinite: str, local: bool) -> dict[str, Any]:
    """Three steps, the second with a NaN in the second rank's batch."""
    model = build(holed=False)
    ddp = DistributedDataParallel(model)
    optimizer = METHODS[method](groups(model), **SGD, model=ddp, local_perturbation=local, nonfinite=nonfinite)
    raised, after = [], []
    for step in range(3):
        x, y = batch(dist.get_rank(), step, holed=False)
        if step == 1 and dist.get_rank() == 1:
            x[0, 0] = torch.nan
        try:
            optimizer.step(closure_for(optimizer, ddp, x, y))
            raised.append(False)
        except FloatingPointError:
            raised.append(True)
        after.append(weights(model))
    return {"raised": raised, "weights": after, "skipped": optimizer.skipped}


def two_good_steps(method: str, local: bool) -> Weights:
    """What `poisoned` comes to without its second step."""
    if not local:
        model = build(holed=False)
        optimizer = METHODS[method](groups(model), **SGD)
        for step in (0, 2):
            optimizer.step(closure_for(optimizer, model, *joined(step, holed=False)))
        return weights(model)
    models = [build(holed=False) for _ in range(2)]
    optimizers = [METHODS[method](groups(m), **SGD) for m in models]
    for step in (0, 2):
        for rank in range(2):
            closure = closure_for(optimizers[rank], models[rank], *batch(rank, step, holed=False))
            optimizers[rank].step(closure)
        with torch.no_grad():
            for p, q in zip(*(m.parameters() for m in models), strict=True):
                p.copy_((p + q) / 2)
                q.copy_(p)
    return weights(models[0])


def adahessian(give_model: bool) -> str:
    """What is said when AdaHessian is the base: at the door with the model, else at the first step."""
    from pytorch_optimizer import AdaHessian

    model = build(holed=False)
    ddp = DistributedDataParallel(model)
    x, y = batch(dist.get_rank(), 0, holed=False)
    try:
        optimizer = METHODS["sam"](groups(model), AdaHessian, lr=0.1, model=ddp if give_model else None)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(x), y)
            loss.backward(create_graph=optimizer.needs_graph)
            return loss

        optimizer.step(closure)
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def local_on_a_static_graph() -> str:
    model = build(holed=False)
    ddp = DistributedDataParallel(model, static_graph=True)
    try:
        METHODS["sam"](groups(model), **SGD, model=ddp, local_perturbation=True)
    except ValueError as error:
        return str(error)
    return "accepted"


# every method in DDP's main forms, and those that differ most in the machinery they use in the others
A_FEW = ["mecam", "fsam", "esam", "wsam"]
TOGETHER = [
    *itertools.product(["plain", "static graph", "find unused", "bucket view", "bucket view, find unused"], METHODS),
    *itertools.product(["small buckets", "bucket view, static graph", "clip"], A_FEW),
]
LOCAL = [*itertools.product(["local", "local, holes"], METHODS), *itertools.product(["local, bucket view"], A_FEW)]
BY_DOMAIN = ["disam", "dgsam"]
NONFINITE = list(itertools.product(["sam", "fsam", "wsam", "looksam"], ["skip", "raise"], [False, True]))
STATISTICS: dict[str, dict[str, Any]] = {
    "model given": {"give_model": True},
    "model not given": {"give_model": False},
    "local perturbation": {"give_model": True, "local_perturbation": True},
}


def cases() -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {}
    for kind, method in TOGETHER:
        found[f"{kind}: {method}"] = partial(train_together, method, kind, give_model=kind != "plain")
    for kind, method in LOCAL:
        found[f"{kind}: {method}"] = partial(train_locally, method, *LOCAL_KINDS[kind])
    for method, local, holed in itertools.product(["sam", "wsam"], [True, False], [True, False]):
        found[f"all-reduces: {method}, {local=}, {holed=}"] = partial(all_reduces, method, local, holed)
    for kind, method in itertools.product(STATISTICS, ["mecam", "sam"]):
        found[f"statistics: {kind}, {method}"] = partial(statistics, method, **STATISTICS[kind])
    for method in BY_DOMAIN:
        found[f"by domain: {method}"] = partial(domains_together, method)
    for method, nonfinite, local in NONFINITE:
        found[f"{nonfinite}: {method}, {local=}"] = partial(poisoned, method, nonfinite, local)
    for give_model in (True, False):
        found[f"adahessian: {give_model=}"] = partial(adahessian, give_model)
    found["local on a static graph"] = local_on_a_static_graph
    return found


one_thread = pytest.fixture(autouse=True)(distributed.one_thread)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return run(cases(), tmp_path_factory.mktemp("ddp"))


def distance(a: Weights, b: Weights) -> float:
    return max((x - y).abs().max().item() for x, y in zip(a, b, strict=True))


def test_every_method_is_covered() -> None:
    classes = {entry.sharpness_aware for entry in OPTIMIZERS.values()} - {None}
    assert {method.func for method in METHODS.values()} == classes


@pytest.mark.works_with("torch DDP", "two processes, every method: updates equal one process's", packages=["torch"])
@pytest.mark.parametrize(("kind", "method"), TOGETHER)
def test_two_processes_update_as_one_does_on_both_batches(ranks: Ranks, kind: str, method: str) -> None:
    alone, losses = train_alone(method, kind)
    together = ranks[f"{kind}: {method}"]
    for rank, (found, gradients, _) in enumerate(together):
        assert distance(found, weights(alone)) < CLOSE, f"{kind}: {method}, rank {rank}"
        assert [g is None for g in gradients] == [p.grad is None for p in alone.parameters()]
    assert distance(together[0][0], together[1][0]) == 0.0  # or the ranks drift apart
    assert [(a + b) / 2 for a, b in zip(together[0][2], together[1][2], strict=True)] == pytest.approx(
        losses, abs=CLOSE
    )


@pytest.mark.parametrize("method", BY_DOMAIN)
def test_two_processes_with_a_part_of_each_domain_update_as_one_does(ranks: Ranks, method: str) -> None:
    both = [
        [(torch.cat([x0, x1]), torch.cat([y0, y1])) for (x0, y0), (x1, y1) in zip(a, b, strict=True)]
        for a, b in ((thirds(0, step), thirds(1, step)) for step in range(STEPS))
    ]
    model = build(holed=False)
    alone = by_domain(method, model, model, both)
    for found in ranks[f"by domain: {method}"]:
        assert distance(found, alone) < CLOSE


@pytest.mark.parametrize(("kind", "method"), LOCAL)
def test_local_perturbation_is_the_mean_of_each_ranks_own_step(ranks: Ranks, kind: str, method: str) -> None:
    holed, _ = LOCAL_KINDS[kind]
    expected = mean_of_two(method, holed)
    found = ranks[f"{kind}: {method}"]
    for rank, (final, gradients) in enumerate(found):
        assert distance(final, expected) < CLOSE, f"{kind}: {method}, rank {rank}"
        assert [g is None for g in gradients] == [False] * (len(final) - 2 * holed) + [True] * (2 * holed)
    assert distance(found[0][0], found[1][0]) == 0.0


def test_local_perturbation_follows_sams_formula(ranks: Ranks) -> None:
    """Against plain autograd on flat vectors: nothing of this package."""
    theta = flatten(weights(build(holed=False)))
    second = torch.arange(theta.numel()) >= 42  # the second group: the last layer
    rho, lr = (torch.tensor(pair, dtype=torch.float64)[second.long()] for pair in ((0.4, 0.7), (0.1, 0.05)))
    momentum = torch.zeros_like(theta)
    for step in range(STEPS):
        mean = torch.zeros_like(theta)
        for rank in range(2):
            data = batch(rank, step, holed=False)
            g = gradient(theta, *data)
            mean += gradient(theta + rho * g / (g.norm() + 1e-12), *data) / 2
        momentum = 0.9 * momentum + mean
        theta = theta - lr * momentum
    for final, _ in ranks["local: sam"]:
        assert distance([flatten(final)], [theta]) < CLOSE


@pytest.mark.parametrize("holed", [False, True])
@pytest.mark.parametrize("method", ["sam", "wsam"])
def test_local_perturbation_communicates_once_a_step(ranks: Ranks, method: str, holed: bool) -> None:
    for rank in range(2):
        assert ranks[f"all-reduces: {method}, local=True, {holed=}"][rank] == [1, 1, 1]
        ordinary = ranks[f"all-reduces: {method}, local=False, {holed=}"][rank]
        assert min(ordinary) >= 2, "the counter sees DDP's all-reduce of each pass"


def test_local_perturbation_refuses_a_static_graph(ranks: Ranks) -> None:
    for said in ranks["local on a static graph"]:
        assert "no_sync, which fails with static_graph=True" in said


@pytest.mark.parametrize("method", ["mecam", "sam"])
@pytest.mark.parametrize("kind", STATISTICS)
def test_batch_norm_statistics_change_as_in_one_plain_pass(ranks: Ranks, kind: str, method: str) -> None:
    first, second = ranks[f"statistics: {kind}, {method}"]
    for step, (found, plain) in enumerate(first + second):
        for name in plain:
            assert torch.equal(found[name], plain[name]), f"{kind}, {method}, {name} after step {step % 3}"
    mean = "layers.1.running_mean"
    assert not torch.equal(first[-1][0][mean], second[-1][0][mean]), "each rank counts its own batch"


@pytest.mark.parametrize(("method", "nonfinite", "local"), NONFINITE)
def test_one_ranks_nan_stops_the_step_of_all(ranks: Ranks, method: str, nonfinite: str, local: bool) -> None:
    for found in ranks[f"{nonfinite}: {method}, {local=}"]:
        assert found["raised"] == [False, nonfinite == "raise", False]
        assert found["skipped"] == (1 if nonfinite == "skip" else 0)
        before, after, last = found["weights"]
        assert distance(before, after) == 0.0
        assert distance(last, two_good_steps(method, local)) < CLOSE


@pytest.mark.parametrize(("give_model", "error"), [(True, "ValueError"), (False, "RuntimeError")])
def test_adahessian_is_refused_with_the_reason(ranks: Ranks, give_model: bool, error: str) -> None:
    for said in ranks[f"adahessian: {give_model=}"]:
        assert said.startswith(error)
        assert "cannot work where gradients carry no graph: under DDP" in said
