"""Devices by the words of the command line."""

import pytest
import torch

from mecam.training.machine import find_machine


def test_a_cpu_is_always_there_and_exact() -> None:
    machine = find_machine("cpu")
    assert machine.device == torch.device("cpu")
    assert (machine.precision, machine.autocast) == ("fp32", None)
    assert find_machine("cpu", "bf16").autocast == torch.bfloat16
    assert machine.writes
    described = machine.describe()
    assert described["device"] == "cpu"
    assert described["ranks"] == 1
    assert described["torch"] == torch.__version__


def test_devices_that_are_not_there() -> None:
    with pytest.raises(ValueError, match="device='gpu' is not a device torch knows"):
        find_machine("gpu")
    if not torch.cuda.is_available():
        assert find_machine("auto").device.type == "cpu"
        with pytest.raises(ValueError, match="torch sees no CUDA device here; give --device cpu"):
            find_machine("cuda")


def test_one_process_of_several_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = find_machine("cpu")
    monkeypatch.setenv("RANK", "1")
    assert not machine.writes
