"""What stays in memory between steps: weights, the combined gradient, and what the method keeps."""

import gc

import pytest
import torch
from torch import Tensor, nn

from mecam.optim import SharpnessAware
from tests.optim.flat import closure_for
from tests.optim.test_passes import METHODS

SIZE = 37  # which no other tensor has


@pytest.mark.filterwarnings("ignore:.*over_domains", "ignore::FutureWarning")
@pytest.mark.parametrize("method", METHODS)
def test_nothing_else_as_large_as_the_weights_is_left(method: type[SharpnessAware]) -> None:
    model = nn.Linear(SIZE, SIZE, bias=False)
    optimizer = method(model.parameters(), torch.optim.SGD, lr=0.1, model=model)
    optimizer.step(closure_for(optimizer, model, torch.ones(4, SIZE), torch.arange(4)))
    gc.collect()
    alive = {each.data_ptr() for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter) and is_weights(each)}
    assert len(alive) == 2 + len(optimizer.keeps)


def is_weights(tensor: Tensor) -> bool:
    return tensor.shape == (SIZE, SIZE)
