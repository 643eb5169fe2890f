"""Two FSDP2 processes, each with a shard of the weights, train as one process does on both batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.optim import distributed
from tests.optim.distributed import METHODS, Ranks, needs_fsdp2, run

pytestmark = needs_fsdp2

STEPS = 3
CLOSE = 1e-9
SGD: dict[str, Any] = {"base_optimizer": torch.optim.SGD, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
ADAM: dict[str, Any] = {"base_optimizer": torch.optim.Adam, "lr": 0.02}


class Net(nn.Module):
    """Seven rows over two ranks are four and three; the gate's one row leaves the second rank an empty shard."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 7))
        self.first = nn.Linear(5, 7)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.norm = nn.LayerNorm(7)
        self.gate = nn.Linear(7, 1)
        self.last = nn.Linear(7, 3)
        self.never = nn.Linear(7, 3)
        self.poison = False

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.poison:  # only the last row of `first` gets a NaN, which is the second rank's alone
            h.register_hook(lambda g: torch.cat([g[:, :-1], g[:, -1:] * torch.nan], 1))
        h = self.norm(self.scale * torch.tanh(h) + self.frozen(torch.tanh(h)))
        return self.last(h) * (1 + torch.tanh(self.gate(h)))


def build() -> Net:
    torch.manual_seed(1)
    return Net().double()


def groups(model: Net) -> list[dict[str, Any]]:
    """Three parameter groups, two with a radius of their own; sharded and replicated, frozen and trained ones mixed."""
    return [
        {"params": [model.first.weight, model.scale, model.first.bias]},
        {"params": [*model.frozen.parameters(), *model.norm.parameters(), *model.gate.parameters()], "rho": 0.7},
        {"params": [*model.last.parameters(), *model.never.parameters()], "rho": 0.2, "lr": 0.05},
    ]


def shard_whole(model: Net) -> None:
    fully_shard(model)


def shard_layers(model: Net) -> None:
    for layer in (model.first, model.frozen, model.gate, model.last):
        fully_shard(layer)
    fully_shard(model)


def shard_all_but_scale(model: Net) -> None:
    fully_shard(model, ignored_params={model.scale})


def replicate_shards(model: Net) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")))


def shard_a_layer_alone(model: Net) -> None:
    fully_shard(model.first)


KINDS: dict[str, tuple[Callable[[Net], None], dict[str, Any]]] = {
    "whole": (shard_whole, {**SGD, "track": True}),
    "layers": (shard_layers, ADAM),
    "ignored parameter": (shard_all_but_scale, SGD),
    "one layer": (shard_a_layer_alone, SGD),
    "hybrid": (replicate_shards, SGD),
    "clip": (shard_layers, {**SGD, "clip_norm": 0.3}),
}


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(10 * step + rank)
    x = torch.randn(6, 5, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 3, (6,), generator=generator)


def joined(step: int) -> tuple[Tensor, Tensor]:
    (x0, y0), (x1, y1) = batch(0, step), batch(1, step)
    return torch.cat([x0, x1]), torch.cat([y0, y1])


def closure_for(optimizer: Any, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        for p in model.parameters():
            # what fully_shard leaves alone is the user's to average
            if dist.is_initialized() and not isinstance(p, DTensor) and p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad.div_(dist.get_world_size())
        return loss

    return closure


def full(tensor: Tensor | None) -> Tensor | None:
    if tensor is None:
        return None
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def shards(model: nn.Module) -> list[Tensor]:
    return [(p.to_local() if isinstance(p, DTensor) else p).detach().clone() for p in model.parameters()]


def train(model: Net, method: str, options: dict[str, Any], data: Callable[[int], Any]) -> dict[str, Any]:
    optimizer = METHODS[method](groups(model), **options)
    losses, norms = [], []  # type: list[float], list[list[float]]
    for step in range(STEPS):
        losses.append(optimizer.step(closure_for(optimizer, model, *data(step))).item())
        norms.append([norm.item() for norm in optimizer.last.norms] if optimizer.last else [])
    names = [name for name, _ in model.named_parameters()]
    return {
        "weights": dict(zip(names, [full(p) for p in model.parameters()], strict=True)),
        "gradients": dict(zip(names, [full(p.grad) for p in model.parameters()], strict=True)),
        "empty": [part.numel() == 0 for part in shards(model)],
        "losses": losses,
        "norms": norms,
    }


def train_sharded(method: str, kind: str) -> dict[str, Any]:
    shard, options = KINDS[kind]
    model = build()
    shard(model)
    return train(model, method, options, partial(batch, dist.get_rank()))


def train_alone(method: str, kind: str) -> dict[str, Any]:
    return train(build(), method, KINDS[kind][1], joined)


def parallel_net() -> nn.Sequential:
    torch.manual_seed(1)
    layers = nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 4)
    return nn.Sequential(*layers).double()


