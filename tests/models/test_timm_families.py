"""Twenty-nine families of timm with random weights: they run, a virtual domain reaches them, and MeCAM trains them."""

import re
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.models import create
from mecam.optim import MeCAM
from mecam.virtual import MixStyle

PAGE = Path(__file__).parents[2] / "docs" / "adding" / "backbone.md"
FAMILIES = {  # a small member of each, and a size below its own that it takes
    "resnet18": 32,
    "regnetx_002": 32,
    "densenet121": 32,
    "mobilenetv3_small_050": 32,
    "efficientnet_b0": 32,
    "ghostnet_050": 32,
    "repvit_m0_9": 32,
    "hrnet_w18_small": 64,
    "convnext_atto": 32,
    "convnextv2_atto": 32,
    "vit_tiny_patch16_384": 32,
    "deit_tiny_patch16_224": 32,
    "vit_small_patch14_dinov2": 28,
    "eva02_tiny_patch14_224": 28,
    "swin_tiny_patch4_window7_224": 56,
    "swinv2_tiny_window8_256": 64,
    "mambaout_femto": 32,
    "maxvit_pico_rw_256": 64,
    "coatnet_pico_rw_224": 64,
    "tiny_vit_5m_224": 64,
    "pvt_v2_b0": 32,
    "poolformer_s12": 32,
    "edgenext_xx_small": 64,
    "mobilevit_xxs": 64,
    "efficientformerv2_s0": 64,
    "fastvit_t8": 64,
    "levit_128s": 64,
    "mixer_s32_224": 64,
    "resmlp_12_224": 32,
}


@pytest.mark.parametrize(("name", "size"), FAMILIES.items())
def test_a_family(name: str, size: int) -> None:
    torch.manual_seed(0)
    # in float64: layer scales and residuals start near 0 in some, and the change must stand out from rounding
    network = create(f"timm/{name}", classes=3, pretrained=False, image_size=size).double().eval()
    assert network.preprocessing.size == size
    images = torch.randn(4, 3, size, size, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0])
    style = MixStyle(alpha=1.0).attach(network, network.stages)
    with torch.no_grad():
        plain = network(images)
        with style.active():
            mixed = network(images)
    assert plain.shape == (4, 3)
    assert (mixed - plain).abs().max() > 1e-9 * plain.abs().max()

    network.train().float()
    images = images.float()
    optimizer = MeCAM(network.parameters(), torch.optim.SGD, lr=0.1, virtual_domain=style, model=network)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(network(images), labels)
        loss.backward()
        return loss

    before = [parameter.detach().clone() for parameter in network.parameters()]
    assert torch.isfinite(optimizer.step(closure))
    after = list(network.parameters())
    assert all(torch.isfinite(parameter).all() for parameter in after)
    assert sum(not torch.equal(*pair) for pair in zip(before, after, strict=True)) > len(after) / 2


def test_the_page_lists_them() -> None:
    row = r"^\| `timm/(\w+)` \| (\d+) \| (\d+) \| (\w+) \|$"
    rows = re.findall(row, PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {name: int(tried) for name, _, tried, _ in rows} == FAMILIES
    for name, own, _, interpolation in rows:
        config = timm.get_pretrained_cfg(name)
        assert (config.input_size[-1], config.interpolation) == (int(own), interpolation), name
