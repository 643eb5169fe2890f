"""Which backbones torch.compile compiles."""

import copy

import pytest
import torch
from torch import nn

from mecam.data.shapes import shapes
from mecam.models.registry import find
from mecam.recipe import Recipe
from mecam.training.compiling import Tiles, compile_backbone, is_compiled
from mecam.training.evaluate import evaluating
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.step import train_step

VIT = "timm/vit_tiny_patch16_224"


def recipe(**values: object) -> Recipe:
    return Recipe(**{"backbone": VIT, "pretrained": False, "image_size": 32, **values})


def featurizer(name: str = VIT) -> nn.Module:
    return find(name, image_size=32).build(False).featurizer


@pytest.mark.parametrize(
    ("values", "captured", "compiled"),
    [
        ({"steps": 2000}, True, True),
        ({"steps": 1999}, True, False),  # too short to earn its seconds back
        ({"steps": 700, "optimizer": "mecam"}, True, True),  # three passes per step
        ({"steps": 2000}, False, False),  # on a CPU, and where steps cannot be captured
        ({"steps": 9, "compile": "always"}, False, True),
        ({"steps": 2000, "compile": "never"}, True, False),
    ],
)
def test_blocks_are_compiled_where_it_pays(values: dict[str, object], captured: bool, compiled: bool) -> None:
    network = featurizer()
    assert compile_backbone(recipe(**values), network, captured=captured) is compiled
    assert is_compiled(network) is compiled
    assert [is_compiled(block) for block in network.blocks] == [compiled] * len(network.blocks)
    assert network._compiled_call_impl is None


def test_what_folds_is_compiled_on_request_only() -> None:
    network = featurizer("resnet8")
    assert not compile_backbone(recipe(backbone="resnet8", steps=5000), network, captured=True)
    assert compile_backbone(recipe(backbone="resnet8", compile="always"), network, captured=True)
    assert network._compiled_call_impl is not None


@pytest.mark.parametrize("values", [{"backbone": "resnet8"}, {"backbone": VIT}], ids=["whole", "blocks"])
def test_a_virtual_domain_acts_in_a_compiled_backbone(
    values: dict[str, object], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Also after a run of the same backbone without one, in the same process."""
    compile_module = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **chosen: compile_module(self, backend="eager", **chosen))
    for optimizer in ("adam", "mecam"):
        chosen = recipe(optimizer=optimizer, target="art", batch=2, steps=1, compile="always", **values)
        run = Run(chosen, find_machine("cpu"), shapes(per_class=4))
        assert is_compiled(run.network)
        train_step(run, 0)
    assert not [each for each in recwarn if "no layer ran" in str(each.message)]


def test_a_convnext_has_one_kind_of_block_per_stage() -> None:
    """Its first blocks are those of a stage: torch.compile stops at eight kinds."""
    network = featurizer("timm/convnext_atto").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    plain = copy.deepcopy(network)
    x = torch.randn(2, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    kinds: list[object] = []

    def count(graph: object, _inputs: object) -> object:
        kinds.append(graph)
        return graph

    compile_module = nn.Module.compile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Module, "compile", lambda self, **chosen: compile_module(self, backend=count, **chosen))
        assert compile_backbone(recipe(compile="always"), network, captured=True)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = network(x), plain(x)
    assert len(kinds) == len(network.stages) == 4
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.01)  # patches as products round otherwise in bfloat16


def test_a_convnext_without_layer_scale_is_left_as_it_is() -> None:
    """All blocks of its stages get the dtype of autocast."""
    network = featurizer("timm/convnextv2_atto")
    assert compile_backbone(recipe(compile="always"), network, captured=True)
    assert not [stage for stage in network.stages if stage.downsample._forward_hooks]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_tiles_are_the_convolution(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 8, (4, 2), (4, 2), dtype=torch.float64).to(memory_format=layout)  # type: ignore[call-overload]
    x = torch.randn(2, 3, 18, 15, dtype=torch.float64, requires_grad=True)  # rows and columns are left over
    inputs = [x, *conv.parameters()]
    expected = conv(x)
    conv.__class__ = Tiles
    found = conv(x)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(out.sin().sum(), inputs) for out in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_patches_of_compiled_transformers_are_tiles() -> None:
    network = featurizer()
    weights = network.state_dict()
    compile_backbone(recipe(compile="always"), network, captured=True)
    assert type(network.patch_embed.proj) is Tiles
    assert network.state_dict().keys() == weights.keys()


class Doubling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def test_evaluations_are_not_compiled() -> None:
    network, graphs = Doubling(), []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    network.compile(backend=backend)
    with evaluating(network):
        network(torch.ones(1))
    assert not graphs
    network(torch.ones(1))
    assert len(graphs) == 1
