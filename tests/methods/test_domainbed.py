"""The list of methods has every algorithm that DomainBed registers."""

from pathlib import Path

import pytest

from mecam.methods import METHODS

REGISTERED = (
    "ERM", "ERMPlusPlus", "Fish", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "CDANN", "MTL",
    "SagNet", "ARM", "VREx", "RSC", "SD", "ANDMask", "SANDMask", "IGA", "SelfReg", "Fishr", "TRM", "IB_ERM",
    "IB_IRM", "CAD", "CondCAD", "Transfer", "CausIRL_CORAL", "CausIRL_MMD", "EQRM", "RDM", "ADRMX", "URM",
)  # fmt: skip


@pytest.mark.parametrize("algorithm", REGISTERED)
def test_it_is_a_method(algorithm: str) -> None:
    assert algorithm.lower().replace("_", "") in METHODS


def test_the_page_names_every_method() -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    assert not [name for name in METHODS if f"`{name}`" not in page]