def train_tensor_parallel(method: str) -> list[Tensor]:
    """Tensor and sequence parallelism: the layer norm's gradient arrives as a sum still to be made over the ranks."""
    model = parallel_net()
    plan = {
        "0": ColwiseParallel(),
        "2": RowwiseParallel(output_layouts=Shard(0)),
        "3": SequenceParallel(sequence_dim=0, use_local_output=False),
        "4": ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
    }
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    return train_parallel_net(method, model)


def train_parallel_net(method: str, model: nn.Sequential) -> list[Tensor]:
    optimizer = METHODS[method](model.parameters(), **SGD)
    for step in range(STEPS):
        x, y = joined(step)

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    return [t for p in model.parameters() if (t := full(p)) is not None]


def poisoned(method: str, nonfinite: str, whose: str) -> dict[str, Any]:
    """Three steps; in the second, a NaN in the second rank's batch, or only in its shard of the last gradient."""
    model = build()
    shard_layers(model)
    optimizer = METHODS[method](groups(model), nonfinite=nonfinite, **SGD)
    raised, after = [], []
    for step in range(3):
        x, y = batch(dist.get_rank(), step)
        if step == 1 and whose == "batch" and dist.get_rank() == 1:
            x[0, 0] = torch.nan

        def closure(x: Tensor = x, y: Tensor = y, broken: bool = step == 1 and whose == "shard") -> Tensor:
            model.poison = broken and not optimizer.first_pass  # from the first pass, the norm would tell every rank
            return closure_for(optimizer, model, x, y)()

        try:
            optimizer.step(closure)
            raised.append(False)
        except FloatingPointError:
            raised.append(True)
        after.append(shards(model))
    return {
        "raised": raised,
        "shards": after,
        "skipped": optimizer.skipped,
        "weights": {name: full(p) for name, p in model.named_parameters()},
    }


def interrupted(method: str, where: str, fails: bool) -> dict[str, Any]:
    """Two steps; between them, if `fails`, one whose closure raises at the perturbed weights, on all ranks."""
    model = build()
    shard_layers(model)
    optimizer = METHODS[method](groups(model), model=model, **SGD)
    run_step = [closure_for(optimizer, model, *batch(dist.get_rank(), step)) for step in (0, 1)]
    optimizer.step(run_step[0])
    before = shards(model)
    if fails:
        calls = itertools.count()

        def closure() -> Tensor:
            if next(calls) == 0:
                return run_step[1]()
            if where == "after forward":
                model(batch(dist.get_rank(), 1)[0])
            raise KeyError("a broken batch")

        try:
            optimizer.step(closure)
        except KeyError:
            pass
        else:
            raise AssertionError("the closure's error was swallowed")
    after = shards(model)
    optimizer.step(run_step[1])
    return {"before": before, "after": after, "weights": {name: full(p) for name, p in model.named_parameters()}}


def called_twice(given: bool) -> list[Tensor]:
    """A step whose closure runs the root twice before backward."""
    model = build()
    shard_whole(model)
    optimizer = METHODS["sam"](groups(model), model=model if given else None, **SGD)
    x, y = batch(dist.get_rank(), 0)
    once = closure_for(optimizer, model, x, y)
    optimizer.step(lambda: (model(x), once())[1])
    return shards(model)


def adahessian() -> str:
    from pytorch_optimizer import AdaHessian

    model = build()
    shard_whole(model)
    try:
        METHODS["sam"](groups(model), AdaHessian, lr=0.1)
    except ValueError as error:
        return str(error)
    return "accepted"


# every method in two ways of sharding, and those that differ most in the machinery they use in the others
SHARDED = [
    *itertools.product(["layers", "ignored parameter"], METHODS),
    *itertools.product(["whole", "one layer", "hybrid", "clip"], ["mecam", "fsam", "esam", "wsam"]),
]


def flat(use_orig_params: bool) -> str:
    """FSDP1, in both its forms."""
    model = build().requires_grad_()  # one flat parameter cannot be frozen in part
    wrapped = FullyShardedDataParallel(model, use_orig_params=use_orig_params, device_id=torch.device("cpu"))
    try:
        METHODS["sam"](wrapped.parameters(), torch.optim.SGD, lr=0.1)
    except ValueError as error:
        return str(error)
    return "accepted"


NONFINITE = list(itertools.product(["fsam", "wsam"], ["skip", "raise"], ["batch", "shard"]))
INTERRUPTED = list(itertools.product(["mecam", "fsam"], ["before forward", "after forward"]))
PARALLEL = ["gsam", "asam"]


