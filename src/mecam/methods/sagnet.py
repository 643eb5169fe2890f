"""SagNet, style-agnostic networks (Nam et al., 2021): classify by content, not by style."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.hyperparameters import Hyperparameter, LogUniform
from mecam.methods.base import Batch, Method, Setting
from mecam.methods.side import Side
from mecam.models.network import Network

EPSILON = 1e-5


class SagNet(Method):
    """min CE(h(z with mixed style), y) + w · mean(−log softmax s(z with another's content))

    Style is the mean and variance over the features of an image; content is the rest. The style head s is trained on
    CE(s(z with another's content), y), and predictions are h(z). The original takes three steps in turn, each with its
    own forward; here one pass serves the three losses.
    """

    name = "sagnet"
    weighted = True
    capturable = True
    w = Hyperparameter("weight of the adversary", 0.1, search=LogUniform(-2, 1))

    def build(self, network: Network, setting: Setting) -> nn.Module:
        head = nn.Linear(network.num_features, setting.classes).to(network.head.weight)
        self.style_head = Side(head, lr=setting.adam_lr, weight_decay=setting.weight_decay)
        self.sides = {"style_head": self.style_head}
        return network

    def draw(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        count = len(batch.labels)
        return {
            "share": torch.rand(count, 1, generator=generator),  # share of its own style that an image keeps
            "style": torch.randperm(count, generator=generator),  # whose style it is mixed with
            "content": torch.randperm(count, generator=generator),  # whose content it gets
        }

    def loss(self, network: Network, batch: Batch, draw: dict[str, Tensor], state: Any) -> tuple[Tensor, Any]:
        z = network.features(batch.images)
        share, style, content = draw["share"].to(z), draw["style"].to(z.device), draw["content"].to(z.device)
        mean, variance = z.mean(1, keepdim=True), z.var(1, keepdim=True)
        normal = (z - mean) / (variance + EPSILON).sqrt()
        mixed_mean, mixed_variance = (share * s + (1 - share) * s[style] for s in (mean, variance))
        restyled = normal * (mixed_variance + EPSILON).sqrt() + mixed_mean
        style_alone = normal[content].detach() * (variance + EPSILON).sqrt() + mean
        classified = batch.cross_entropy(network.head(restyled))
        confused = -F.log_softmax(self.style_head.frozen(style_alone), 1).mean()
        return classified + self.w * confused, style_alone.detach()

    def after(self, network: Any, batch: Batch, draw: Any, state: Tensor) -> None:
        self.style_head.step(F.cross_entropy(self.style_head.module(state), batch.labels))
