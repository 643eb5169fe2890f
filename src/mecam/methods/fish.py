"""Fish (Shi et al., 2022): align the gradients of the domains by inner steps on one domain after another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.methods._gradients import ADAM_EPS, Named, fill, gradient_at, plain_pass, spare_buffers, trained
from mecam.methods.base import Batch, Method, Setting
from mecam.models.network import Network

BETAS = (0.9, 0.999)  # Adam's
META_LR = 0.5  # as in mecam.defaults, which does not import torch


class Fish(Method):
    """Move toward the weights reached by one inner Adam step per domain.

    θ̃ = θ − inner_lr Σ_d u_d,   G = θ − θ̃

    u_d is the step Adam takes from ∇f_d at the weights that the domains before d have led to. Its moments persist, and
    weight_decay applies to it. SGD without momentum and weight decay then gives θ ← θ + lr (θ̃ − θ): this is Fish,
    with lr as its meta_lr. A recipe of fish defaults to that optimizer and these settings.

    Under another optimizer it is a variant. Without inner_lr, the inner Adam takes the learning rate of an Adam in the
    main optimizer's place, and G = meta_lr (θ − θ̃) / lr, a scale that suits optimizers that are not scale-free.
    With batch statistics in batch norm, a pass sees those of its domain; the running ones follow a plain pass at θ.
    """

    name = "fish"
    weighted = True
    on_features = True
    meta_lr = Hyperparameter(
        "interpolation factor toward θ̃; default: lr", open_low=True, search=Choice((0.05, 0.1, 0.5))
    )
    inner_lr = Hyperparameter("learning rate of the inner Adam; a recipe under SGD has the default of Adam")
    surgery = True

    def build(self, network: Network, setting: Setting) -> Network:
        self.weight_decay = setting.weight_decay
        if self.inner_lr is None:
            meta_lr = META_LR if self.meta_lr is None else self.meta_lr
            self.lr, self.scale = setting.adam_lr, meta_lr / setting.lr_ratio
        else:
            share = 1.0 if self.meta_lr is None or not setting.lr else self.meta_lr / setting.lr
            self.lr, self.scale = self.inner_lr, share * self.inner_lr
        return network

    def initial_state(self) -> dict[str, Any]:
        """Return the inner Adam's step count and its moments by weight."""
        return {"steps": 0, "mean": {}, "square": {}}

    def gradient(
        self, network: Network, batch: Batch, draw: Any, state: dict[str, Any], *, graph: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        value = plain_pass(network, batch)
        weights, buffers = trained(network), spare_buffers(network)
        total: Named = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for images, labels in batch.by_domain():
            inner = {name: weight.detach() - self.lr * total[name] for name, weight in weights.items()}
            gradients = gradient_at(network, inner, buffers, images, labels, batch.class_weights)
            step, state = self._adam(inner, gradients, state)
            for name in total:
                total[name] += step[name]
        fill(network, {name: self.scale * tensor for name, tensor in total.items()})
        return value, state

    def _adam(self, weights: Named, gradients: Named, state: dict[str, Any]) -> tuple[Named, dict[str, Any]]:
        """Return Adam's step m̂ / (√v̂ + ε) and the next moments."""
        steps = state["steps"] + 1
        mean, square, step = {}, {}, {}
        for name, weight in weights.items():
            g = gradients[name] + self.weight_decay * weight
            zero = torch.zeros_like(g)
            mean[name] = torch.lerp(state["mean"].get(name, zero), g, 1 - BETAS[0])
            square[name] = torch.lerp(state["square"].get(name, zero), g * g, 1 - BETAS[1])
            unbiased = square[name] / (1 - BETAS[1] ** steps)
            step[name] = mean[name] / (1 - BETAS[0] ** steps) / (unbiased.sqrt() + ADAM_EPS)
        return step, {"steps": steps, "mean": mean, "square": square}
