import copy
import pickle

import pytest
import torch
from torch import nn

from mecam.models import Backbone, Network, create
from mecam.models.network import virtual_domain_stages
from mecam.virtual import MixStyle

IMAGES = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def small(*, freeze_bn: bool = False, dropout: float = 0.0) -> Network:
    torch.manual_seed(0)
    return create("resnet8", classes=4, dropout=dropout, freeze_bn=freeze_bn)


def batch_norms(network: nn.Module) -> list[nn.BatchNorm2d]:
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


def statistics(network: nn.Module) -> list[torch.Tensor]:
    return [buffer.clone() for buffer in network.buffers()]


def test_head_of_dropped_features() -> None:
    network = small(dropout=0.5)
    pooled = network.pooled(IMAGES)
    assert pooled.shape == (8, network.num_features) == (8, 64)
    torch.manual_seed(1)
    found = network(IMAGES)
    torch.manual_seed(1)
    kept = nn.functional.dropout(pooled, 0.5)
    torch.testing.assert_close(found, kept @ network.head.weight.T + network.head.bias)
    torch.manual_seed(1)
    torch.testing.assert_close(network.features(IMAGES), kept)
    network.eval()
    torch.testing.assert_close(network.features(IMAGES), network.pooled(IMAGES))
    torch.testing.assert_close(network(IMAGES), network.head(network.features(IMAGES)))


def test_the_head_is_initialised_as_torch_does_by_default() -> None:
    weight = create("resnet50", classes=100).head.weight
    bound = 2048**-0.5
    assert 0.99 * bound < weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.01)


def test_the_global_seed_decides_the_weights() -> None:
    torch.testing.assert_close(small().state_dict(), small().state_dict(), rtol=0, atol=0)
    assert not torch.equal(small().head.weight, create("resnet8", classes=4).head.weight)


class TestFrozenBatchNorm:
    def test_train_does_not_wake_it(self) -> None:
        network = small(freeze_bn=True)
        around = nn.Sequential(network)
        for again in (network, network.train(), network.eval().train(), around.train(), copy.deepcopy(network).train()):
            assert again.training
            assert batch_norms(again)
            assert not any(module.training for module in batch_norms(again))
        assert network.featurizer.layer1.training
        assert network.dropout.training
        assert not network.eval().training

    def test_statistics_stay_while_scale_and_shift_train(self) -> None:
        network = small(freeze_bn=True)
        before = statistics(network)
        network.train()(IMAGES + 3).square().sum().backward()
        torch.testing.assert_close(statistics(network), before, rtol=0, atol=0)
        for module in batch_norms(network):
            assert module.weight.requires_grad
            assert module.weight.grad.abs().max() > 0
            assert module.bias.grad.abs().max() > 0

    def test_outputs_do_not_depend_on_the_batch(self) -> None:
        network = small(freeze_bn=True).train()
        torch.testing.assert_close(network(IMAGES)[:1], network(IMAGES[:1]))

    def test_survives_pickle(self) -> None:
        network = pickle.loads(pickle.dumps(small(freeze_bn=True))).train()
        assert not any(module.training for module in batch_norms(network))

    def test_live_otherwise(self) -> None:
        network = small()
        before = statistics(network)
        network(IMAGES)
        assert all(module.training for module in batch_norms(network))
        assert not any(map(torch.equal, before, statistics(network)))


@pytest.mark.parametrize(("backbone", "size"), [("resnet8", 32), ("resnet18", 64), ("lite0", 64)])
def test_a_virtual_domain_attaches_to_the_stages(backbone: str, size: int) -> None:
    network = create(backbone, classes=4, pretrained=False).eval()
    images = torch.randn(4, 3, size, size)
    plain = network(images)
    style = MixStyle(p=1.0, alpha=1.0).attach(network, network.stages)
    torch.testing.assert_close(network(images), plain)
    with style.active():
        assert not torch.allclose(network(images), plain)


def test_stages_are_the_three_before_the_last() -> None:
    assert virtual_domain_stages(["a", "b", "c", "d", "e"]) == ("b", "c", "d")
    assert virtual_domain_stages(["a", "b"]) == ("a",)
    assert virtual_domain_stages([]) == ()
    assert small().stages == ("featurizer.layer1", "featurizer.layer2")
    assert create("resnet18", classes=2).stages == ("featurizer.layer1", "featurizer.layer2", "featurizer.layer3")


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"classes": 0}, "classes must be at least 1"), ({"dropout": 1.0}, r"dropout must be in \[0, 1\)")],
)
def test_impossible_settings_are_refused(settings: dict[str, float], message: str) -> None:
    backbone = Backbone(nn.Flatten(), 12, (), ("fc",))
    with pytest.raises(ValueError, match=message):
        Network(backbone, **{"classes": 2, **settings})