def cases() -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {}
    for kind, method in SHARDED:
        found[f"{kind}: {method}"] = partial(train_sharded, method, kind)
    for method, nonfinite, whose in NONFINITE:
        found[f"{nonfinite}: {method}, {whose}"] = partial(poisoned, method, nonfinite, whose)
    for (method, where), fails in itertools.product(INTERRUPTED, [False, True]):
        found[f"interrupted: {method}, {where}, {fails=}"] = partial(interrupted, method, where, fails)
    for method in PARALLEL:
        found[f"tensor parallel: {method}"] = partial(train_tensor_parallel, method)
    for given in (True, False):
        found[f"called twice: {given=}"] = partial(called_twice, given)
    found["adahessian"] = adahessian
    for use_orig_params in (True, False):
        found[f"flat: {use_orig_params=}"] = partial(flat, use_orig_params)
    return found


one_thread = pytest.fixture(autouse=True)(distributed.one_thread)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return run(cases(), tmp_path_factory.mktemp("fsdp"))


def furthest(found: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[float, str]:
    """The largest deviation, and in which parameter."""
    return max(((found[name] - expected[name]).abs().max().item(), name) for name in expected)


@pytest.mark.works_with("torch FSDP2", "two processes, every method: updates equal one process's", packages=["torch"])
@pytest.mark.parametrize(("kind", "method"), SHARDED)
def test_two_processes_update_as_one_does_on_both_batches(ranks: Ranks, kind: str, method: str) -> None:
    alone = train_alone(method, kind)
    together = ranks[f"{kind}: {method}"]
    for rank, found in enumerate(together):
        deviation, name = furthest(found["weights"], alone["weights"])
        assert deviation < CLOSE, f"{kind}: {method}, rank {rank}, {name}"
        assert found["norms"] == [pytest.approx(norms, abs=CLOSE) for norms in alone["norms"]]
        holes = {name for name, gradient in alone["gradients"].items() if gradient is None}
        assert {name for name, gradient in found["gradients"].items() if gradient is None} == holes
        assert holes == {"frozen.weight", "frozen.bias", "never.weight", "never.bias"}
    losses = [[a, b] for a, b in zip(*(found["losses"] for found in together), strict=True)]
    assert [sum(pair) / 2 for pair in losses] == pytest.approx(alone["losses"], abs=CLOSE)


def test_an_empty_shard_was_among_them(ranks: Ranks) -> None:
    assert any(ranks["layers: sam"][1]["empty"])


@pytest.mark.works_with("torch tensor parallel", "two processes: updates equal one process's", packages=["torch"])
@pytest.mark.parametrize("method", PARALLEL)
def test_tensor_parallel_training_updates_as_one_process_does(ranks: Ranks, method: str) -> None:
    alone = train_parallel_net(method, parallel_net())
    for found in ranks[f"tensor parallel: {method}"]:
        assert max((a - b).abs().max().item() for a, b in zip(found, alone, strict=True)) < CLOSE


@pytest.mark.parametrize(("method", "nonfinite", "whose"), NONFINITE)
def test_one_ranks_nan_stops_the_step_of_all(ranks: Ranks, method: str, nonfinite: str, whose: str) -> None:
    model = build()
    optimizer = METHODS[method](groups(model), **SGD)
    for step in (0, 2):
        optimizer.step(closure_for(optimizer, model, *joined(step)))
    expected = {name: p.detach() for name, p in model.named_parameters()}
    for found in ranks[f"{nonfinite}: {method}, {whose}"]:
        assert found["raised"] == [False, nonfinite == "raise", False]
        assert found["skipped"] == (1 if nonfinite == "skip" else 0)
        before, after, _ = found["shards"]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        deviation, name = furthest(found["weights"], expected)
        assert deviation < CLOSE, name


@pytest.mark.parametrize(("method", "where"), INTERRUPTED)
def test_a_closure_that_raises_leaves_the_shards_as_they_were(ranks: Ranks, method: str, where: str) -> None:
    undisturbed = ranks[f"interrupted: {method}, {where}, fails=False"]
    for found, expected in zip(ranks[f"interrupted: {method}, {where}, fails=True"], undisturbed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found["before"], found["after"], strict=True))
        deviation, name = furthest(found["weights"], expected["weights"])
        assert deviation == 0.0, f"the next step went wrong at {name}"


def test_a_root_that_runs_twice_needs_no_model(ranks: Ranks) -> None:
    for found, expected in zip(ranks["called twice: given=False"], ranks["called twice: given=True"], strict=True):
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("use_orig_params", [True, False])
def test_fsdp1_is_refused_with_the_reason(ranks: Ranks, use_orig_params: bool) -> None:
    for said in ranks[f"flat: {use_orig_params=}"]:
        assert "does not show how its parameters are sharded" in said


def test_adahessian_is_refused_with_the_reason(ranks: Ranks) -> None:
    for said in ranks["adahessian"]:
        assert "cannot work where gradients carry no graph: under DDP and FSDP" in said
