"""A source domain held out: which images each pass sees, and what MeCAM makes of it."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.data.shapes import shapes
from mecam.methods import Batch
from mecam.methods.heldout import HeldOut
from mecam.models.network import Network
from mecam.optim import MeCAM
from mecam.recipe import make
from mecam.training.machine import find_machine
from mecam.training.run import Run


def test_every_domain_has_its_turn_and_no_image_is_lost(batch: Batch) -> None:
    method, generator, turns = HeldOut(), torch.Generator().manual_seed(0), set()
    for _ in range(20):
        others, held_out = method.draw(batch, generator)
        domain = int(held_out[0]) // 6
        turns.add(domain)
        assert held_out.tolist() == list(range(6 * domain, 6 * domain + 6))
        assert sorted([*others.tolist(), *held_out.tolist()]) == list(range(18))
    assert turns == {0, 1, 2}


def test_mecam_perturbs_by_the_others_and_tests_on_the_one_held_out(network: Network, batch: Batch) -> None:
    network.eval()  # batch norm would see other batches
    method = HeldOut()
    draw = method.draw(batch, torch.Generator().manual_seed(0))
    domains, chosen = batch.by_domain(), int(draw[1][0]) // 6
    weights = list(network.parameters())
    before = [w.detach().clone() for w in weights]

    def gradient(numbers: list[int], offset: list[Tensor] | None = None) -> list[Tensor]:
        """Of the mean of these domains' losses."""
        with torch.no_grad():
            for i, (weight, old) in enumerate(zip(weights, before, strict=True)):
                weight.copy_(old if offset is None else old + offset[i])
        losses = [F.cross_entropy(network(x), y) for x, y in (domains[number] for number in numbers)]
        found = torch.autograd.grad(torch.stack(losses).mean(), weights)
        with torch.no_grad():
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(old)
        return list(found)

    others = [number for number in range(3) if number != chosen]
    g = gradient(others)
    size = torch.stack([part.square().sum() for part in g]).sum().sqrt()
    delta = [0.3 * part / size for part in g]
    plus, meta = gradient(others, delta), gradient([chosen], [-part for part in delta])

    optimizer = MeCAM(
        weights, torch.optim.SGD, lr=0.0, rho=0.3, alpha=0.3, beta=0.2, virtual_domain=method.virtual_domain
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        return method.gradient(network, batch, draw, None)[0]

    optimizer.step(closure)
    for weight, a, b, c in zip(weights, g, plus, meta, strict=True):
        torch.testing.assert_close(weight.grad, 0.5 * a + 0.3 * b + 0.2 * c, rtol=0, atol=1e-12)
    assert not method.virtual_domain.on


@pytest.mark.parametrize(("virtual", "styles"), [("none", [0, 0, 0]), ("mixstyle", [0, 0, 1])])
def test_a_run_switches_it_on_in_the_meta_pass(
    virtual: str, styles: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(
        make(
            {
                "target": "sketch",
                "steps": 2,
                "batch": 4,
                "image_size": 16,
                "method": "heldout",
                "optimizer": "mecam",
                "virtual": virtual,
            }
        ),
        find_machine("cpu"),
        shapes(per_class=4),
    )
    method = run.method
    assert isinstance(method, HeldOut)
    domain = run.optimizer.virtual_domain  # type: ignore[attr-defined]
    style = getattr(domain, "second", None)
    loss, seen = method.loss, []

    def watched(network: Network, batch: Batch, draw: tuple[Tensor, Tensor], state: object) -> tuple[Tensor, object]:
        images: list[int] = []
        handle = network.register_forward_pre_hook(lambda _, inputs: images.append(len(inputs[0])))
        found = loss(network, batch, draw, state)
        handle.remove()
        seen.append((images, method.virtual_domain.on, int(style is not None and style._on)))
        return found

    monkeypatch.setattr(method, "loss", watched)
    run.step(0)
    assert [images for images, _, _ in seen] == [[8], [8], [4]]
    assert [on for _, on, _ in seen] == [False, False, True]
    assert [on for _, _, on in seen] == styles
