import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from mecam.virtual import DSU, EFDMix, Fourier, MixStyle, VirtualDomain
from mecam.virtual._draws import Draw
from mecam.virtual._features import FeatureDomain
from mecam.virtual._layers import ends_with_channels
from mecam.virtual.mixstyle import mix_style
from tests.optim.distributed import run as run_ranks

pytestmark = pytest.mark.filterwarnings("error:no layer ran:RuntimeWarning")


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 2))


def images() -> Tensor:
    return torch.randn(4, 3, 8, 8)


def run(model: nn.Module, x: Tensor, seed: int = 5) -> Tensor:
    """The model's output from a given random state."""
    torch.manual_seed(seed)
    out: Tensor = model(x)
    return out


def run_active(domain: VirtualDomain, model: nn.Module, x: Tensor, seed: int = 5) -> Tensor:
    """The same with the virtual domain on, dropout seeing the random state `run` gives it."""
    torch.manual_seed(seed)
    with domain.active():
        return run(model, x, seed)


# The switch


@pytest.mark.parametrize("training", [True, False])
def test_inert_unless_active_in_train_and_eval_mode(training: bool) -> None:
    model, x = network().train(training), images()
    before = run(model, x)
    style = MixStyle().attach(model, ["0"])
    assert torch.equal(run(model, x), before)
    assert not torch.allclose(run_active(style, model, x), before)
    assert torch.equal(run(model, x), before)


def test_active_can_be_nested_and_the_outermost_switches_off() -> None:
    model, x = network().eval(), images()
    style = MixStyle().attach(model, "0")
    plain = model(x)
    with style.active():
        with style.active():
            assert not torch.allclose(model(x), plain)
        assert not torch.allclose(model(x), plain)
    assert torch.equal(model(x), plain)


def test_an_exception_inside_switches_off_and_passes_through() -> None:
    model, x = network().eval(), images()
    style = MixStyle().attach(model, "0")
    with pytest.raises(ZeroDivisionError), style.active():
        raise ZeroDivisionError
    assert torch.equal(model(x), network_without_hooks(model)(x))
    with style.active():
        assert not torch.allclose(model(x), network_without_hooks(model)(x))


def network_without_hooks(model: nn.Sequential) -> nn.Sequential:
    twin = network().train(model.training)
    twin.load_state_dict(model.state_dict())
    return twin


def test_an_activation_in_which_no_layer_ran_warns() -> None:
    with pytest.warns(RuntimeWarning, match="no layer ran through MixStyle.*attach"), MixStyle().active():
        network()(images())


def test_detach_removes_the_hooks() -> None:
    model, x = network().eval(), images()
    style = MixStyle().attach(model, ["0", "1"])
    style.detach()
    with pytest.warns(RuntimeWarning, match="no layer ran"), style.active():
        assert torch.equal(model(x), network_without_hooks(model)(x))
    style.attach(model, "0")


# Randomness


def test_reproducible_from_the_global_seed() -> None:
    model, x = network(), images()
    style = MixStyle().attach(model, ["0", "1"])
    assert torch.equal(run_active(style, model, x, seed=3), run_active(style, model, x, seed=3))
    assert not torch.equal(run_active(style, model, x, seed=3), run_active(style, model, x, seed=4))


@pytest.mark.parametrize("domain", [MixStyle(), EFDMix(), DSU(), Fourier()])
def test_draws_differ_between_activations_and_between_calls_in_one(domain: VirtualDomain) -> None:
    model, x = nn.Identity(), images()
    domain.attach(model, model)
    with domain.active():
        first, second = model(x), model(x)
    with domain.active():
        third = model(x)
    assert not torch.equal(first, second)
    assert not torch.equal(first, third)


def test_dropout_draws_what_it_would_draw_without_the_virtual_domain() -> None:
    x = torch.rand(4, 3, 8, 8) + 1
    model = nn.Sequential(nn.Identity(), nn.Dropout(0.5))
    plain, following = run(model, x), torch.rand(1)
    style = MixStyle(p=0.5).attach(model, ["0"])
    mixed = run_active(style, model, x)
    assert torch.equal(torch.rand(1), following)
    assert torch.equal(mixed == 0, plain == 0)
    assert not torch.equal(mixed, plain)


def test_an_activation_takes_one_number_from_the_global_generator_whatever_runs_inside() -> None:
    model, x = nn.Identity(), images()
    style = MixStyle(p=0.5).attach(model, model)
    following = []
    for calls in (1, 3):
        torch.manual_seed(0)
        with style.active():
            for _ in range(calls):
                model(x)
        following.append(torch.rand(1))
    assert torch.equal(*following)


