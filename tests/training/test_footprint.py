"""The memory that a training step takes."""

import pytest
import torch

from mecam.data.shapes import ShapesSet, shapes
from mecam.recipe import Recipe
from mecam.training import footprint
from mecam.training.footprint import OVERHEAD, available_memory, memory_of_step
from mecam.training.machine import find_machine


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=6)


def test_what_a_backward_pass_keeps_is_counted_once() -> None:
    weight = torch.randn(100, 100, requires_grad=True)
    kept = footprint._Kept([weight])
    x = torch.randn(10, 100)
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, footprint._Saved.unpack):
        hidden = (x @ weight).relu()  # keeps x and the result; weights are there anyway
        again = (hidden.view(1000) * hidden.view(1000)).sum()  # keeps the same storage
    assert kept.now == kept.most == x.nbytes + hidden.nbytes
    again.backward()
    del hidden, again
    assert kept.now == 0


def test_memory_grows_with_images_and_with_their_size_and_not_with_passes(data: ShapesSet) -> None:
    machine = find_machine("cpu")

    def per_image(**entries: object) -> float:
        return memory_of_step(Recipe(**{"target": "sketch", **entries}), machine, data)[1]

    small = per_image()
    assert per_image(image_size=64) == pytest.approx(4 * small, rel=0.1)
    assert per_image(optimizer="mecam") == pytest.approx(small, rel=0.3)
    assert per_image(target=None) == pytest.approx(4 / 3 * small, rel=0.1)
    assert per_image(method="dann", steps=102) > small  # the discriminator trains alone in step 51
    assert small > OVERHEAD * 3 * 16 * 32 * 32 * 4  # more than the first feature map


def test_memory_of_this_machine_is_what_linux_says() -> None:
    size = available_memory(torch.device("cpu"))
    assert size is None or 2**20 < size < 2**50
