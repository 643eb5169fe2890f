"""Training batches: what they hold, that processes share them, and that they go on where they stopped."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from mecam.data.augment import Augmentation, evaluate_transform
from mecam.data.sampling import DomainSampler
from mecam.data.shapes import ShapesSet, shapes
from mecam.recipe import make
from mecam.training.build import NO_AUGMENTATION
from mecam.training.feed import Feed

SOURCES, BATCH = (0, 2), 4


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=3)


def make_feed(data: ShapesSet, *, plain: bool, parts: Sequence[np.ndarray] | None = None) -> Feed:
    size = make({}).image_size
    labels = [data.labels(domain) for domain in SOURCES]
    parts = [np.arange(len(own)) for own in labels] if parts is None else parts
    sampler = DomainSampler(labels, parts, BATCH, torch.Generator().manual_seed(1))
    look = Augmentation(size=size, **NO_AUGMENTATION) if plain else Augmentation(size=size)
    return Feed(data, SOURCES, sampler, look, device=torch.device("cpu"), seed=2)


def test_a_batch_is_made_of_each_source_in_turn(data: ShapesSet) -> None:
    parts = [np.array([5]), np.array([7])]
    batch = make_feed(data, plain=True, parts=parts).next(3)
    assert (batch.domains, batch.step, len(batch.labels)) == (2, 3, 2 * BATCH)
    for (images, labels), domain, (index,) in zip(batch.by_domain(), SOURCES, parts, strict=True):
        expected = evaluate_transform(data.images(domain, [index]), make({}).image_size)
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


def test_a_feed_goes_on_where_its_state_was_taken(data: ShapesSet) -> None:
    feed = make_feed(data, plain=False)
    feed.next(0)
    state, stream = feed.state_dict(), feed.generator.get_state()
    expected = [feed.next(step) for step in (1, 2)]
    again = make_feed(data, plain=False)
    again.load_state_dict(state)
    again.generator.set_state(stream)
    for step, batch in zip((1, 2), expected, strict=True):
        found = again.next(step)
        assert torch.equal(found.images, batch.images)
        assert torch.equal(found.labels, batch.labels)
    assert not torch.equal(expected[0].images, expected[1].images)
