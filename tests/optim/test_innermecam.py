"""An inner step in place of −δ."""

import torch

from mecam.optim import InnerMeCAM
from tests.optim.flat import Tilt, batch, closure_for, flatten, gradient, network

X, Y = batch()
LR = 0.5


def test_the_meta_pass_is_where_a_gradient_step_leads() -> None:
    model = network()
    optimizer = InnerMeCAM(
        model.parameters(),
        torch.optim.SGD,
        lr=LR,
        rho=0.3,
        alpha=0.3,
        beta=0.2,
        eta=0.7,
        virtual_domain=Tilt(model, 0.4),
    )
    theta = flatten(list(model.parameters()))
    for _ in range(3):
        g = gradient(theta, X, Y)
        sharp = gradient(theta + 0.3 * g / (g.norm() + 1e-12), X, Y)
        expected = 0.5 * g + 0.3 * sharp + 0.2 * gradient(theta - 0.7 * g, X, Y, tilt=0.4)
        optimizer.step(closure_for(optimizer, model, X, Y))
        theta = theta - LR * expected
        torch.testing.assert_close(flatten(list(model.parameters())), theta, rtol=0, atol=1e-12)
