"""From recipe to parts: what is refused, and when."""

import pytest
import torch

from mecam import methods
from mecam.optim import create
from mecam.recipe import RecipeError, make
from mecam.training.build import build_network, build_optimizer, check_parts, virtual_layers, what_to_record


def test_parts_are_refused_before_any_data_is_read() -> None:
    check_parts(make({"data": "nowhere", "optimizer": "mecam", "averaging": "swad"}))
    with pytest.raises(ValueError, match="there is no method 'erms'; did you mean erm"):
        check_parts(make({"method": "erms"}))
    with pytest.raises(RecipeError, match="momentum"):
        check_parts(make({"optimizer": "adam", "optimizer_settings": {"momentum": 0.9}}))
    with pytest.raises(ValueError, match="sam is sharpness-aware itself"):
        check_parts(make({"optimizer": "mecam", "base": "sam"}))


def test_a_virtual_domain_acts_on_the_layers_it_is_given() -> None:
    recipe = make({"optimizer": "mecam", "virtual_settings": {"p": 0.5, "layers": "2"}})
    check_parts(recipe)
    network, method = build_network(recipe, classes=2), methods.create("erm")
    optimizer = build_optimizer(recipe, method, network, network, torch.device("cpu"))
    hooked = [name for name, module in network.named_modules() if module._forward_hooks]
    assert hooked == ["featurizer.layer2"]
    assert optimizer.virtual_domain.p == 0.5  # type: ignore[attr-defined]
    everywhere = make({"optimizer": "mecam"})
    assert virtual_layers(everywhere, network.stages) == ("featurizer.layer1", "featurizer.layer2")


@pytest.mark.parametrize("layers", ["0", "4", "1,", "first"])
def test_layers_that_are_not_there_are_refused(layers: str) -> None:
    recipe = make({"optimizer": "mecam", "virtual_settings": {"layers": layers}})
    with pytest.raises(RecipeError, match="is not allowed; the backbone has 3 of them"):
        virtual_layers(recipe, ("layer1", "layer2", "layer3"))


def test_pixels_have_no_layers() -> None:
    recipe = make({"optimizer": "mecam", "virtual": "fourier", "virtual_settings": {"layers": "1"}})
    with pytest.raises(RecipeError, match="fourier acts on pixels, not on layers"):
        virtual_layers(recipe, ("layer1",))


def test_shared_noise_is_not_recorded() -> None:
    """It sets the device's random state, which no CUDA graph can."""
    gpu, method = torch.device("cuda"), methods.create("erm")
    recipe = make({"optimizer": "sam"})
    for shared, expected in ((False, "steps"), (True, "nothing")):
        optimizer = create("sam", [torch.zeros(1, requires_grad=True)], shared_noise=shared)
        assert what_to_record(recipe, method, optimizer, gpu) == expected
