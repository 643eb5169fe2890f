"""Lists show the values that runs use."""

import re

from mecam.listing import lines
from mecam.optim import OPTIMIZERS
from mecam.profiles import V1
from mecam.recipe import Recipe


def blocks(kind: str) -> dict[str, list[str]]:
    """The lines below each name of a verbose list."""
    details: dict[str, list[str]] = {}
    for line in lines(kind, verbose=True)[1:]:
        if not line.startswith("      "):
            name = line.strip().partition(":")[0]
            details[name] = []
        else:
            details[name].append(line.strip())
    return details


def test_an_optimizer_is_listed_with_the_rates_of_its_runs() -> None:
    listed = blocks("optimizers")
    for name in OPTIMIZERS:
        shapes, other = Recipe(optimizer=name), Recipe(optimizer=name, data="PACS")
        assert f"lr = {shapes.lr:g} ({other.lr:g} for other data): learning rate" in listed[name]
        assert sum(line.startswith(("lr =", "weight_decay =")) for line in listed[name]) == 2
    assert "lr = 0.009 (0.00015 for other data): learning rate" in listed["yogi"]
    assert any(line.startswith("momentum = 0.9: ") for line in listed["sgd"])


def test_profiles_stand_side_by_side() -> None:
    text = lines("profiles")
    assert any(f"{V1} with its weights, frozen batch norm, images of 224 pixels" in line for line in text)
    header = next(line for line in text if "OfficeHome  " in line)
    assert re.split(r"\s{2,}", header.strip()) == [
        "paper: PACS", "VLCS", "OfficeHome", "TerraIncognita", "DomainNet", "domainbed", "on DomainNet"
    ]  # fmt: skip
    cells = {line[2:].partition("  ")[0]: line.split()[-7:] for line in text[text.index(header) + 1 :]}
    assert cells["lr"] == ["3e-05", "1e-05", "1e-05", "1e-05", "3e-05", "5e-05", "5e-05"]
    assert cells["mecam lr"][:5] == ["3e-05", "1e-06", "1e-05", "1e-05", "3e-05"]
    assert cells["weight_decay"] == ["0.0001"] * 4 + ["1e-06", "0", "0"]
    assert cells["sagm alpha"] == ["0.001", "0.001", "0.0005", "0.001", "0.0005", "0.001", "0.001"]
    defaults = {"mecam rho": "0.1", "mecam alpha": "0.1", "sgd momentum": "0.9", "swad tolerance": "0.3"}
    assert {name: cells[name][-1] for name in defaults} == defaults
    assert not any("default" in cell for row in cells.values() for cell in row)
    assert cells["steps"] == ["5000"] * 4 + ["15000", "5000", "15000"]
    assert cells["arm batch"] == ["8"] * 7


def test_a_profile_is_an_entry_of_recipes() -> None:
    assert "  profile = not given (paper or domainbed: see mecam list profiles)" in lines("recipe")
