"""Evaluation: in order, without a trace in the network, and the same however many images there are."""

import numpy as np
import pytest
import torch
from torch import nn

from mecam.data.augment import evaluate_transform
from mecam.data.shapes import shapes
from mecam.models import create
from mecam.models.network import IMAGENET
from mecam.training import evaluate as module
from mecam.training.evaluate import Look, evaluate, logits_of

CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(0)
    return create("resnet8", classes=7, dropout=0.5)


def test_logits_come_in_the_order_of_the_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    data, net = shapes(per_class=4), network()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    indices = np.array([9, 2, 2, 27, 0])
    found = logits_of(net, data, 1, indices, Look(32, IMAGENET), device=CPU)
    assert net.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    net.eval()
    for row, index in zip(found, indices, strict=True):
        with torch.no_grad():
            expected = net(evaluate_transform(data.images(1, [int(index)]), 32))[0]
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)


def test_splits_by_name_and_none_for_an_empty_one() -> None:
    data, net = shapes(per_class=4), network()
    everything = np.arange(len(data.labels(0)))
    splits = {"art in": (0, everything), "art out": (0, everything[:0])}
    found = evaluate(net, data, splits, Look(32, IMAGENET), device=CPU)
    assert list(found) == ["art in"]
    assert found["art in"].images == len(everything)


def test_a_forward_of_one_batch_size_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 16)
    data, net, look = shapes(per_class=4), network(), Look(32, IMAGENET)
    every = np.arange(len(data.labels(0)))
    splits = {
        "a": (0, every[:3]),
        "none": (1, every[:0]),
        "b": (1, every[::-1].copy()),
        "c": (1, every[:20]),
        "d": (2, every),
    }
    sizes = []

    def forward(images: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images))
        return look.logits(net, images)

    expected: dict[str, torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    evaluate(net, data, splits, look, device=CPU, keep=expected)
    metrics = evaluate(net, data, splits, look, device=CPU, forward=forward, keep=found)
    assert sizes == 5 * [16]  # of 79 images
    assert list(metrics) == list(found) == ["a", "b", "c", "d"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
