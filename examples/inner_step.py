"""Write an optimizer: MeCAM with MLDG's inner step. Run: python examples/inner_step.py [steps].

A sharpness-aware optimizer subclasses SharpnessAware, declares its hyperparameters and implements its formula in
`gradient`. Here the meta pass is at the weights after a plain gradient step, instead of at a fixed distance. On PACS
this optimizer gained nothing over MeCAM. `register` makes it available to recipes by name.
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mecam.hyperparameters import Hyperparameter
from mecam.optim import MeCAM, SharpnessAware, register
from mecam.optim.vector import Vector, unit


@register
class InnerMeCAM(SharpnessAware):
    """g <- (1 - alpha - beta) grad f(w) + alpha grad f(w + rho n) + beta grad m(w - eta grad f(w)), n = unit gradient.

    m is f with the virtual domain on. First order: no gradient is taken through the inner step.
    """

    passes = 3
    options = {"virtual_domain": None}
    hyperparameters = {**MeCAM.hyperparameters, "eta": Hyperparameter("learning rate of the inner step", default=0.1)}

    def gradient(self, grad_at: Callable[..., Vector]) -> Vector:
        rho, alpha, beta, eta = self.values("rho", "alpha", "beta", "eta")
        g = grad_at()
        sharp = grad_at(rho * unit(g))
        meta = grad_at(-eta * g, self.virtual_domain)
        return (1 - alpha - beta) * g + alpha * sharp + beta * meta


def main(steps: int = 200) -> list[float]:
    torch.manual_seed(0)
    images, labels = torch.randn(64, 8), torch.randint(0, 3, (64,))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = InnerMeCAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, model=model)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(steps)]
    print(f"loss at the first step: {losses[0]:.3f}, at step {steps}: {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
