"""Every averaging by name."""

import pytest

from mecam.averaging import AVERAGINGS, EMA, SWAD, NoAveraging, create


def test_all_are_listed() -> None:
    assert dict(AVERAGINGS) == {"none": NoAveraging, "ema": EMA, "swad": SWAD}


@pytest.mark.parametrize("name", AVERAGINGS)
def test_hyperparameters_are_what_can_be_set_and_their_defaults_are_allowed(name: str) -> None:
    averaging, defaults = AVERAGINGS[name], AVERAGINGS.defaults(name)
    assert averaging.name == name
    assert averaging.__doc__
    for setting, hyperparameter in averaging.hyperparameters.items():
        assert hyperparameter.meaning
        hyperparameter.check(name, setting, defaults[setting])
    assert type(create(name, **defaults)) is averaging


def test_the_papers_settings_are_the_defaults() -> None:
    settings = {"n_converge": 3, "n_tolerance": 6, "tolerance": 0.3, "judge": "current"}
    assert AVERAGINGS.defaults("swad") == settings | {"segment_loss": None}  # an older spelling of judge
    assert AVERAGINGS.defaults("none") == {}
    made = create("swad", tolerance=0.2)
    assert isinstance(made, SWAD)
    assert (made.tolerance, made.n_converge) == (0.2, 3)


def test_unknown_settings_show_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"swad has no setting 'decay'; .*t has n_converge, n_tolerance, tolerance"):
        create("swad", decay=0.9)
    with pytest.raises(ValueError, match="none has no setting 'decay'; it has none"):
        create("none", decay=0.9)
