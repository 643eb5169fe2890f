"""Muon (Jordan et al., 2024) for matrices, with AdamW for all other parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.optim.optimizer import ParamsT


class MuonAdamW(Optimizer):
    """Update matrices by torch.optim.Muon, and all other parameters by AdamW.

        matrices:  v ← μ v + (1−μ) g;  θ ← (1 − lr·wd) θ − lr · 0.2 √max(rows, columns) · UVᵀ,  (1−μ) g + μ v = UΣVᵀ
        others:    AdamW

    Torch approximates UVᵀ by five Newton-Schulz iterations in bfloat16. With the factor 0.2 √max(rows, columns) a step
    has the root mean square of a typical AdamW step, so both share `lr` and `weight_decay`, which is decoupled. The
    kernels of convolutions are not matrices: AdamW updates them.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise ImportError(f"muon needs torch 2.9 or newer, got {torch.__version__}")
        values = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "betas": betas, "eps": eps}
        super().__init__(params, values)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step(torch.optim.Muon, ("momentum",), matrices=True, adjust_lr_fn="match_rms_adamw")
        self._step(AdamW, ("betas", "eps"), matrices=False)
        return loss

    def _step(self, of: Callable[..., Optimizer], names: tuple[str, ...], *, matrices: bool, **fixed: Any) -> None:
        """Step an optimizer that shares the state of this one, on the matrices or on the others."""
        groups = []
        for group in self.param_groups:
            own = [parameter for parameter in group["params"] if (parameter.ndim == 2) is matrices]
            if own:
                groups.append({"params": own, **{name: group[name] for name in ("lr", "weight_decay", *names)}})
        if groups:
            inner = of(groups, **fixed)
            inner.state = self.state
            inner.step()
