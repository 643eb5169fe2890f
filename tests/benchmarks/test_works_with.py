"""The page of what works is made from the results of marked tests."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.works_with("pip", "a | b", packages=["pytest"])
@pytest.mark.parametrize("case", range(3))
def test_marked(case, record_property):
    if case:
        record_property("outcome", "refused")

@pytest.mark.works_with("Apt", "c", packages=["pytest"])
def test_skipped():
    pytest.skip()

@pytest.mark.works_with("pip", "many", packages=["pytest"])
def test_counts(record_property):
    record_property("counts", '{"equal": 7, "refused": 2}')

@pytest.mark.works_with("Zypper", "d", packages=["pytest"])
def test_fails():
    assert False

def test_unmarked():
    pass
"""


def test_rows_from_marks(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_collection_modifyitems", encoding="utf-8")
    results = tmp_path / "results.xml"
    quiet = ["-q", "-p", "no:cacheprovider", "-o", "markers=works_with", f"--junitxml={results}"]
    command = [sys.executable, "-m", "pytest", *quiet, "--rootdir", str(tmp_path), str(tmp_path / "test_some.py")]
    subprocess.run(command, cwd=ROOT, check=False, capture_output=True, timeout=200)
    script = [sys.executable, str(ROOT / "benchmarks" / "works_with.py"), str(results)]
    done = subprocess.run(script, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("|")]
    found = [(framework, tried, result) for framework, tried, _, result in rows[2:]]
    assert found == [
        ("Apt", "c", "1 not run"),
        ("pip", "a b", "1 passed, 2 refused"),
        ("pip", "many", "7 equal, 2 refused"),
        ("Zypper", "d", "1 FAILED"),
    ]
