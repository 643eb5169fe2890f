"""CAD and CondCAD against sums over pairs of images."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods import Batch
from mecam.methods.cad import CAD
from mecam.methods.condcad import CondCAD
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def expected(network: Network, batch: Batch, lam: float, tau: float, *, conditional: bool) -> Tensor:
    z, labels, domains = network.features(batch.images), batch.labels, batch.domain_labels()
    logs = []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i and (not conditional or labels[j] == labels[i])]
        elsewhere = [j for j in others if domains[j] != domains[i]]
        if elsewhere:
            part, whole = (sum(torch.exp(z[i].dot(z[j]) / tau) for j in some) for some in (elsewhere, others))
            logs.append(torch.log(torch.as_tensor(part / whole)))
    return F.cross_entropy(network.head(z), labels) - lam * tau / 0.07 * torch.stack(logs).mean()


@pytest.mark.parametrize(("method", "conditional"), [(CAD, False), (CondCAD, True)])
@pytest.mark.parametrize("tau", [0.1, 2.0])
def test_loss_and_gradient(network: Network, batch: Batch, method: type[CAD], conditional: bool, tau: float) -> None:
    batch.labels[0] = 2
    batch.labels[1:][batch.labels[1:] == 2] = 1  # the first image has its class for itself
    loss, _ = method(lam=0.5, temperature=tau).loss(network, batch, None, None)
    other = expected(network, batch, 0.5, tau, conditional=conditional)
    assert_same_gradient(network, loss, other, rtol=1e-8)


def test_no_pair_leaves_the_classification_loss(network: Network, batch: Batch) -> None:
    alone = Batch(batch.images[:3], torch.arange(3), 3)
    loss, _ = CondCAD(lam=100.0).loss(network, alone, None, None)
    assert_same_gradient(network, loss, F.cross_entropy(network(alone.images), alone.labels))


def test_features_that_do_not_show_the_domain_cost_the_log_of_its_share(network: Network, batch: Batch) -> None:
    torch.nn.init.zeros_(network.get_parameter("featurizer.stage.0.weight"))
    loss, _ = CAD(lam=1.0).loss(network, batch, None, None)
    classified = F.cross_entropy(network(batch.images), batch.labels)
    assert float(loss - classified) == pytest.approx(-0.1 / 0.07 * math.log(12 / 17), rel=1e-9)
