"""LoRA adapters of peft train as any other parameters; the frozen weights below them are not copied."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mecam.optim import FSAM, SAM, MeCAM
from tests.integrations.loops import assert_close, loader, network, sgd, train

peft = pytest.importorskip("peft", reason="peft is not installed; make ecosystem runs this")


def adapted() -> Any:
    model = network()
    torch.manual_seed(2)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["0", "3"]), autocast_adapter_dtype=False)


class Reference(torch.nn.Module):
    """The network with adapters written by hand: W + scale * B A."""

    def __init__(self, lora: Any) -> None:
        super().__init__()
        self.network = network().requires_grad_(False)
        self.scale = lora.peft_config["default"].lora_alpha / 2
        weights = {name: p.detach().clone() for name, p in lora.named_parameters() if p.requires_grad}
        self.a = torch.nn.ParameterList(weight for name, weight in weights.items() if "lora_A" in name)
        self.b = torch.nn.ParameterList(weight for name, weight in weights.items() if "lora_B" in name)

    def linear(self, place: int, adapter: int, x: torch.Tensor) -> torch.Tensor:
        return self.network[place](x) + self.scale * (x @ self.a[adapter].T @ self.b[adapter].T)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(3, 1, self.network[2](self.network[1](self.linear(0, 0, x))))


@pytest.mark.works_with("peft", "LoRA: updates equal those of adapters written by hand", packages=["peft"])
@pytest.mark.parametrize("method", [SAM, MeCAM, FSAM])
def test_lora_trains_as_adapters_by_hand(method: Any) -> None:
    model = adapted()
    reference = Reference(model)
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    batches = list(loader())
    train(model, sgd(method, model), batches)
    train(reference, sgd(method, reference), batches)
    adapters = [p for p in model.parameters() if p.requires_grad]
    expected = [p for pair in zip(reference.a, reference.b, strict=True) for p in pair]
    for adapter, by_hand in zip(adapters, expected, strict=True):
        torch.testing.assert_close(adapter, by_hand, rtol=0, atol=1e-10)
    for name, before in frozen.items():
        assert torch.equal(model.get_parameter(name), before), name
    assert_close(model.base_model.model[1], reference.network[1])
