"""Names of splits in records, and what tables and figures read from them."""

import pytest

from mecam.splits import Part, Split, Summary, balanced_accuracy, is_majority, summarize


@pytest.mark.parametrize("domain", ["photo", "photo out", "two words", "in", ""])
def test_names_are_parsed_back_whatever_the_domain_is_called(domain: str) -> None:
    for part in Part:
        split = Split(domain, part)
        assert Split.parse(str(split)) == split
    assert str(Split("photo", Part.HELD_OUT)) == "photo out"


@pytest.mark.parametrize("name", ["photo", "photo test", "photoin", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid Part"):
        Split.parse(name)


def stored(**losses: float) -> dict[str, dict[str, float]]:
    return {name.replace("_", " "): {"accuracy": 1 - loss, "loss": loss} for name, loss in losses.items()}


def test_summary_of_a_record() -> None:
    splits = stored(art_in=0.0, art_out=0.5, photo_out=0.25, sketch_in=0.75, sketch_out=1.0)
    assert summarize(splits, "sketch") == Summary(0.625, 0.25, 0.0)
    assert summarize(splits, "sketch", "loss") == Summary(0.375, 0.75, 1.0)
    assert summarize(splits, "sketch out") == Summary((0.5 + 0.75 + 0.0) / 3, None, None)
    assert summarize(stored(art_in=0.0), None) == Summary(None, None, None)


def test_without_a_target_every_domain_is_a_source() -> None:
    assert summarize(stored(None_out=0.5, None_in=1.0), None) == Summary(0.5, None, None)
    assert balanced_accuracy({"None in": {"balanced_accuracy": 0.5}}, None) is None


def test_an_accuracy_is_that_of_naming_the_most_frequent_class() -> None:
    assert is_majority(0.905, 0.9, 2), "of 100 errors in 1,000 images, 5 are avoided"
    assert not is_majority(0.93, 0.9, 2)
    assert is_majority(0.2, 0.3, 7)
    assert not is_majority(0.5, 0.5, 2), "classes are balanced"
