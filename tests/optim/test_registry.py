"""The registry: everything can be listed and built by name."""

import math
import subprocess
import sys

import pytest
import torch

from mecam.optim import OPTIMIZERS, SharpnessAware, create, register
from tests.optim.flat import batch, closure_for, network

X, Y = batch()
PLAIN = ["adam", "adamw", "sgd", "yogi", "adabelief", "adahessian", "muon", "schedulefree", "ademamix", "soap", "lion"]
AWARE = ["sam", "asam", "gsam", "gam", "sagm", "fad", "crsam", "fsam", "esam", "looksam", "wsam", "msam", "vasso",
         "stablesam", "disam", "dgsam", "mecam", "thinmecam"]  # fmt: skip


def test_all_are_listed() -> None:
    assert list(OPTIMIZERS) == PLAIN + AWARE


@pytest.mark.parametrize("name", PLAIN + AWARE)
def test_an_entry_says_all_there_is_to_say(name: str) -> None:
    entry = OPTIMIZERS[name]
    assert entry.summary.endswith(".")
    assert set(entry.hyperparameters) == set(entry.defaults)
    assert entry.passes == (1 if name in PLAIN else entry.sharpness_aware.passes)  # type: ignore[union-attr]
    for key, hyperparameter in entry.hyperparameters.items():
        assert hyperparameter.meaning
        assert hyperparameter.search is not None
        hyperparameter.check(name, key, entry.defaults[key])


@pytest.mark.parametrize(
    ("name", "base"),
    [(name, "adam") for name in PLAIN] + [(name, base) for name in AWARE for base in ("adam", "yogi", "adahessian")],
)
def test_built_by_name_each_trains(name: str, base: str) -> None:
    model = network()
    lr = 0.05 if "adahessian" in (name, base) else 0.01
    optimizer = create(name, model.parameters(), base=base, lr=lr)
    graph = "adahessian" in (name, base)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(X), Y)
        keep = optimizer.needs_graph if isinstance(optimizer, SharpnessAware) else graph
        loss.backward(create_graph=keep)
        return loss

    losses = [optimizer.step(closure).item() for _ in range(20)]
    assert losses[-1] < losses[0]


def test_weight_decay_is_coupled_as_the_protocol_says() -> None:
    for name in ("yogi", "adabelief", "adahessian"):
        assert create(name, network().parameters()).param_groups[0]["weight_decouple"] is False
    below = create("sam", network().parameters(), base="yogi", weight_decay=0.1)
    assert below.param_groups[0]["weight_decouple"] is False
    assert below.param_groups[0]["weight_decay"] == 0.1


def test_settings_reach_the_method_and_its_base() -> None:
    optimizer = create("mecam", network().parameters(), base="sgd", alpha=0.2, lr=0.3, momentum=0.5)
    group = optimizer.param_groups[0]
    assert (group["alpha"], group["lr"], group["momentum"], group["rho"]) == (0.2, 0.3, 0.5, 0.1)


def test_a_base_is_a_plain_optimizer() -> None:
    with pytest.raises(ValueError, match="sharpness-aware itself"):
        create("sam", network().parameters(), base="mecam")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_setting_that_does_not_exist_is_refused_with_those_that_do(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} has no setting 'lrr'; did you mean lr\b.* It has .*\blr, "):
        create(name, network().parameters(), lrr=0.1)  # which pytorch_optimizer's classes would swallow
    with pytest.raises(ValueError, match=f"{name} has no setting 'zzzzzz'; it has .*weight_decay"):
        create(name, network().parameters(), zzzzzz=0.1)


@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0])
def test_a_learning_rate_that_is_none_is_refused(value: float) -> None:
    for name in ("sgd", "mecam"):
        with pytest.raises(ValueError, match=f"{name}: lr=.* is not allowed; it must be a number in"):
            create(name, network().parameters(), lr=value)


def test_options_of_the_machinery_are_settings_too() -> None:
    options = {"shared_noise": True, "clip_norm": 1.0, "nonfinite": "skip", "virtual_domain": None, "eps": 1e-6}
    assert create("mecam", network().parameters(), **options).param_groups[0]["eps"] == 1e-6


def test_a_missing_package_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(ImportError, match=r"'yogi' comes from the package pytorch_optimizer .*mecam\[optimizers\]"):
        create("yogi", network().parameters())


def test_importing_the_optimizers_imports_torch_and_nothing_else_of_weight() -> None:
    code = """
import sys, torch
before = set(sys.modules)
import mecam.optim, mecam.virtual
new = {m.split(".")[0] for m in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names) - {"mecam"}))
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_closures_work_with_plain_optimizers_too() -> None:
    model = network()
    optimizer = create("adam", model.parameters(), lr=0.1)
    assert optimizer.step(closure_for(optimizer, model, X, Y)).item() > 0


def test_a_registered_plain_optimizer_is_also_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "slow", None)  # forgotten afterwards

    @register
    class Slow(torch.optim.SGD):
        """SGD at half the speed.

        More about it.
        """

    assert (OPTIMIZERS["slow"].summary, OPTIMIZERS["slow"].passes) == ("SGD at half the speed.", 1)
    assert isinstance(create("slow", network().parameters(), momentum=0.5), Slow)
    assert isinstance(create("sam", network().parameters(), base="slow").base_optimizer, Slow)
    with pytest.raises(ValueError, match="slow: lr=-1 is not allowed"):
        create("slow", network().parameters(), lr=-1)
