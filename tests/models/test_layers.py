"""Layers of a backbone: their depths, and which modules are blocks."""

import pytest
import torch
from torch import nn

from mecam.models import create
from mecam.models.layers import blocks_of, depths


def test_a_resnet_has_a_stem_and_a_layer_per_block() -> None:
    featurizer = create("resnet18", classes=2).featurizer
    below = depths(featurizer)
    by_hand = {"conv1.weight": 9, "bn1.bias": 9, "layer1.0.conv1.weight": 8, "layer1.1.bn2.weight": 7}
    by_hand |= {"layer2.0.downsample.0.weight": 6, "layer3.1.conv2.weight": 3, "layer4.1.bn2.bias": 1}
    assert {name: below[name] for name in by_hand} == by_hand
    by_stage = depths(featurizer, stages=True)
    by_hand = {"conv1.weight": 5, "layer1.1.bn2.weight": 4, "layer4.0.conv1.weight": 1, "layer4.1.bn2.bias": 1}
    assert {name: by_stage[name] for name in by_hand} == by_hand


def test_an_efficientnet_lite_counts_its_last_convolution_with_the_last_block() -> None:
    featurizer = create("lite0", classes=2, pretrained=False).featurizer
    below, by_group = depths(featurizer), depths(featurizer, stages=True)
    assert [below[name] for name in ("_conv_stem.weight", "_blocks.0._bn1.bias", "_conv_head.weight")] == [17, 16, 1]
    assert {name.rsplit(".", 2)[0] for name, depth in by_group.items() if depth == 2} == {
        f"_blocks.{number}" for number in range(11, 15)
    }


def test_a_transformer_has_the_layers_that_timm_decays() -> None:
    timm_optim = pytest.importorskip("timm.optim")
    featurizer = create("timm/test_vit", classes=2, pretrained=False, image_size=32).featurizer
    below = depths(featurizer)
    assert (below["pos_embed"], below["blocks.0.norm1.weight"], below["norm.bias"]) == (max(below.values()), 6, 1)
    with_head = create("timm/test_vit", classes=2, pretrained=False, image_size=32).featurizer
    with_head.reset_classifier(2)
    groups = timm_optim.param_groups_layer_decay(with_head, layer_decay=0.5)
    scales = {parameter: group["lr_scale"] for group in groups for parameter in group["params"]}
    ours = {name: 0.5**depth for name, depth in below.items()}
    assert ours == {name: scales[p] for name, p in with_head.named_parameters() if not name.startswith("head.")}


def test_blocks_are_the_largest_modules_of_one_layer() -> None:
    resnet = create("resnet18", classes=2).featurizer
    names = {module: name for name, module in resnet.named_modules()}
    assert [names[block] for block in blocks_of(resnet)] == [f"layer{at}.{of}" for at in (1, 2, 3, 4) for of in (0, 1)]
    convnext = create("timm/test_convnext", classes=2, pretrained=False, image_size=32).featurizer
    found = blocks_of(convnext)
    inside = [module for block in found for module in block.modules()]
    assert len(inside) == len(set(inside)), "no block inside another"


def test_a_featurizer_of_your_own_lists_its_blocks() -> None:
    own = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(ValueError, match=r"blocks of this backbone are not known; .* an attribute `blocks`"):
        depths(own)
    own.blocks = ["1", "2"]
    assert list(depths(own).values()) == [3, 3, 2, 2, 1, 1]
    assert blocks_of(own) == [own[1], own[2]]
    assert own(torch.zeros(1, 3, 4, 4)).shape == (1, 4, 4, 4)
