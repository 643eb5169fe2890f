"""SD against the squares written out."""

from torch.nn import functional as F

from mecam.methods import Batch
from mecam.methods.sd import SD
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def test_loss_and_gradient(network: Network, batch: Batch) -> None:
    loss, _ = SD(lam=0.7).loss(network, batch, None, None)
    logits = network(batch.images)
    squares = sum(logit**2 for row in logits for logit in row) / logits.numel()
    assert_same_gradient(network, loss, F.cross_entropy(logits, batch.labels) + 0.7 * squares)
