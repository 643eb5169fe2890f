"""From recipe to parts: what is refused, and when."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mecam import methods
from mecam.data.shapes import shapes
from mecam.optim import create
from mecam.recipe import Recipe, RecipeError
from mecam.runs import checkpoint
from mecam.training.build import build_network, build_optimizer, check_parts, virtual_layers, what_to_capture
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.state import load_state_dict, state_dict
from mecam.training.step import train_step
from mecam.virtual import MixStyle


def test_parts_are_refused_before_any_data_is_read() -> None:
    check_parts(Recipe(data="nowhere", optimizer="mecam", averaging="swad"))
    with pytest.raises(ValueError, match="there is no method 'erms'; did you mean erm"):
        check_parts(Recipe(method="erms"))
    with pytest.raises(ValueError, match="adam has no setting 'momentum'; it has "):
        check_parts(Recipe(optimizer="adam", optimizer_settings={"momentum": 0.9}))
    with pytest.raises(ValueError, match="sam is sharpness-aware itself"):
        check_parts(Recipe(optimizer="mecam", base="sam"))


@pytest.mark.parametrize(("optimizer", "switch"), [("sam", "adaptive"), ("sam", "shared_noise")])
def test_a_word_is_no_switch(optimizer: str, switch: str) -> None:
    """`--set optimizer_settings.adaptive=no` is a string, which Python would take for True."""
    check_parts(Recipe(optimizer=optimizer, optimizer_settings={switch: False}))
    with pytest.raises(RecipeError, match=f"{switch}='no' is a str; it must be true or false"):
        check_parts(Recipe(optimizer=optimizer, optimizer_settings={switch: "no"}))


def test_a_virtual_domain_acts_on_the_layers_it_is_given() -> None:
    recipe = Recipe(optimizer="mecam", virtual_settings={"p": 0.5, "layers": "2"})
    check_parts(recipe)
    network, method = build_network(recipe, classes=2), methods.create("erm")
    optimizer = build_optimizer(recipe, method, network, network, torch.device("cpu"))
    hooked = [name for name, module in network.named_modules() if module._forward_hooks]
    assert hooked == ["featurizer.layer2"]
    assert optimizer.virtual_domain.p == 0.5  # type: ignore[attr-defined]
    everywhere = Recipe(optimizer="mecam")
    assert virtual_layers(everywhere, network.stages) == ("featurizer.layer1", "featurizer.layer2")


@pytest.mark.parametrize("layers", ["0", "4", "1,", "1,1", "first"])
def test_layers_that_are_not_there_are_refused(layers: str) -> None:
    recipe = Recipe(optimizer="mecam", virtual_settings={"layers": layers})
    with pytest.raises(RecipeError, match="is not allowed; the backbone has 3 of them"):
        virtual_layers(recipe, ("layer1", "layer2", "layer3"))


def test_blocks_that_are_no_domains_are_refused() -> None:
    """Counted otherwise, partners from "another domain" would be from any domain."""
    with pytest.raises(RecipeError, match="a batch has 3 source domains"):
        run_of("mecam", virtual_settings={"domains": 2})
    run_of("mecam", virtual_settings={"domains": 3})
    run_of("mecam", virtual="none", virtual_settings={"domains": 2})


def test_pixels_have_no_layers() -> None:
    recipe = Recipe(optimizer="mecam", virtual="fourier", virtual_settings={"layers": "1"})
    with pytest.raises(RecipeError, match="fourier acts on pixels, not on layers"):
        virtual_layers(recipe, ("layer1",))


def test_shared_noise_is_not_captured() -> None:
    """It sets the device's random state, which no CUDA graph can."""
    gpu, method = torch.device("cuda"), methods.create("erm")
    recipe = Recipe(optimizer="sam")
    for shared, expected in ((False, "steps"), (True, "nothing")):
        optimizer = create("sam", [torch.zeros(1, requires_grad=True)], shared_noise=shared)
        assert what_to_capture(recipe, method, optimizer, gpu) == expected


def test_only_cuda_has_graphs() -> None:
    optimizer = create("sam", [torch.zeros(1, requires_grad=True)])
    for device, expected in (("cuda", "steps"), ("mps", "nothing")):
        assert what_to_capture(Recipe(), methods.create("erm"), optimizer, torch.device(device)) == expected


VARIANTS = {"thinmecam": {"every": 4, "start": 1}}


def run_of(optimizer: str, **values: Any) -> Run:
    given = {"target": "sketch", "steps": 8, "batch": 4, "image_size": 16, "optimizer": optimizer, **values}
    return Run(Recipe(**given), find_machine("cpu"), shapes(per_class=4))


@pytest.mark.parametrize("optimizer", ["mecam", *VARIANTS])
def test_the_virtual_domain_goes_to_all_that_have_a_meta_pass(optimizer: str) -> None:
    assert type(run_of(optimizer).optimizer.virtual_domain) is MixStyle  # type: ignore[attr-defined]
    assert run_of(optimizer, virtual="none").optimizer.virtual_domain is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("optimizer", VARIANTS)
def test_a_run_with_a_variant_resumes_from_its_checkpoint(optimizer: str, tmp_path: Path) -> None:
    whole = run_of(optimizer, optimizer_settings=VARIANTS[optimizer])
    for step in range(8):
        if step == 3:
            checkpoint.save(tmp_path / "checkpoint", state_dict(whole, 2))
        train_step(whole, step)
    resumed = run_of(optimizer, optimizer_settings=VARIANTS[optimizer])
    load_state_dict(resumed, checkpoint.load(tmp_path / "checkpoint"))
    for step in range(3, 8):
        train_step(resumed, step)
    torch.testing.assert_close(resumed.trained.state_dict(), whole.trained.state_dict(), rtol=0, atol=0)