def test_an_explicit_generator_is_the_only_source() -> None:
    model, x = nn.Identity(), images()
    style = MixStyle(generator=torch.Generator().manual_seed(7)).attach(model, model)
    state = torch.get_rng_state()
    with style.active():
        first = model(x)
    assert torch.equal(torch.get_rng_state(), state)
    twin = MixStyle(generator=torch.Generator().manual_seed(7))
    model = nn.Identity()
    twin.attach(model, model)
    with twin.active():
        assert torch.equal(model(x), first)


def test_devices_without_doubles_draw_on_the_host() -> None:
    # The meta device stands in for one; it has no generator of its own.
    draw = Draw.like(torch.zeros(4, device="meta"), 0)
    for numbers in (draw.beta(0.1, 4), draw.normal(4), draw.uniform(4, 1.0), draw.partner(4, 2), draw.happens(0.5)):
        assert numbers.device.type == "meta"
    assert draw.beta(0.1, 4).dtype == torch.float32


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_recomputes_with_the_same_draws(reentrant: bool) -> None:
    first, second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)
    style = MixStyle(alpha=1.0).attach(nn.Sequential(first, second), ["0", "1"])
    x = images().requires_grad_()
    gradients = []
    for remember in (True, False):
        torch.manual_seed(1)
        with style.active():
            for _ in range(2):  # two micro-batches
                features = x
                for layer in (first, second):
                    features = layer(features) if remember else checkpoint(layer, features, use_reentrant=reentrant)
                torch.autograd.backward(features.square().sum())
        assert x.grad is not None
        gradients.append(x.grad)
        x.grad = None
    torch.testing.assert_close(*gradients)


def test_checkpointing_a_plain_pass_stays_plain_when_backward_meets_an_active_domain() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh()), images().requires_grad_()
    style = MixStyle(alpha=1.0).attach(model, "0")
    (expected,) = torch.autograd.grad(model(x).square().sum(), x)
    loss = checkpoint(model, x, use_reentrant=False).square().sum()
    with style.active():
        (gradient,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(gradient, expected)


# Which layers


def compiled(model: nn.Module, **options: Any) -> nn.Module:
    module = torch.compile(model, **options)
    assert isinstance(module, nn.Module)
    return module


def test_a_wrong_name_lists_near_matches() -> None:
    model = nn.ModuleDict({"layer1": nn.Identity(), "layer2": nn.Identity(), "head": nn.Identity()})
    with pytest.raises(ValueError, match=r"no layer 'layer_1'; near matches: layer1, layer2"):
        MixStyle().attach(model, ["layer_1"])


def test_a_name_without_its_parents_lists_the_full_ones() -> None:
    stages = nn.ModuleDict({"layer1": nn.Identity()})
    model = nn.ModuleDict({"featurizer": nn.ModuleDict({"backbone": nn.ModuleDict({"stages": stages})})})
    with pytest.raises(ValueError, match=r"no layer 'layer1'; near matches: featurizer\.backbone\.stages\.layer1$"):
        MixStyle().attach(model, "layer1")


def test_a_name_like_no_other_lists_where_names_begin() -> None:
    model = nn.ModuleDict({"stem": nn.Identity(), "head": network()})
    with pytest.raises(ValueError, match=r"no layer 'xyz'; its layers begin with: head, stem$"):
        MixStyle().attach(model, "xyz")


def test_a_module_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"this Conv2d is not part of the model \(Sequential\)"):
        MixStyle().attach(network(), nn.Conv2d(3, 4, 3))
    with pytest.raises(TypeError, match="a layer is a name or a module, got int: 3"):
        MixStyle().attach(network(), [3])  # type: ignore[list-item]


def test_the_same_layer_twice_is_refused() -> None:
    model = network()
    style = MixStyle().attach(model, ["0"])
    for again in ("0", model[0], ["1", model[1]]):
        with pytest.raises(ValueError, match=r"this MixStyle is already attached to layer '[01]'"):
            style.attach(model, again)  # type: ignore[arg-type]
    MixStyle().attach(model, ["0"])


def test_a_refused_attach_leaves_no_hooks() -> None:
    model = network()
    with pytest.raises(ValueError, match="no layer 'nowhere'"):
        MixStyle().attach(model, ["0", "nowhere"])
    assert not model[0]._forward_hooks
    with pytest.raises(ValueError, match="attach needs at least one layer"):
        MixStyle().attach(model, [])


