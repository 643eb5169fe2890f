"""TRM, transfer risk minimization (Xu and Jaakkola, 2021)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.hyperparameters import Hyperparameter, LogUniform
from mecam.methods.base import Batch, Method, Setting
from mecam.models.network import Network

HEAD_STEPS, HEAD_LR = 30, 0.1
TERMS, LARGEST = 10, 10.0  # of the Neumann series: how many, and the entry at which it counts as divergent

State = dict[str, Tensor]


class TRM(Method):
    """A head trained on one domain should do well on the others.

        CE + mean_Q [R_Q − λ vᵀ ∇_w CE_Q(w_Q)],   R_Q = Σ_{P≠Q} α_QP CE_P(w_Q)
        w_Q the head of domain Q,   v = H_Q⁻¹ ∇_w R_Q, constant in the gradient,   α_QP ∝ α_QP exp(η α_QP CE_P(w_Q))

    The second term is the gradient that reaches the features through w_Q. In every step, each w_Q takes 30 steps of
    gradient descent on its domain. H⁻¹ is a Neumann series in the head's weights, without its bias. For a linear head
    all of this is matrix products. In the first steps the objective is CE.
    """

    name = "trm"
    capturable = True
    on_features = True
    sources = 2
    lam = Hyperparameter("weight of the gradient through the heads", 1e-4, search=LogUniform(-5, 0))
    anneal = Hyperparameter(
        "steps of plain CE; scaled down in runs shorter than 5,000 steps", 200.0, search=LogUniform(0, 4)
    )
    eta = Hyperparameter("how fast α follows the losses", 0.01, search=LogUniform(-3, -1))

    def build(self, network: Network, setting: Setting) -> nn.Module:
        self.start = setting.scaled(self.anneal)
        like = network.head.weight
        heads = [nn.Linear(network.num_features, setting.classes) for _ in range(setting.domains)]
        self.initial = {
            "heads": torch.stack([torch.cat([h.weight, h.bias[:, None]], 1) for h in heads]).detach().to(like),
            "alpha": 1 - torch.eye(setting.domains, dtype=like.dtype, device=like.device),
        }
        return network

    def changes(self, step: int) -> bool:
        return 0 < step == self.start

    def initial_state(self) -> State:
        return self.initial

    def loss(self, network: Network, batch: Batch, draw: Any, state: State) -> tuple[Tensor, State]:
        z = network.features(batch.images)
        loss = F.cross_entropy(network.head(z), batch.labels)
        if batch.step < self.start:
            return loss, state
        x = torch.cat([z, z.new_ones(len(z), 1)], 1).view(batch.domains, -1, z.shape[1] + 1)
        y = F.one_hot(batch.labels, network.head.out_features).to(z).view(batch.domains, -1, network.head.out_features)
        heads = _descend(state["heads"], x.detach(), y)
        alpha = state["alpha"] / state["alpha"].sum(1, keepdim=True)
        swapped = alpha * _losses(heads, x, y)  # (Q, P)
        v = _neumann(heads, x.detach(), _slope_elsewhere(heads, alpha, x.detach(), y))
        through = (v * _slope(heads, x, y)).sum((1, 2))
        alpha = alpha * (self.eta * swapped.detach()).exp()
        return loss + (swapped.sum(1) - self.lam * through).mean(), {"heads": heads, "alpha": alpha}


def _slope(heads: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return ∇_w CE_Q(w_Q) for each domain (Q, classes, features), without the bias."""
    return _whole_slope(heads, x, y)[..., :-1]


def _whole_slope(heads: Tensor, x: Tensor, y: Tensor) -> Tensor:
    errors = (x @ heads.mT).softmax(2) - y
    slope: Tensor = errors.mT @ x / x.shape[1]
    return slope


@torch.no_grad()
def _descend(heads: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Train each head on its own domain."""
    for _ in range(HEAD_STEPS):
        heads = heads - HEAD_LR * _whole_slope(heads, x, y)
    return heads


def _losses(heads: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of every head (rows) on every domain (columns)."""
    logits = torch.einsum("pnf,qcf->qpnc", x, heads)
    return -(logits.log_softmax(3) * y).sum(3).mean(2)


@torch.no_grad()
def _slope_elsewhere(heads: Tensor, alpha: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return ∇_w R_Q for each domain, without the bias."""
    errors = torch.einsum("pnf,qcf->qpnc", x, heads).softmax(3) - y
    return torch.einsum("qp,qpnc,pnf->qcf", alpha, errors, x[..., :-1]) / x.shape[1]


@torch.no_grad()
def _neumann(heads: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    """Return Σ_k (1 − H)^k slope, up to the term at which an entry becomes too large."""
    p, z = (x @ heads.mT).softmax(2), x[..., :-1]
    total = term = slope
    going = torch.ones(len(heads), 1, 1, dtype=torch.bool, device=x.device)
    for _ in range(TERMS):
        change = z @ term.mT  # of the logits
        curved = p * (change - (p * change).sum(2, keepdim=True))
        term = term - curved.mT @ z / x.shape[1]
        total = torch.where(going, total + term, total)
        going = going & (total.abs().amax((1, 2), keepdim=True) <= LARGEST)
    return total
