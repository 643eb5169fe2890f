"""The workflows on GitHub run commands that exist here, with the rights that they need and no others."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.stem: path for path in (ROOT / ".github" / "workflows").glob("*.yml")}


def jobs(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))["jobs"]
    return found


def commands(name: str) -> list[str]:
    return [step["run"] for job in jobs(name).values() for step in job.get("steps", []) if "run" in step]


def used(name: str) -> list[str]:
    steps = [step for job in jobs(name).values() for step in [job, *job.get("steps", [])]]
    return [step["uses"] for step in steps if "uses" in step]


@pytest.mark.parametrize("name", ["tests", "docs", "release"])
def test_commands_and_called_workflows_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for command in commands(name):
        program, *arguments = command.split()
        assert program in ("make", "test") or os.access(ROOT / program, os.X_OK), command
        assert program != "make" or arguments[0] in targets, command
    for called in used(name):
        assert not called.startswith("./") or (ROOT / called).is_file(), called


def test_the_tests_are_those_of_ci() -> None:
    assert ".ci/run" in commands("tests")
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", ["tests", "docs", "release"])
def test_actions_are_pinned_by_major_version(name: str) -> None:
    actions = [action for action in used(name) if not action.startswith("./")]
    assert actions or name == "release"
    for action in actions:
        assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", action), action


def test_a_release_is_tested_and_published_without_a_token() -> None:
    release = jobs("release")
    assert release["build"]["needs"] == "test"
    assert release["publish"]["needs"] == "build"
    assert release["publish"]["permissions"] == {"id-token": "write"}
    assert used("release")[-1].startswith("pypa/gh-action-pypi-publish@")
    assert not re.search(r"secrets\.|password:", WORKFLOWS["release"].read_text(encoding="utf-8"))


def test_what_a_page_promises_about_files_is_linked_to_where_it_is_explained() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    page, anchor = re.search(r"\((docs/[\w-]+\.md)#([\w-]+)\)", text).groups()  # type: ignore[union-attr]
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}
    for file in re.findall(r"`(tests/[\w/.]+)`", text):
        assert (ROOT / file).is_file(), file
