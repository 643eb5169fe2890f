"""The page of attacks is made from the results of marked tests."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = """
<testcase name="test_a_kill[1]">{Kills}</testcase>
<testcase name="test_a_kill[2]">{Kills}</testcase>
<testcase name="test_a_bit">{Damage}</testcase>
<testcase name="test_a_link">{Damage}<skipped/></testcase>
<testcase name="test_none"/>
"""
FAILED = '<testcase name="test_a_bit">{Damage}<failure/></testcase>'


@pytest.fixture(scope="module")
def clauses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("docs") / "reliability.md"
    file.write_text("# Reliability\n\n## Kills\n\n## Damage\n\n## Load\n", encoding="utf-8")
    return file


def torture(cases: str, clauses: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run the script on results of pytest."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import torture

    def call(command: list[str], **_: object) -> int:
        (results,) = (word.partition("=")[2] for word in command if word.startswith("--junitxml="))
        marks = {c: f'<properties><property name="attack" value="{c}"/></properties>' for c in ("Kills", "Damage", "X")}
        Path(results).write_text(f"<testsuites>{cases.format_map(marks)}</testsuites>", encoding="utf-8")
        return 1 if "<failure" in cases else 0

    monkeypatch.setattr(subprocess, "call", call)
    monkeypatch.setattr(sys, "argv", ["benchmarks/torture.py", "--clauses", str(clauses), *words])
    return int(torture.main())


def test_attacks_are_counted_by_clause(
    clauses: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert torture(CASES, clauses, monkeypatch) == 0
    page = capsys.readouterr().out
    assert "- not made here: 1\n" in page
    assert "**attacks 3 / survived 3 / broken 0**" in page
    assert "## Kills\n\n| attack | survived | broken | not made |\n| --- | ---: | ---: | ---: |\n" in page
    assert "\n| a kill | 2 | 0 | 0 |\n\n## Damage\n" in page
    assert page.endswith("\n## Load\n\nNo attack.\n")


def test_an_attack_that_broke_something_fails(
    clauses: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert torture(CASES + FAILED, clauses, monkeypatch) == 1
    page = capsys.readouterr().out
    assert "**attacks 4 / survived 3 / broken 1**" in page
    assert "\n| a bit | 1 | 1 | 0 |\n" in page


def test_a_part_is_made_again(clauses: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("## Kills\n\n| a kill | 1 | 7 | 0 |\n\n## Load\n\n| a load | 5 | 0 | 0 |\n", encoding="utf-8")
    assert torture(CASES, clauses, monkeypatch, "--update", "--out", str(page)) == 0
    assert "\n| a kill | 2 | 0 | 0 |\n" in page.read_text(encoding="utf-8")
    assert "\n| a load | 5 | 0 | 0 |\n" in page.read_text(encoding="utf-8")


def test_a_clause_that_the_page_lacks_is_an_error(clauses: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"test_y: docs/reliability\.md has no clause 'X'"):
        torture(CASES + '<testcase name="test_y">{X}</testcase>', clauses, monkeypatch)
