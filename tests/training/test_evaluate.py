"""Evaluation: in order, without a trace in the network, and the same however many images there are."""

import numpy as np
import pytest
import torch
from torch import nn

from mecam.data.augment import evaluate_transform
from mecam.data.shapes import shapes
from mecam.models import create
from mecam.preprocessing import Preprocessing
from mecam.splits import Part, Split
from mecam.training import evaluate as module
from mecam.training.evaluate import evaluate, forward_stored, logits_of

CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(0)
    return create("resnet8", classes=7, dropout=0.5)


def test_logits_come_in_the_order_of_the_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    data, net = shapes(per_class=4), network()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    indices = np.array([9, 2, 2, 27, 0])
    found = logits_of(net, data, 1, indices, Preprocessing(32), device=CPU)
    assert net.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    net.eval()
    for row, index in zip(found, indices, strict=True):
        with torch.no_grad():
            expected = net(evaluate_transform(data.images(1, [int(index)]), Preprocessing(32)))[0]
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)


def test_splits_by_name_and_none_for_an_empty_one() -> None:
    data, net = shapes(per_class=4), network()
    everything = np.arange(len(data.labels(0)))
    training, held_out = Split("art", Part.TRAINING), Split("art", Part.HELD_OUT)
    splits = {training: everything, held_out: everything[:0]}
    found = evaluate(net, data, splits, Preprocessing(32), device=CPU)
    assert list(found) == [training]
    assert found[training].images == len(everything)


def test_a_forward_of_one_batch_size_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 16)
    data, net, own = shapes(per_class=4), network(), Preprocessing(32)
    every = np.arange(len(data.labels(0)))
    lengths = {"art out": every[:3], "cartoon in": every[::-1].copy(), "cartoon out": every[:0], "sketch in": every}
    splits = {Split.parse(name): indices for name, indices in lengths.items()}
    sizes = []

    def forward(images: torch.Tensor, aspects: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images))
        return forward_stored(net, own, images, aspects)

    expected: dict[Split, torch.Tensor] = {}
    found: dict[Split, torch.Tensor] = {}
    evaluate(net, data, splits, own, device=CPU, keep=expected)
    metrics = evaluate(net, data, splits, own, device=CPU, forward=forward, keep=found)
    assert sizes == 4 * [16]  # of 59 images
    assert (
        [str(split) for split in metrics] == [str(split) for split in found] == ["art out", "cartoon in", "sketch in"]
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
