"""Files of runs and stores, damaged one at a time in every way."""

import random
from pathlib import Path

import pytest

from tests.reliability.damage import WAYS, Findings, Patient, examine, patients

MUTATIONS = 12  # per kind of folder and way, in turn through its files
KINDS = ("finished run", "unfinished run", "decoded store", "encoded store", "half a store")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Patient]:
    return {patient.name: patient for patient in patients(tmp_path_factory.mktemp("folders"))}


@pytest.mark.attack("Damage")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_files_damaged_one_at_a_time(kind: str, way: str, folders: dict[str, Patient], tmp_path: Path) -> None:
    """What is read is an error that names the file, or is correct."""
    findings = Findings()
    examine(folders[kind], tmp_path / "scratch", MUTATIONS, random.Random(f"{kind} {way}"), findings, [way])
    assert findings.wrong == []
    assert findings.mutations > 0
