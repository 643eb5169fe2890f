"""Training batches: what they hold, that processes share them, and that they go on where they stopped."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from mecam.data.augment import evaluate_transform
from mecam.data.sampling import DomainSampler
from mecam.data.shapes import ShapesSet, shapes
from mecam.preprocessing import Preprocessing
from mecam.recipe import Recipe
from mecam.training.build import AUGMENTATIONS
from mecam.training.feed import Feed

SOURCES, BATCH = (0, 2), 4


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=3)


def make_feed(data: ShapesSet, *, plain: bool, parts: Sequence[np.ndarray] | None = None, device: str = "cpu") -> Feed:
    size = Recipe().image_size
    labels = [data.labels(domain) for domain in SOURCES]
    parts = [np.arange(len(own)) for own in labels] if parts is None else parts
    sampler = DomainSampler(labels, parts, BATCH, torch.Generator().manual_seed(1))
    look = AUGMENTATIONS["none" if plain else "protocol"](Preprocessing(size))
    return Feed(data, SOURCES, sampler, look, device=torch.device(device), seed=2)


def test_a_batch_is_made_of_each_source_in_turn(data: ShapesSet) -> None:
    parts = [np.array([5]), np.array([7])]
    batch = make_feed(data, plain=True, parts=parts).next(3)
    assert (batch.domains, batch.step, len(batch.labels)) == (2, 3, 2 * BATCH)
    for (images, labels), domain, (index,) in zip(batch.by_domain(), SOURCES, parts, strict=True):
        expected = evaluate_transform(data.images(domain, [index]), Preprocessing(Recipe().image_size))
        torch.testing.assert_close(images, expected.expand_as(images), rtol=0, atol=1e-5)
        assert labels.tolist() == BATCH * [data.labels(domain)[index]]


def test_processes_share_what_one_would_draw(data: ShapesSet, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_feed(data, plain=True).next(0)
    shares = []
    for rank in ("0", "1"):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", rank)
        shares.append(make_feed(data, plain=True).next(0))
    for number, (images, labels) in enumerate(whole.by_domain()):
        assert torch.equal(torch.cat([share.by_domain()[number][0] for share in shares]), images)
        assert torch.equal(torch.cat([share.by_domain()[number][1] for share in shares]), labels)


@pytest.mark.parametrize("before", [1, 4])
@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))],
)
def test_a_feed_goes_on_where_its_state_was_taken(data: ShapesSet, device: str, before: int) -> None:
    feed = make_feed(data, plain=False, device=device)
    for step in range(before):
        feed.next(step)
    state = feed.state
    expected = [feed.next(before + step).images.clone() for step in range(5)]
    again = make_feed(data, plain=False, device=device)
    again.next(0)
    again.load(state.sampler, state.noise)
    for step, images in enumerate(expected):
        assert torch.equal(again.next(before + step).images, images)
    assert not torch.equal(expected[0], expected[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_batches_from_the_gpus_memory_are_those_of_the_host(data: ShapesSet) -> None:
    here, there = make_feed(data, plain=True), make_feed(data, plain=True, device="cuda")
    for step in range(6):
        expected, found = here.next(step), there.next(step)
        torch.testing.assert_close(found.images.cpu(), expected.images, rtol=0, atol=1e-4)
        assert torch.equal(found.labels.cpu(), expected.labels)
