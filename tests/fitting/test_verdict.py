"""The verdict: intervals over domains, choices that no domain makes for itself."""

from pathlib import Path

import pytest

from mecam.fitting.verdict import Verdict, interval, nested, recalls


def test_the_interval_is_students_over_domains() -> None:
    low, high = interval([70.0, 80.0, 90.0])
    half = 4.302652729911275 * 10 / 3**0.5  # t of 2 degrees of freedom, standard deviation 10
    assert (low, high) == (pytest.approx(80 - half), 100.0)
    assert interval([50.0]) == (0.0, 100.0)
    assert interval([60.0, 60.0]) == (60.0, 60.0)


def test_no_domain_chooses_for_itself() -> None:
    tried = {"head": {"a": 50.0, "b": 60.0, "c": 70.0}, "all": {"a": 90.0, "b": 55.0, "c": 60.0}}
    # without a, the head is better: 65 against 57.5. Without b, all weights: 75 against 60; without c: 72.5 against 55
    assert nested(tried) == {"a": 50.0, "b": 55.0, "c": 60.0}
    assert nested({"head": tried["head"]}) == tried["head"]


def test_recalls_are_means_over_the_domains_that_have_the_class() -> None:
    results = {
        "a": {"splits": {"a in": {"recall": [1.0, None]}, "b out": {"recall": [0.0, 0.0]}}},
        "b": {"splits": {"b in": {"recall": [0.5, 0.2]}}},
    }
    assert recalls(results, ["cat", "dog", "eel"][:2]) == {"cat": 75.0, "dog": 20.0}


def verdict(**values: object) -> Verdict:
    entries = {
        "path": Path("model"), "chosen": "head", "accuracy": 80.0, "low": 60.0, "high": 100.0,
        "by_domain": {"clinic": 75.0, "lab": 85.0}, "by_class": {"cat": 90.0, "dog": 70.0}, "majority": 50.0,
        "others": {}, "seconds": 1.0,
    }  # fmt: skip
    return Verdict(**{**entries, **values})  # type: ignore[arg-type]


def test_what_is_printed() -> None:
    lines = verdict(notes=("a note",)).lines()
    assert lines[0] == (
        "expected accuracy in a new domain: 80.0 %, 95 % interval 60.0 to 100.0 % over 2 domains, each left out in turn"
    )
    assert lines[1] == "by left-out domain: clinic 75.0 %, lab 85.0 %"
    assert lines[2] == "weakest class: dog, 70.0 % of its images; weakest domain: clinic"
    assert lines[-1] == "a note"
    assert not any("most frequent class" in line for line in lines)
    assert any("most frequent class would be right in 78.0 %" in line for line in verdict(majority=78.0).lines())


def test_balanced_accuracy_is_printed_where_classes_differ_not_where_the_choice_does() -> None:
    of_class = {"cat": 50.0, "dog": 70.0}
    assert "balanced accuracy, the mean over classes: 60.0 %" in verdict(by_class=of_class).lines()
    assert not any("balanced" in line for line in verdict(accuracy=60.0).lines())  # nested: below the choice's 80 %
