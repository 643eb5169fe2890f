"""Dropout is the end of the featurizer: penalties and adversaries see the features that the head sees."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.methods import Batch, Setting, create
from mecam.methods.miro import MIRO, Anchored
from mecam.models.network import Network

SEE_FEATURES = ["mmd", "coral", "dann", "cdann", "mtl", "sagnet", "mdsdi", "selfreg", "madg", "fishr", "rsc", "iberm",
                "ibirm", "cad", "condcad", "transfer", "trm", "causirlmmd", "causirlcoral"]  # fmt: skip


class Masked(nn.Module):
    """Features multiplied by a fixed mask."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, features: Tensor) -> Tensor:
        return features * self.mask


def gradients(loss: Tensor, module: nn.Module) -> dict[str, Tensor]:
    parameters = dict(module.named_parameters())
    found = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True, allow_unused=True)
    return {name.replace("featurizer.0.", "featurizer."): g for name, g in zip(parameters, found, strict=True)}


@pytest.mark.parametrize("name", SEE_FEATURES)
def test_a_fixed_mask_in_the_featurizer_is_the_same(
    name: str, make_network: Callable[..., Network], batch: Batch, setting: Setting
) -> None:
    """Loss and gradient with dropout, and without it in a network whose features are masked."""

    def built(dropout: float) -> tuple[Any, Any, Network]:
        method = create(name, **({"anneal": 0} if name in ("fishr", "iberm", "trm") else {}))
        torch.manual_seed(5)  # of sides and projectors
        module = method.build(make_network(dropout=dropout), setting)
        return method, module, module if isinstance(module, Network) else module.network  # type: ignore[return-value]

    method, module, _ = built(0.5)
    other_method, other, network = built(0.0)
    torch.manual_seed(0)
    mask = F.dropout(torch.ones(len(batch.labels), network.num_features, dtype=torch.float64), 0.5)
    network.featurizer = nn.Sequential(network.featurizer, Masked(mask))
    draw = method.draw(batch, torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    loss, _ = method.loss(module, batch, draw, method.initial_state())
    expected, _ = other_method.loss(other, batch, draw, other_method.initial_state())
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    found, wanted = gradients(loss, module), gradients(expected, other)
    assert found.keys() == wanted.keys()
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_miro_compares_features_before_dropout(
    make_network: Callable[..., Network], batch: Batch, setting: Setting
) -> None:
    """Its authors tap the layers, which dropout comes after."""
    drifts = []
    for dropout in (0.0, 0.9):
        anchored = MIRO().build(make_network(dropout=dropout), setting)
        assert isinstance(anchored, Anchored)
        drifts.append(anchored.with_drift(batch.images)[1])
    torch.testing.assert_close(*drifts, rtol=1e-12, atol=0)
