"""What packagers and visitors read agrees with the package."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import mecam

ROOT = Path(__file__).parents[2]
EXTRAS = {
    "cli",
    "lite",
    "timm",
    "optimizers",
    "export",
    "analysis",
    "report",
    "serve",
    "tensorboard",
    "ray",
    "lightning",
    "lora",
}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_there_is_an_extra_for_every_optional_part_and_one_for_all(project: dict[str, Any]) -> None:
    extras = project["optional-dependencies"]
    assert set(extras) == EXTRAS | {"all"}
    (everything,) = extras["all"]
    assert set(re.fullmatch(r"mecam\[(.*)\]", everything)[1].split(",")) == EXTRAS  # type: ignore[index]


def test_every_extra_that_a_message_names_exists(project: dict[str, Any]) -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    named = {name for group in re.findall(r"'(?:mecam|\.)\[([a-z,]+)\]'", text) for name in group.split(",")}
    assert named
    assert named <= set(project["optional-dependencies"])


def test_the_changelog_begins_with_this_version_and_dates_earlier_ones() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (newest, _), *earlier = re.findall(r"^## (\S+) - (\S+)$", text, flags=re.MULTILINE)
    assert newest == mecam.__version__
    assert earlier
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for _, date in earlier)
    kinds = set(re.findall(r"^### (.+)$", text, flags=re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == mecam.__version__
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    (paper,) = citation["references"]
    assert paper["title"] == "Meta Curvature-Aware Minimization for Domain Generalization"
    assert [author["family-names"] for author in paper["authors"]] == ["Chen", "Ye", "Tang", "Pan", "Xia"]


def test_hooks_run_tools_of_the_environment() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    entries = [hook["entry"] for repository in config["repos"] for hook in repository["hooks"]]
    assert entries
    for entry in entries:
        tool = entry.split()[0]
        assert tool.startswith(".venv/bin/")
        assert (Path(sys.executable).parent / Path(tool).name).exists()


@pytest.mark.parametrize("name", ["bug.yml", "idea.yml"])
def test_forms_ask_for_what_is_needed(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    assert any(field.get("validations", {}).get("required") for field in form["body"])
