"""CAD, the contrastive adversarial domain bottleneck (Ruan et al., 2022)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.methods.base import Batch, Method
from mecam.models.network import Network

BASE_TEMPERATURE = 0.07


class CAD(Method):
    """Make the features of other domains as similar to an image's as those of its own.

        CE − λ (τ/0.07) mean_i log Σ_{j: d_j ≠ d_i} p_ij,   p_ij ∝ exp(z_i·z_j / τ) over j ≠ i

    It bounds the information that the features have about the domain. It needs no labels.
    """

    name = "cad"
    weighted = True
    capturable = True
    sources = 2
    lam = Hyperparameter("weight of the bottleneck", 0.1, search=Choice((1e-4, 1e-3, 1e-2, 0.1, 1, 10, 100)))
    temperature = Hyperparameter("τ", 0.1, open_low=True, search=Choice((0.05, 0.1)))

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        z = network.features(batch.images)
        similar = z @ z.T / self.temperature
        domains = batch.domain_labels()
        others = self.compared(batch.labels)
        elsewhere = others & (domains[:, None] != domains)
        bottleneck = self.temperature / BASE_TEMPERATURE * _mean_log_share(similar, elsewhere, others)
        return batch.cross_entropy(network.head(z)) - self.lam * bottleneck, state

    def compared(self, labels: Tensor) -> Tensor:
        """Return which images (columns) each image (row) is compared with."""
        return ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)


def _mean_log_share(logits: Tensor, part: Tensor, whole: Tensor) -> Tensor:
    """Return the mean of log(Σ_part exp / Σ_whole exp) over the rows in which `part` is not empty."""
    valid = part.any(1)
    # an empty row would have gradients that are not finite, though its value is not used
    part, whole = part | ~valid[:, None], whole | ~valid[:, None]
    shares = _log_sum(logits, part) - _log_sum(logits, whole)
    return (shares * valid).sum() / valid.sum().clamp(min=1)


def _log_sum(logits: Tensor, mask: Tensor) -> Tensor:
    return logits.masked_fill(~mask, -torch.inf).logsumexp(1)
