"""A training that is stopped, killed or fails at each of its calls below Python that change a file."""

from pathlib import Path

import pytest

from tests.reliability.test_pauses import attack

PARTS = 5


@pytest.mark.attack("Several processes")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("way", ["pause", "pause@20", "pause@60"])
def test_pauses_longer_than_the_lease_at_every_call(way: str, part: int, tmp_path: Path) -> None:
    sweep(way, part, tmp_path)


@pytest.mark.attack("Kills, full disks, power cuts")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("way", ["SIGKILL", "ENOSPC", "EIO"])
def test_faults_below_python_at_every_call(way: str, part: int, tmp_path: Path) -> None:
    sweep(way, part, tmp_path)


def sweep(way: str, part: int, folder: Path) -> None:
    found = attack(folder, f"{way}:{part}/{PARTS}")
    assert found["wrong"] == []
    assert found["made"] > 10
