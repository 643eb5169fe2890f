"""From recipe to parts: what is refused, and when."""

import pytest

from mecam.recipe import RecipeError, make
from mecam.training.build import check_parts


def test_parts_are_refused_before_any_data_is_read() -> None:
    check_parts(make({"data": "nowhere", "optimizer": "mecam", "averaging": "swad"}))
    with pytest.raises(ValueError, match="there is no method 'erms'; did you mean erm"):
        check_parts(make({"method": "erms"}))
    with pytest.raises(RecipeError, match="momentum"):
        check_parts(make({"optimizer": "adam", "optimizer_settings": {"momentum": 0.9}}))
    with pytest.raises(ValueError, match="sam is sharpness-aware itself"):
        check_parts(make({"optimizer": "mecam", "base": "sam"}))
