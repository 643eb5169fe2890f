"""torch's learning-rate schedulers on SAM and MeCAM: the same rates and weights as on the plain optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as lr

from mecam.optim import SAM, MeCAM
from tests.optim.flat import batch, closure_for, flatten, network

X, Y = batch()
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: lr.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o: lr.StepLR(o, 2),
    "MultiStepLR": lambda o: lr.MultiStepLR(o, [2, 4]),
    "ConstantLR": lambda o: lr.ConstantLR(o, total_iters=3),
    "LinearLR": lambda o: lr.LinearLR(o, start_factor=0.01, total_iters=4),
    "ExponentialLR": lambda o: lr.ExponentialLR(o, 0.8),
    "SequentialLR": lambda o: lr.SequentialLR(o, [lr.ConstantLR(o), lr.ExponentialLR(o, 0.9)], milestones=[3]),
    "CosineAnnealingLR": lambda o: lr.CosineAnnealingLR(o, 4),
    "ChainedScheduler": lambda o: lr.ChainedScheduler([lr.ConstantLR(o), lr.ExponentialLR(o, 0.9)], optimizer=o),
    "ReduceLROnPlateau": lambda o: lr.ReduceLROnPlateau(o, patience=0, threshold=1.0),
    "CyclicLR": lambda o: lr.CyclicLR(o, 0.01, 0.2, step_size_up=2),
    "CosineAnnealingWarmRestarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: lr.OneCycleLR(o, 0.2, total_steps=8),
    "PolynomialLR": lambda o: lr.PolynomialLR(o, 5),
}


def test_these_are_all() -> None:
    assert set(SCHEDULERS) == set(lr.__all__) - {"LRScheduler"}


@pytest.mark.works_with(
    "torch.optim.lr_scheduler", "every scheduler: rates and updates equal the plain optimizer's", packages=["torch"]
)
@pytest.mark.filterwarnings("error", "ignore:The epoch parameter")  # torch 2.6, of its own SequentialLR
@pytest.mark.parametrize("resumed", [False, True], ids=["", "resumed"])
@pytest.mark.parametrize("method", [SAM, MeCAM])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler(name: str, method: Any, resumed: bool) -> None:
    unchanged: dict[str, Any] = {"rho": 0.0} if method is SAM else {"alpha": 0.0, "beta": 0.0}
    makers = (
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        lambda params: method(params, torch.optim.SGD, lr=0.1, momentum=0.9, **unchanged),
    )
    seen = []
    for make in makers:
        model = network()
        optimizer = make(model.parameters())
        scheduler, rates = SCHEDULERS[name](optimizer), []
        for step in range(6):
            if resumed and step == 3:
                states = optimizer.state_dict(), scheduler.state_dict()
                optimizer = make(model.parameters())
                scheduler = SCHEDULERS[name](optimizer)
                optimizer.load_state_dict(states[0])
                scheduler.load_state_dict(states[1])
            loss = optimizer.step(closure_for(optimizer, model, X, Y))
            scheduler.step(*([loss.detach()] if name == "ReduceLROnPlateau" else []))
            rates.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        seen.append((rates, flatten(list(model.parameters()))))
    (rates, weights), (our_rates, our_weights) = seen
    assert our_rates == rates
    assert torch.equal(our_weights, weights)
