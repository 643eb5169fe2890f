"""ERM++ is LP-FT with averaged weights."""

from mecam.recipe import Recipe


def test_the_recipe_averages_unless_told_otherwise() -> None:
    recipe = Recipe(method="ermplusplus")
    assert (recipe.averaging, recipe.averaging_settings) == ("ema", {"decay": 0.9999})
    assert Recipe(method="ermplusplus", averaging="none").averaging_settings == {}
    assert Recipe(method="ermplusplus", averaging="swad").averaging_settings == {}
    assert Recipe(method="ermplusplus", averaging_settings={"decay": 0.9}).averaging_settings == {"decay": 0.9}
    assert Recipe.from_dict(recipe.to_dict()).run_id == recipe.run_id
