"""Under ignite, the update function of an Engine takes the step with a closure."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor
from torch.nn import functional as F

from mecam.optim import FSAM, SAM, MeCAM
from tests.integrations.loops import BATCHES, assert_close, loader, network, plain, sgd

pytest.importorskip("ignite", reason="ignite is not installed; make ecosystem runs this")
from ignite.engine import Engine, Events, create_supervised_trainer


@pytest.mark.works_with("ignite", "an Engine: updates equal the plain loop's", packages=["pytorch-ignite"])
@pytest.mark.parametrize("method", [SAM, MeCAM, FSAM])
def test_a_run_is_the_plain_loop(method: Any) -> None:
    model = network()
    optimizer = sgd(method, model)

    def update(_: Engine, batch: list[Tensor]) -> float:
        x, y = batch

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return float(optimizer.step(closure))

    trainer = Engine(update)
    losses: list[float] = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
    trainer.run(loader(), max_epochs=2)
    assert len(losses) == 2 * BATCHES
    assert_close(model, plain(method))


def test_its_ready_made_trainer_is_refused() -> None:
    model = network()
    trainer = create_supervised_trainer(model, sgd(SAM, model), F.cross_entropy)
    with pytest.raises(TypeError, match=r"step\(\) needs a closure"):
        trainer.run(loader())
