"""Virtual domains by name."""

import pytest

from mecam.virtual import DOMAINS, DSU, MixStyle, create


def test_all_are_listed() -> None:
    assert list(DOMAINS) == ["mixstyle", "efdmix", "dsu", "fourier"]


def test_built_by_name_with_settings() -> None:
    style = create("mixstyle", p=0.5, domains=3)
    assert isinstance(style, MixStyle)
    assert (style.p, style.domains) == (0.5, 3)
    assert isinstance(create("dsu"), DSU)


def test_unknown_settings_show_near_matches() -> None:
    with pytest.raises(ValueError, match=r"dsu has no setting 'alpha'; .*t has p, generator"):
        create("dsu", alpha=0.1)
    with pytest.raises(ValueError, match="mixstyle has no setting 'alhpa'; did you mean alpha"):
        create("mixstyle", alhpa=0.1)