def test_a_list_of_layers_that_is_never_called_is_refused() -> None:
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Identity(), nn.Identity()])
    with pytest.raises(ValueError, match=r"'blocks' is a list that is never called.*blocks\.0, blocks\.1"):
        MixStyle().attach(model, "blocks")


def test_names_inside_wrappers_need_no_prefix() -> None:
    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.module = inner

    model = network()
    for wrapped in (Wrapper(model), compiled(model), compiled(Wrapper(model)), Wrapper(compiled(model))):
        style = MixStyle().attach(wrapped, ["0"])
        assert len(model[0]._forward_hooks) == 1
        with pytest.raises(ValueError, match="near matches: 0"):
            style.attach(wrapped, "0.")
        style.detach()
    MixStyle().attach(model, ["module.0", "_orig_mod.1"])


# What a layer returns


class Returns(nn.Module):
    def __init__(self, build: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.build = build

    def forward(self, x: Tensor) -> Any:
        return self.build(x)


class Pair(NamedTuple):
    note: str
    features: Tensor
    extra: Tensor


def test_of_a_tuple_list_or_named_tuple_the_first_tensor_changes() -> None:
    x = images()
    builds: list[Callable[[Tensor], Any]] = [
        lambda x: ("note", x, x),
        lambda x: ["note", x, x],
        lambda x: Pair("note", x, x),
    ]
    for build in builds:
        model = Returns(build)
        style = MixStyle().attach(model, model)
        with style.active():
            output = model(x)
        assert type(output) is type(build(x))
        assert output[0] == "note"
        assert not torch.equal(output[1], x)
        assert output[2] is x


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: {"features": x}, "layer '0' returned a dict"),
        (lambda _: ("a", "b"), "layer '0' has no tensor among its 2 values"),
        (lambda x: x.long(), "layer '0': a virtual domain needs floating-point values, got torch.int64"),
    ],
)
def test_outputs_without_features_are_refused(build: Callable[[Tensor], Any], message: str) -> None:
    model = nn.Sequential(Returns(build))
    style = MixStyle().attach(model, "0")
    with pytest.raises(TypeError, match=message), style.active():
        model(images())


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2, 2, 2)])
def test_neither_maps_nor_tokens_is_refused_with_layer_and_shape(shape: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.Identity())
    style = MixStyle().attach(model, "0")
    with pytest.raises(ValueError, match=r"layer '0' returned a tensor of shape \(4, 3.*maps"), style.active():
        model(torch.randn(shape))


# Tokens


@pytest.mark.parametrize("domain", [MixStyle(alpha=1.0), EFDMix(alpha=1.0), DSU()])
def test_patch_tokens_are_treated_as_the_positions_of_a_map(domain: MixStyle | EFDMix | DSU) -> None:
    tokens = torch.randn(4, 1 + 6, 5)
    as_map = tokens[:, 1:].transpose(1, 2).reshape(4, 5, 2, 3)
    model = nn.Identity()
    domain.attach(model, model)
    mixed_tokens, mixed_map = run_active(domain, model, tokens), run_active(domain, model, as_map)
    assert torch.equal(mixed_tokens[:, 0], tokens[:, 0])
    assert not torch.allclose(mixed_map, as_map)
    torch.testing.assert_close(mixed_tokens[:, 1:], mixed_map.flatten(2).transpose(1, 2))


def test_tokens_first_is_the_same_with_axes_swapped() -> None:
    tokens = torch.randn(4, 1 + 6, 5)
    batch_first, tokens_first = nn.Identity(), nn.Identity()
    style = MixStyle(alpha=1.0).attach(batch_first, batch_first)
    style.attach(tokens_first, tokens_first, batch_first=False)
    swapped = run_active(style, tokens_first, tokens.transpose(0, 1))
    torch.testing.assert_close(swapped.transpose(0, 1), run_active(style, batch_first, tokens))


def test_a_transformer_that_keeps_tokens_first() -> None:
    layers = [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=False) for _ in range(2)]
    tower, x = nn.Sequential(*layers).train(), torch.randn(1 + 9, 4, 8)
    plain = tower[0](x)
    style = MixStyle(alpha=1.0).attach(tower, "0", batch_first=False)
    with style.active():
        mixed = tower[0](x)
        tower(x).sum().backward()
    assert torch.equal(mixed[0], plain[0])
    assert (mixed[1:] - plain[1:]).abs().amax((0, 2)).gt(1e-3).any()


