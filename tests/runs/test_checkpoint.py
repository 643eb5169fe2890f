"""A checkpoint: what was saved comes back exactly; nothing that happens to a save or a disk goes unnoticed."""

import errno
import json
import math
import random
import struct
import subprocess
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from mecam.optim import FSAM
from mecam.runs import RunError
from mecam.runs.checkpoint import exists, load, save
from tests.optim.flat import batch, closure_for, flatten, network
from tests.runs.faults import PowerCuts, Real, before_each, failing, refusal_of

OLD, NEW = {"step": 1, "weights": torch.arange(3.0)}, {"step": 2, "weights": torch.arange(4.0)}


def is_same(a: Any, b: Any) -> bool:
    """Equal in type, value and, for floats and tensors, in every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, dict):
        return is_same(list(a), list(b)) and is_same(list(a.values()), list(b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(is_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def bits(tensor: Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return bytes(plain.reshape(-1).view(torch.uint8).tolist()) if plain.numel() else b""


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=True)
    | st.text()
    | st.binary(max_size=20)
    | st.builds(lambda n: torch.randn(n), st.integers(0, 3))
)
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(-3, 2**70), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=states)
def test_any_state_comes_back(tmp_path: Path, state: Any) -> None:
    with before_each(lambda *_: None, ("fsync",)):  # slow
        save(tmp_path, state)
    assert is_same(load(tmp_path), state)


@pytest.mark.parametrize(
    "state",
    [
        {1: "int", "1": "str"},
        ((), [], {}, "", b"", [()], [[()]]),
        {"dict": [["a", 1]], "tensor": "state", "int": "0x1"},  # our own tags as keys
        [0.1, 1e-320, -0.0, math.inf, -math.inf, math.nan, -math.nan, 5e-324, 1.7976931348623157e308],
        struct.unpack(">d", bytes.fromhex("7ff8dead0000beef"))[0],  # a NaN with a payload
        10**5000,  # more digits than Python prints
        [-(2**63), 2**63 - 1, 2**63, -(2**64), True, 1, False, 0],
        ["\ud800 a lone surrogate", "\0", "\n", "é"],
        bytes(range(256)),
    ],
    ids=lambda state: str(type(state).__name__),
)
def test_awkward_values_come_back(tmp_path: Path, state: Any) -> None:
    save(tmp_path, state)
    assert is_same(load(tmp_path), state)


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    base = torch.randn(4, 6)
    complex_base = torch.randn(3, dtype=torch.complex64)
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.complex64)
    whole = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
    return {
        **{str(dtype): torch.randn(2, 3).to(dtype) for dtype in (*floats, torch.complex128, torch.complex32)},
        **{str(dtype): torch.tensor([0, 1, 100], dtype=dtype) for dtype in whole},
        "largest": torch.tensor([2**63 - 1, -(2**63)]),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(3.5),
        "scalar bf16": torch.tensor(1.1, dtype=torch.bfloat16),
        "scalar bool": torch.tensor(True),
        "scalar complex": torch.tensor(1 + 2j, dtype=torch.complex128),
        "empty": torch.zeros(0, 3),
        "empty too": torch.zeros(0, 3),
        "transposed": base.t(),
        "strided": base[::2, 1::3],
        "shared": base,
        "part": base[1:3],
        "expanded": torch.ones(1).expand(5),
        "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "conjugate": complex_base.conj(),
        "conjugate double": torch.randn(3, dtype=torch.complex128).conj(),
        "negative view": complex_base.conj().imag,
        "special": torch.tensor([math.nan, math.inf, -math.inf, -0.0]),
        "needs gradient": torch.randn(3, requires_grad=True) * 2,
    }


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_any_tensor_comes_back_on_memory_of_its_own(tmp_path: Path) -> None:
    state = tensors()
    save(tmp_path, state)
    back = load(tmp_path)
    assert list(back) == list(state)
    for name, tensor in state.items():
        assert is_same(back[name], tensor.detach()), name
        assert back[name].device.type == "cpu"
    for tensor in back.values():
        tensor.zero_()  # writable, and
    assert is_same(load(tmp_path)["shared"], state["shared"])
    again = load(tmp_path)
    again["shared"].zero_()
    assert is_same(again["part"], state["part"])  # apart


def test_strides_come_back(tmp_path: Path) -> None:
    base = torch.randn(2, 3, 4, 5)
    tensors = {
        "channels last": base.to(memory_format=torch.channels_last),
        "channels last, 1x1": torch.randn(6, 3, 1, 1).to(memory_format=torch.channels_last),
        "permuted": base.permute(3, 0, 2, 1),
        "expanded": torch.randn(2, 1).expand(2, 3),
        "a part": base[:, 1:],
        "empty": torch.empty(0, 3).t(),
    }
    save(tmp_path, tensors)
    loaded = load(tmp_path)
    assert is_same(loaded, {name: tensor.contiguous() for name, tensor in tensors.items()})
    for name in ("channels last", "channels last, 1x1", "permuted"):
        assert loaded[name].stride() == tensors[name].stride(), name
    for name in ("expanded", "a part"):
        assert loaded[name].is_contiguous(), name


def test_a_fused_optimizer_resumes_on_a_network_in_channels_last(tmp_path: Path) -> None:
    images = torch.randn(2, 3, 4, 4)

    def build() -> tuple[nn.Module, FSAM]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).to(memory_format=torch.channels_last)
        return model, FSAM(model.parameters(), torch.optim.Adam, lr=0.1, fused=True)

    def train(model: nn.Module, optimizer: FSAM, steps: int) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(images).square().mean()
            loss.backward()
            return loss

        for _ in range(steps):
            optimizer.step(closure)

    model, optimizer = build()
    train(model, optimizer, 1)
    save(tmp_path, [model.state_dict(), optimizer.state_dict()])
    train(model, optimizer, 2)
    resumed, fresh = build()
    resumed_state, optimizer_state = load(tmp_path)
    resumed.load_state_dict(resumed_state)
    fresh.load_state_dict(optimizer_state)
    weight = next(resumed.parameters())
    assert {value.stride() for value in fresh.state[weight].values() if value.dim() == 4} == {weight.stride()}
    train(resumed, fresh, 2)
    assert is_same(dict(resumed.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize(
    ("state", "restored"),
    [
        (nn.Parameter(torch.ones(2)), torch.ones(2)),
        (OrderedDict([("b", 1), ("a", 2)]), {"b": 1, "a": 2}),
    ],
)
def test_subclasses_come_back_as_plain_tensors_and_dicts(tmp_path: Path, state: Any, restored: Any) -> None:
    save(tmp_path, state)
    assert is_same(load(tmp_path), restored)


def test_arrays_come_back_as_arrays(tmp_path: Path) -> None:
    state = {
        "key": np.arange(5, dtype=np.uint32),
        "view": np.arange(12.0).reshape(3, 4)[:, ::2],
        "scalar": np.array(2.5),
        "complex": np.array([1 + 2j]),
    }
    save(tmp_path, state)
    back = load(tmp_path)
    assert is_same(back, {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in state.items()})
    back["key"][0] = 7


def test_random_states_resume_with_the_same_draws(tmp_path: Path) -> None:
    python, legacy, modern = random.Random(1), np.random.RandomState(2), np.random.default_rng(3)
    mersenne, philox = torch.Generator().manual_seed(4), np.random.Generator(np.random.Philox(5))
    python.gauss(0, 1), legacy.standard_normal()  # both have a second normal in store now

    def draws() -> list[Any]:
        return [
            [python.gauss(0, 1), python.random()],
            [legacy.standard_normal(), legacy.random_sample()],
            [modern.random(), philox.random(), modern.integers(2**40)],
            [torch.rand(3, generator=mersenne).tolist(), torch.randn(3).tolist()],
        ]

    torch.randn(3)
    states = {
        "python": python.getstate(),
        "legacy": legacy.get_state(),
        "modern": modern.bit_generator.state,
        "philox": philox.bit_generator.state,
        "generator": mersenne.get_state(),
        "torch": torch.get_rng_state(),
    }
    save(tmp_path, states)
    expected = draws()
    draws()
    back = load(tmp_path)
    assert is_same(back, states)
    python.setstate(back["python"])
    legacy.set_state(back["legacy"])
    modern.bit_generator.state = back["modern"]
    philox.bit_generator.state = back["philox"]
    mersenne.set_state(back["generator"])
    torch.set_rng_state(back["torch"])
    assert draws() == expected


@pytest.mark.parametrize("kind", ["adam", "fsam"])
def test_optimizers_resume_bit_for_bit(tmp_path: Path, kind: str) -> None:
    x, y = batch()

    def build() -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        model = network()
        optimizer: torch.optim.Optimizer
        if kind == "adam":
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1, amsgrad=True)
        else:
            optimizer = FSAM(model.parameters(), torch.optim.Adam, lr=0.1, rho=torch.tensor(0.1))
        return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])

    def train(
        model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler.LRScheduler
    ) -> Tensor:
        for _ in range(3):
            optimizer.step(closure_for(optimizer, model, x, y))
            scheduler.step()
        return flatten(list(model.parameters()))

    first = build()
    train(*first)
    state = [part.state_dict() for part in first]
    save(tmp_path, state)
    back = load(tmp_path)
    assert back[1]["param_groups"][0]["betas"] == (0.9, 0.999)
    assert isinstance(back[1]["param_groups"][0]["betas"], tuple)
    assert list(back[1]["state"]) == [0, 1, 2, 3]
    assert is_same(back[1], state[1])
    expected = train(*first)
    second = build()
    for part, saved in zip(second, back, strict=True):
        part.load_state_dict(saved)
    assert torch.equal(train(*second), expected)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [np.float64(1)]}, r"state\['a'\]\[0\] is a numpy.float64"),
        ({"a": np.int64(1)}, r"state\['a'\] is a numpy.int64"),
        ({"a": {1, 2}}, r"state\['a'\] is a builtins.set"),
        ((print,), r"state\[0\] is a builtins.builtin_function"),
        ({True: 1}, "key True of type bool"),
        ({(1, 2): 1}, r"key \(1, 2\) of type tuple"),
        ({"a": torch.Size([1])}, "torch.Size"),
        ({"a": np.array([object()])}, "numpy array of object"),
        ({"a": torch.eye(2).to_sparse()}, r"state\['a'\] is a torch.sparse_coo tensor"),
        ({"a": torch.empty(2, device="meta")}, r"state\['a'\] is a torch.strided tensor on meta"),
    ],
)
def test_what_would_not_come_back_is_refused_before_anything_is_written(
    tmp_path: Path, state: Any, message: str
) -> None:
    save(tmp_path, OLD)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(TypeError, match=message):
        save(tmp_path, state)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_holds_one_checkpoint_in_open_formats(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "checkpoint"
    assert not exists(folder)
    for _ in range(3):
        save(folder, NEW)
    assert exists(folder)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["manifest.json", "tensors-000003.safetensors", "tree-000003.json"]
    assert list(load_file(folder / names[1])) == ["state['weights']"]
    assert json.loads((folder / names[2]).read_bytes())["dict"][0] == ["step", 2]


@pytest.mark.attack("Kills, full disks, power cuts")
def test_what_a_failed_save_left_makes_room_for_the_next_one(tmp_path: Path) -> None:
    save(tmp_path, OLD)
    (tmp_path / "tensors-000002.safetensors").touch()
    (tmp_path / ".mecam-0123456789abcdef.part").touch()
    seen: list[list[str]] = []

    def look(_name: str, real: Real, args: tuple[Any, ...]) -> Any:
        seen.append(sorted(path.name for path in tmp_path.iterdir()))
        return real(*args)

    with before_each(look, ("open",)):
        save(tmp_path, NEW)
    assert seen[0] == ["manifest.json", "tensors-000001.safetensors", "tree-000001.json"]


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", "tensors-x.safetensors", "tree.json"):
        (tmp_path / name).touch()
    save(tmp_path, OLD)
    save(tmp_path, NEW)
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.attack("Damage")
@pytest.mark.parametrize("part", ["manifest", "tensors", "tree"])
def test_damage_is_detected_and_names_the_file(tmp_path: Path, part: str) -> None:
    save(tmp_path, NEW)
    file = next(tmp_path.glob(f"{part}*"))
    content = file.read_bytes()
    flips = [content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :] for i in range(len(content))]
    for damage in [*flips, content[:-3], content + b"x", b"", None]:
        file.unlink()
        if damage is not None:
            file.write_bytes(damage)
        refusal = refusal_of(lambda: load(tmp_path))
        assert refusal is not None
        assert str(file) in refusal
        file.write_bytes(content)
    assert is_same(load(tmp_path), NEW)


def test_a_checkpoint_of_another_version_is_reported(tmp_path: Path) -> None:
    from mecam.runs import checkpoint

    save(tmp_path, NEW)
    parts = checkpoint._parts(tmp_path)
    parts["tree"] = checkpoint._write(tmp_path / parts["tree"]["name"], b'{"complex number": 1}', checkpoint.UNCLAIMED)
    manifest = {"parts": parts, "sha256": checkpoint.digest(checkpoint._canonical(parts))}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match=r"complete but not understood .*another version"):
        load(tmp_path)


@pytest.mark.attack("Kills, full disks, power cuts")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_call_leaves_a_checkpoint_and_the_next_save_cleans_up(tmp_path: Path, error: int) -> None:
    at, outcomes = 0, []
    while True:
        at += 1
        save(tmp_path, OLD)
        with before_each(failing(at, error)):
            refusal = refusal_of(lambda: save(tmp_path, NEW))
        if refusal is not None:
            assert str(tmp_path) in refusal
            assert ("make room" in refusal) == (error == errno.ENOSPC)
        state = load(tmp_path)
        assert any(is_same(state, whole) for whole in (OLD, NEW))
        outcomes.append((refusal is not None, state["step"]))
        if refusal is None and len(list(tmp_path.iterdir())) == 3:
            break
    # up to the manifest's move the old one, then the new one; a former file that stays is no failure
    assert [step for _, step in outcomes] == sorted(step for _, step in outcomes)
    assert outcomes[0] == (True, 1)
    assert outcomes[-1] == (False, 2)
    assert (False, 1) not in outcomes


@pytest.mark.attack("Kills, full disks, power cuts")
def test_a_power_cut_at_any_call_leaves_a_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    save(folder, OLD)
    steps: list[int] = []

    def look(files: dict[str, bytes]) -> None:
        left = Path(tempfile.mkdtemp(dir=tmp_path))
        for name, content in files.items():
            (left / name).write_bytes(content)
        state = load(left)
        assert any(is_same(state, whole) for whole in (OLD, NEW))
        steps.append(state["step"])

    disk = PowerCuts(folder, look)
    with before_each(disk):
        save(folder, NEW)
    assert set(steps) == {1, 2}
    assert disk.cuts > 30
    steps.clear()
    disk.cut()
    assert set(steps) == {2}


@pytest.mark.attack("Kills, full disks, power cuts")
def test_kills_at_every_call(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.runs.kills", str(tmp_path)], cwd=root, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    kills = json.loads(ended.stdout)
    assert kills["kill_saves"] >= 25
    assert kills["kill_runs"] >= 90
