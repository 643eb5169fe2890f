"""skorch hands the optimizer its closure: nothing is to be added."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mecam.optim import FSAM, SAM, MeCAM
from tests.integrations.loops import SIZE, assert_close, dataset, network, plain

skorch = pytest.importorskip("skorch", reason="skorch is not installed; make ecosystem runs this")


@pytest.mark.works_with("skorch", "NeuralNetClassifier: updates equal the plain loop's", packages=["skorch"])
@pytest.mark.parametrize("method", [SAM, MeCAM, FSAM])
def test_a_fit_is_the_plain_loop(method: Any) -> None:
    inputs, targets = dataset().tensors
    model = network()
    net = skorch.NeuralNetClassifier(
        model,
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=method,
        optimizer__base_optimizer=torch.optim.SGD,
        optimizer__momentum=0.9,
        optimizer__rho=0.2,
        optimizer__model=model,
        lr=0.05,
        batch_size=SIZE,
        max_epochs=2,
        train_split=None,
        iterator_train__shuffle=False,
        verbose=0,
    )
    net.fit(inputs.numpy(), targets.numpy())
    assert_close(net.module_, plain(method))