@pytest.mark.parametrize(
    ("attributes", "given", "untouched"),
    [
        ({}, None, 1),
        ({"num_prefix_tokens": 0}, None, 0),
        ({"num_prefix_tokens": 5}, None, 5),
        ({"num_register_tokens": 4}, None, 5),
        ({"num_prefix_tokens": 5}, 2, 2),
    ],
)
def test_prefix_tokens_are_asked_of_the_model_around_the_layer(
    attributes: dict[str, int], given: int | None, untouched: int
) -> None:
    backbone = nn.Sequential(nn.Identity())
    for name, value in attributes.items():
        setattr(backbone, name, value)
    model, x = nn.Sequential(backbone, nn.Identity()), torch.randn(4, 12, 5)
    style = DSU().attach(model, "0.0", prefix_tokens=given)
    with style.active():
        out = model(x)
    changed = (out != x).any(-1).all(0)
    assert changed.tolist() == [False] * untouched + [True] * (12 - untouched)


def test_prefix_tokens_that_leave_no_patch_are_refused() -> None:
    model = nn.Identity()
    style = MixStyle().attach(model, model, prefix_tokens=7)
    with pytest.raises(ValueError, match=r"the model returned 7 tokens \(shape \(4, 7, 5\)\), none beyond the 7"):
        run_active(style, model, torch.randn(4, 7, 5))
    with pytest.raises(ValueError, match="prefix_tokens must be 0 or more, or None to ask the model, got -1"):
        MixStyle().attach(model, model, prefix_tokens=-1)


# Real backbones


def test_timm_vit_with_class_and_register_tokens() -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3, reg_tokens=4, num_classes=5, pretrained=False
    ).eval()
    x = torch.randn(4, 3, 32, 32)
    plain, tokens = model(x), []
    model.blocks[1].register_forward_hook(lambda _module, args, _output: tokens.append(args[0]))
    style = MixStyle(alpha=1.0).attach(model, ["blocks.0"])
    model(x)
    with style.active():
        mixed = model(x)
    changed = (tokens[0] != tokens[1]).flatten(2).any(-1).any(0)
    assert changed.tolist() == [False] * 5 + [True] * 16
    assert not torch.allclose(mixed, plain)
    assert torch.equal(model(x), plain)


def test_timm_resnet_trains_through_mixed_stages() -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("resnet10t", num_classes=5, pretrained=False)
    x = torch.randn(6, 3, 32, 32)
    keys = list(model.state_dict())
    style = MixStyle(alpha=1.0, domains=3).attach(model, ["layer1", "layer2", "layer3"])
    assert list(model.state_dict()) == keys
    plain = model(x)
    with style.active():
        mixed = model(x)
        mixed.square().sum().backward()
    assert not torch.allclose(mixed, plain)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def torchvision_swin() -> nn.Module:
    swin: Any = pytest.importorskip("torchvision.models.swin_transformer").SwinTransformer
    model: nn.Module = swin([4, 4], embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=[2, 2])
    return model


@pytest.mark.parametrize(
    "name", ["swin_tiny_patch4_window7_224", "test_mambaout", "samvit_base_patch16", "torchvision's swin"]
)
def test_maps_with_channels_at_the_end(name: str) -> None:
    """The style of a channel is taken over space: after mixing, each sample has a style between two samples' own."""
    timm = pytest.importorskip("timm")
    small: dict[str, dict[str, Any]] = {
        "swin_tiny_patch4_window7_224": {"img_size": 56, "embed_dim": 8, "depths": (1, 1), "num_heads": (1, 2)},
        "samvit_base_patch16": {"img_size": 64, "embed_dim": 16, "depth": 2, "num_heads": 2},
    }
    of_torchvision = name == "torchvision's swin"
    built = torchvision_swin() if of_torchvision else timm.create_model(name, pretrained=False, **small.get(name, {}))
    model = built.double().eval()
    layers = {"swin_tiny_patch4_window7_224": "layers.0", "test_mambaout": "stages.0"}
    layer = "features.1" if of_torchvision else layers.get(name, "blocks.0")
    maps: list[torch.Tensor] = []
    style = MixStyle(alpha=1.0).attach(model, layer)  # its hook comes first, so the second sees what it returns
    model.get_submodule(layer).register_forward_hook(lambda _module, _args, output: maps.append(output))
    x = torch.randn(4, 3, 64, 64, dtype=torch.float64)
    x = x[..., :56, :56] if name.startswith("swin") else x
    with torch.no_grad():
        model(x)
        with style.active():
            model(x)
    plain, mixed = maps
    assert plain.ndim == 4
    mean, new_mean = plain.mean((1, 2)), mixed.mean((1, 2))  # over height and width
    assert not torch.allclose(new_mean, mean)
    # one lam and one partner per sample explain every channel: new_mean = lam mean + (1 - lam) mean[partner]
    for sample in range(4):
        errors = []
        for partner in range(4):
            direction = mean[partner] - mean[sample]
            away = (new_mean[sample] - mean[sample]) @ direction / direction.square().sum().clamp(min=1e-30)
            errors.append(float((new_mean[sample] - mean[sample] - away * direction).abs().max()))
        assert min(errors) < 1e-9
    # and what is left after taking the style off is what it was
    torch.testing.assert_close(_without_style(mixed), _without_style(plain), rtol=0, atol=1e-9)


