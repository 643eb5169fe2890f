"""Write an optimizer that keeps a running mean. Run: python examples/curvature_radius.py [steps].

The penalty is the paper's metric C along the gradient, by a central difference over the length h. With a `share` s > 0,
the gradient changes by about a share s of its norm over h; h follows from a running mean of the measured curvature,
which checkpoints store. On PACS neither the true scale nor this length gained anything over MeCAM, and training
diverged without the division by |grad f|^2 + 1.
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mecam.hyperparameters import Hyperparameter
from mecam.optim import SharpnessAware, register
from mecam.optim.vector import Vector, norm, unit

LIMIT = 10.0  # h stays within this factor of rho


@register
class CurveMeCAM(SharpnessAware):
    """g <- grad f(w) + alpha / (h^2 (|grad f|^2 + 1)) (grad f(w+d) + grad m(w-d) - 2 grad f(w)), d = h unit(grad f).

    m is f with the virtual domain on.
    """

    passes = 3
    notes = ("curvature",)  # running means: `note` adds a value, `noted` reads the mean
    options = {"virtual_domain": None}
    hyperparameters = {
        "rho": Hyperparameter("length of the difference", default=0.1, low=1e-6),
        "alpha": Hyperparameter("weight of the curvature along the gradient", default=0.01),
        "share": Hyperparameter(
            "relative change of the gradient over the length; 0 for a fixed length", default=0.0, shared=True
        ),
    }

    def gradient(self, grad_at: Callable[..., Vector]) -> Vector:
        rho, alpha = self.values("rho", "alpha")
        g = grad_at()
        factor = self._factor(norm(g))
        h = rho * factor
        delta = h * unit(g)
        plus = grad_at(+delta)
        if self.first("share") > 0:
            self.note("curvature", norm(plus - g) / (self.first("rho") * factor))
        minus = grad_at(-delta, self.virtual_domain)
        weight = alpha / (h * h) / (norm(g).square() + 1)
        return g + weight * (plus + minus - 2 * g)

    def _factor(self, size: Tensor) -> float | Tensor:
        """Return h / rho: share * size / curvature / rho within LIMIT, and 1 before the curvature is known."""
        share, rho = self.first("share"), self.first("rho")
        if share == 0:
            return 1.0
        curvature = self.noted("curvature").to(size)
        wanted = (share * size / (curvature * rho)).nan_to_num(nan=1.0)  # 0/0 at a zero gradient
        return torch.where(curvature.isinf(), 1.0, wanted.clamp(1 / LIMIT, LIMIT)).to(size.dtype)


def main(steps: int = 200) -> float:
    torch.manual_seed(0)
    images, labels = torch.randn(64, 8), torch.randint(0, 3, (64,))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = CurveMeCAM(model.parameters(), torch.optim.SGD, lr=0.1, share=0.5, model=model)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(steps)]
    curvature = optimizer.noted("curvature").item()
    print(f"loss at step {steps}: {losses[-1]:.3f}; running mean of the curvature: {curvature:.3f}")
    return curvature


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
