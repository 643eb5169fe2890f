"""Write a domain-generalization method and compare it with ERM. Run: python examples/custom_method.py [steps].

Tilt minimizes the log of the mean exponential of the domains' losses. It lies between their mean (small t) and their
maximum (large t). `register` makes it available by name in this process, to recipes and to load_model.
"""

import math
import sys
import tempfile
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import mecam
from mecam.hyperparameters import Hyperparameter
from mecam.methods import Batch, Method, register
from mecam.recipe import Recipe


@register
class Tilt(Method):
    """1/t log mean_d exp(t CE_d)"""

    name = "tilt"
    sources = 2  # it compares domains
    t = Hyperparameter("weight of the largest losses", 1.0, low=0.01)

    def loss(self, network: Any, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:  # noqa: ARG002
        logits = network(batch.images).chunk(batch.domains)
        labels = batch.labels.chunk(batch.domains)
        losses = torch.stack([F.cross_entropy(*pair) for pair in zip(logits, labels, strict=True)])
        return (torch.logsumexp(self.t * losses, 0) - math.log(batch.domains)) / self.t, state


def main(steps: int = 200) -> dict[str, float]:
    accuracies = {}
    with tempfile.TemporaryDirectory() as out:
        for method, settings in (("erm", {}), ("tilt", {"t": 2.0})):
            recipe = Recipe(method=method, method_settings=settings, optimizer="mecam", target="sketch", steps=steps)
            accuracies[method] = mecam.train(recipe, out).read_result()["target_accuracy"]
            print(f"{method}: {100 * accuracies[method]:.1f} % on sketch, which was not trained on (one seed)")
    return accuracies


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