def test_the_convolution_of_torchvisions_swin_has_its_channels_first() -> None:
    model = torchvision_swin()
    ends = {name: ends_with_channels(model, name) for name in ("features.0.0", "features.0", "features.1.0", "permute")}
    assert ends == {"features.0.0": False, "features.0": True, "features.1.0": True, "permute": False}


def _without_style(maps: torch.Tensor) -> torch.Tensor:
    return (maps - maps.mean((1, 2), keepdim=True)) / maps.std((1, 2), keepdim=True)


@pytest.mark.parametrize("domain", [MixStyle(alpha=1.0), EFDMix(alpha=1.0), DSU()], ids=["mixstyle", "efdmix", "dsu"])
def test_maps_with_channels_at_the_end_are_mixed_as_others(domain: FeatureDomain) -> None:
    first, last = nn.Identity(), nn.Identity()
    x = torch.randn(4, 5, 6, 7, dtype=torch.float64)
    expected = run_active(domain.attach(first, first), first, x)
    domain.detach()
    found = run_active(domain.attach(last, last, channels_last=True), last, x.permute(0, 2, 3, 1).contiguous())
    domain.detach()
    assert found.is_contiguous()
    torch.testing.assert_close(found.permute(0, 3, 1, 2), expected)
    assert not torch.allclose(expected, x)


def test_a_mixer_of_timm_has_no_class_token() -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("mixer_s32_224", img_size=64, pretrained=False).eval()
    tokens: list[torch.Tensor] = []
    style = MixStyle(alpha=1.0).attach(model, "blocks.0")
    model.blocks[0].register_forward_hook(lambda _module, _args, output: tokens.append(output))
    x = torch.randn(4, 3, 64, 64)
    model(x)
    with style.active():
        model(x)
    assert (tokens[0] != tokens[1]).any(-1).any(0).all()


# Copies


def test_state_dict_is_unchanged() -> None:
    model = network()
    before = model.state_dict()
    MixStyle().attach(model, ["0", "1"])
    Fourier().attach(model)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)
    network().load_state_dict(after)


def test_a_deep_copy_of_the_model_hangs_on_the_same_switch() -> None:
    model, x = network().eval(), images()
    style = MixStyle().attach(model, ["0"])
    twin, same = copy.deepcopy((model, style))
    assert same is style
    assert torch.equal(twin(x), model(x))
    assert torch.equal(run_active(style, twin, x), run_active(style, model, x))
    assert not torch.allclose(run_active(style, twin, x), twin(x))
    with pytest.raises(ValueError, match="already attached"):
        style.attach(twin, "0")


def test_pickled_together_model_and_domain_stay_tied() -> None:
    model, x = network().eval(), images()
    style = MixStyle(generator=torch.Generator().manual_seed(3)).attach(model, ["0"])
    with style.active():
        payload = pickle.dumps((model, style))
        model(x)
    twin, twin_style = pickle.loads(payload)
    assert torch.equal(twin(x), model(x))
    assert not torch.allclose(run_active(twin_style, twin, x), twin(x))
    twin_style.detach()
    with pytest.warns(RuntimeWarning, match="no layer ran"), twin_style.active():
        assert torch.equal(twin(x), model(x))


@pytest.mark.parametrize("domain", [MixStyle(), Fourier()])
def test_a_model_pickled_alone_comes_back_inert(domain: MixStyle | Fourier, tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Identity()), images()
    domain.attach(model, "0")
    with domain.active():
        torch.save(model, tmp_path / "model.pt")
        twin = torch.load(tmp_path / "model.pt", weights_only=False)
        assert torch.equal(twin(x), x)
        assert not torch.allclose(model(x), x)


