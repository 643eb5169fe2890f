"""Gradients are exchanged while the backward runs, and are those of one exchange after it."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mecam import ranks
from mecam.data.shapes import shapes
from mecam.recipe import Recipe
from mecam.training import exchange
from mecam.training.exchange import Overlap, overlap
from mecam.training.machine import find_machine
from mecam.training.run import Run


class Slow:
    """An exchange between two equal processes that takes 10 ms."""

    def __init__(self, events: list[str], flat: Tensor) -> None:
        self.events, self.number = events, sum(event.startswith("sent") for event in events)
        self.events.append(f"sent {self.number}")
        self.thread = threading.Timer(0.01, flat.mul_, [2])
        self.thread.start()

    def wait(self) -> None:
        self.thread.join()
        self.events.append(f"arrived {self.number}")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(ranks, "count", lambda: 2)
    monkeypatch.setattr(exchange.dist, "all_reduce", lambda flat, **_: Slow(seen, flat))
    return seen


def layers(events: list[str]) -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))).double()
    for number, layer in enumerate(network):
        layer.register_full_backward_hook(lambda *_, n=number: events.append(f"backward {n}"))
    return network


def test_a_bucket_is_sent_before_the_backward_ends(events: list[str]) -> None:
    network = layers(events)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(network(x).square().sum(), list(network.parameters()))
    events.clear()
    each = Overlap(list(network.parameters()), size=network[0].weight.nbytes + network[0].bias.nbytes)
    each.average(lambda: network(x).square().sum().backward())
    assert events.index("sent 0") < events.index("backward 0")
    sent, arrived = ([f"{event} {n}" for n in range(4)] for event in ("sent", "arrived"))
    assert [event for event in events if event.startswith("sent")] == sent
    assert [event for event in events if event.startswith("arrived")] == arrived
    assert events.index("arrived 0") > events.index("backward 0")
    torch.testing.assert_close([p.grad for p in network.parameters()], list(expected), rtol=0, atol=0)


def test_parameters_without_gradients_do_not_hold_up_the_others(events: list[str]) -> None:
    network = layers(events)
    parameters = list(network.parameters())
    each = Overlap(parameters, size=1)
    network[3].requires_grad_(False)
    each.average(lambda: network[:2](torch.ones(1, 4, dtype=torch.float64, requires_grad=True)).sum().backward())
    assert len([event for event in events if event.startswith("sent")]) == len(parameters)
    assert [p.grad is None for p in parameters] == [False] * 4 + [True] * 4


def test_outside_of_a_pass_nothing_is_sent(events: list[str]) -> None:
    network = layers(events)
    Overlap(list(network.parameters()))
    network(torch.ones(1, 4, dtype=torch.float64, requires_grad=True)).sum().backward()
    assert not any(event.startswith("sent") for event in events)


@pytest.mark.parametrize(
    ("values", "overlaps"),
    [
        ({"method": "erm"}, True),
        ({"method": "dann"}, True),
        ({"method": "andmask"}, False),
        ({"method": "erm", "accumulate": 2}, False),
        ({"method": "erm", "optimizer": "disam"}, False),
    ],
)
def test_only_a_pass_of_one_backward_overlaps(
    values: dict[str, Any], overlaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(**{"target": "sketch", "batch": 4, **values})
    run = Run(recipe, find_machine("cpu"), shapes(per_class=4))
    monkeypatch.setattr(ranks, "count", lambda: 2)
    parts = recipe, run.method, run.optimizer, run.parameters
    assert (overlap(*parts, torch.device("cuda")) is not None) is overlaps
    assert overlap(*parts, torch.device("cpu")) is None


SCRIPT = """
import os
import torch
from mecam.data.open import open_data
from mecam.recipe import Recipe
from mecam.training.exchange import Overlap
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.step import train_step

torch.set_num_threads(1)


def weights(overlaps, **values):
    recipe = Recipe(target="sketch", batch=4, steps=3, freeze_bn=True, **values)
    run = Run(recipe, find_machine("cpu"), open_data("shapes"))
    if overlaps and values["method"] != "andmask":  # which exchanges after its surgery
        run.overlap = Overlap(run.parameters, size=100_000)
        assert len(run.overlap._buckets) > 2
    for step in range(3):
        train_step(run, step)
    return [parameter.detach() for parameter in run.trained.parameters()]


for values in ({"method": "erm"}, {"method": "erm", "optimizer": "mecam"}, {"method": "andmask"}, {"method": "dann"}):
    pairs = list(zip(weights(True, **values), weights(False, **values)))
    assert all(torch.equal(a, b) for a, b in pairs), values
    gathered = [torch.zeros_like(pairs[0][0]) for _ in range(2)]
    torch.distributed.all_gather(gathered, pairs[0][0])
    assert torch.equal(*gathered), values
print("equal", flush=True)
os._exit(0)  # threads of gloo can abort the interpreter's own exit
"""


def test_two_processes_end_at_the_weights_of_one_exchange(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal") == 2  # the two lines can mix


CAPTURED = """
import torch
from torch import distributed
from mecam.data.shapes import shapes
from mecam.recipe import Recipe
from mecam.training.exchange import Overlap
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.step import train_step

machine = find_machine("cuda")
torch.cuda.set_device(0)
distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:29533", rank=0, world_size=1)


def weights(overlaps, **values):
    recipe = Recipe(target="sketch", batch=4, steps=3, freeze_bn=True, **values)
    run = Run(recipe, machine, shapes(per_class=8))
    if overlaps:
        run.overlap = Overlap(run.parameters, size=100_000)
        assert len(run.overlap._buckets) > 2
    for step in range(6):
        torch.manual_seed(step)
        train_step(run, step)
    assert all(graph._graph is not None for graph in run.captures.graphs.values()) and run.captures.graphs
    return [parameter.detach().clone() for parameter in run.trained.parameters()]


for values in ({"optimizer": "adam"}, {"optimizer": "mecam"}, {"method": "dann"}):
    assert all(torch.equal(a, b) for a, b in zip(weights(True, **values), weights(False, **values))), values
print("equal")
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_exchange_inside_a_graph_leaves_the_weights_of_none() -> None:
    """One process: the means are its own gradients. NCCL's collectives are part of the graph."""
    done = subprocess.run([sys.executable, "-c", CAPTURED], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "equal" in done.stdout