# torch.compile


@pytest.fixture
def dynamo() -> None:
    torch._dynamo.reset()


@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize(
    "domain", [MixStyle(p=0.999, domains=2), EFDMix(), DSU(), Fourier()], ids=lambda domain: type(domain).__name__
)
def test_compiled_without_a_break_and_once_for_each_position_of_the_switch(domain: VirtualDomain) -> None:
    graphs = 0

    def count(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return graph.forward

    model, x = network().eval(), images()
    plain = model(x)
    domain.attach(model, "0")
    fast = compiled(model, backend=count, fullgraph=True)
    outputs = []
    for _ in range(3):
        assert torch.equal(fast(x), plain)
        with domain.active():
            outputs.append(fast(x))
    assert graphs == 2
    for output, other in zip(outputs, [*outputs[1:], plain], strict=True):
        assert not torch.allclose(output, other)


def mixed_with_default_draws(features: Tensor) -> Tensor:
    """What compiled code must give: the formula with numbers from torch's default generator."""
    draw = Draw.like(features, None)
    partner = draw.partner(len(features), None)
    return mix_style(features.flatten(2), draw.beta(1.0, len(features)), partner).view(features.shape)


@pytest.mark.usefixtures("dynamo")
def test_compiled_gradients_equal_the_formula_with_the_same_draws() -> None:
    model, x = network().eval(), images()
    twin = network_without_hooks(model)
    style = MixStyle(alpha=1.0).attach(model, "0")
    fast = compiled(model, backend="aot_eager_decomp_partition", fullgraph=True)
    with style.active():
        out = run(fast, x)
    torch.manual_seed(5)
    expected = twin[1:](mixed_with_default_draws(twin[0](x)))
    torch.testing.assert_close(out, expected)
    gradients = torch.autograd.grad(out.square().sum(), list(model.parameters()))
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.square().sum(), list(twin.parameters())))


@pytest.mark.usefixtures("dynamo")
def test_inductor_equals_the_formula_with_the_same_draws() -> None:
    model, x = nn.Identity(), images()
    style = MixStyle(alpha=1.0).attach(model, model)
    options = {"fallback_random": True}
    if hasattr(torch._inductor.config, "cpp_cache_precompile_headers"):
        options["cpp_cache_precompile_headers"] = False  # two small kernels compile sooner than the headers for them
    fast = compiled(model, options=options, fullgraph=True)
    with style.active():
        out = run(fast, x)
    torch.manual_seed(5)
    torch.testing.assert_close(out, mixed_with_default_draws(x))


@pytest.mark.usefixtures("dynamo")
def test_attaching_after_the_first_compiled_call_warns_instead_of_doing_nothing_silently() -> None:
    model, x = network().eval(), images()
    fast = compiled(model, backend="eager")
    plain = fast(x)
    style = MixStyle().attach(fast, "0")
    with pytest.warns(RuntimeWarning, match="before the first compiled call"), style.active():
        fast(x)
    torch._dynamo.reset()
    with style.active():
        assert not torch.allclose(fast(x), plain)


# DDP


def gradients_under_ddp() -> None:
    """On a rank: the average over ranks of what each finds with its own mixture."""
    rank = dist.get_rank()
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 2)).double()
    parallel = DistributedDataParallel(copy.deepcopy(plain))
    style = MixStyle(alpha=1.0).attach(parallel, ["1"])
    style.attach(plain, ["1"])

    torch.manual_seed(100 + rank)
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    for model in (plain, parallel):
        torch.manual_seed(200 + rank)
        with style.active():
            model(x).square().sum().backward()
    for own, shared in zip(plain.parameters(), parallel.parameters(), strict=True):
        assert own.grad is not None
        assert shared.grad is not None
        dist.all_reduce(own.grad)
        torch.testing.assert_close(shared.grad, own.grad / dist.get_world_size())

    torch.manual_seed(200 + rank)
    with style.active():
        mixed = parallel(x)
    assert not torch.allclose(mixed, parallel(x)), "MixStyle left the batch alone"


def test_ddp_averages_gradients_of_each_ranks_own_mixture(tmp_path: Path) -> None:
    assert run_ranks({"gradients": gradients_under_ddp}, tmp_path)["gradients"] == [None, None]
