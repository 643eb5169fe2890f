"""Experiments unfold into runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mecam.benchmark.plan import Experiment, expand, read, shrink
from mecam.benchmark.settings import merge
from mecam.recipe import RecipeError

DOMAINS = {"shapes": ("art", "cartoon", "photo", "sketch"), "PACS": ("a", "b")}


def domains_of(values: Mapping[str, Any]) -> Sequence[str]:
    return DOMAINS[values.get("data", "shapes")]


def test_lists_multiply_and_targets_unfold() -> None:
    blocks = [{"target": "all", "optimizer": ["adam", "mecam"], "seed": [0, 1, 2], "optimizer_settings": {}}]
    found = expand(blocks, domains_of)
    assert len(found) == 4 * 2 * 3
    assert {(r.target, r.optimizer, r.seed) for r in found} == {
        (target, optimizer, seed)
        for target in DOMAINS["shapes"]
        for optimizer in ("adam", "mecam")
        for seed in (0, 1, 2)
    }


def test_hyperparameters_are_swept_and_betas_are_one_value() -> None:
    settings = {"rho": [0.05, 0.1], "betas": [0.5, 0.9]}
    found = expand([{"target": "art", "optimizer": "sam", "optimizer_settings": settings}], domains_of)
    assert [r.optimizer_settings for r in found] == [
        {"rho": 0.05, "betas": [0.5, 0.9]},
        {"rho": 0.1, "betas": [0.5, 0.9]},
    ]


@pytest.mark.parametrize(
    ("part", "choices", "settings", "expected"),
    [
        ("optimizer", ["adam", "mecam"], {"rho": 0.1}, {"adam": [{}], "mecam": [{"rho": 0.1}]}),
        (
            "optimizer",
            ["adam", "sam", "mecam"],
            {"rho": [0.05, 0.1], "eps": 1e-6, "alpha": [0.1, 0.2]},
            {
                "adam": [{"eps": 1e-6}],
                "sam": [{"rho": rho, "eps": 1e-6} for rho in (0.05, 0.1)],
                "mecam": [{"rho": rho, "eps": 1e-6, "alpha": a} for rho in (0.05, 0.1) for a in (0.1, 0.2)],
            },
        ),
        ("method", ["erm", "coral"], {"gamma": [0.1, 1.0]}, {"erm": [{}], "coral": [{"gamma": 0.1}, {"gamma": 1.0}]}),
        (
            "averaging",
            ["none", "ema"],
            {"decay": [0.9, 0.99]},
            {"none": [{}], "ema": [{"decay": 0.9}, {"decay": 0.99}]},
        ),
        (
            "virtual",
            ["none", "dsu", "fourier", "mixstyle"],
            {"p": [0.5, 1.0], "layers": "1"},
            {
                "none": [{}],
                "dsu": [{"p": 0.5, "layers": "1"}, {"p": 1.0, "layers": "1"}],
                "fourier": [{"p": 0.5}, {"p": 1.0}],
                "mixstyle": [{"p": 0.5, "layers": "1"}, {"p": 1.0, "layers": "1"}],
            },
        ),
    ],
)
def test_a_setting_goes_to_those_that_have_it(
    part: str, choices: list[str], settings: dict[str, Any], expected: dict[str, list[dict[str, Any]]]
) -> None:
    block = {"target": "art", "optimizer": "mecam", part: choices, f"{part}_settings": settings}
    found = expand([block], domains_of)
    assert {
        name: [getattr(r, f"{part}_settings") for r in found if getattr(r, part) == name] for name in choices
    } == expected


def test_settings_of_a_virtual_domain_go_to_optimizers_that_use_one() -> None:
    block = {"target": "art", "optimizer": ["adam", "mecam"], "virtual_settings": {"alpha": [0.1, 0.3]}}
    found = [(recipe.optimizer, recipe.virtual_settings) for recipe in expand([block], domains_of)]
    assert found == [("adam", {}), ("mecam", {"alpha": 0.1}), ("mecam", {"alpha": 0.3})]


def test_entries_go_to_the_runs_that_use_them() -> None:
    def found(**block: Any) -> list[tuple[str, str, str]]:
        return [(run.optimizer, run.base, run.virtual) for run in expand([{"target": "art", **block}], domains_of)]

    assert found(optimizer=["adam", "mecam"], virtual=["mixstyle", "dsu", "none"]) == [
        ("adam", "adam", "mixstyle"),
        *(("mecam", "adam", virtual) for virtual in ("mixstyle", "dsu", "none")),
    ]
    assert found(optimizer=["adam", "sam"], base="sgd") == [("adam", "adam", "mixstyle"), ("sam", "sgd", "mixstyle")]
    assert found(virtual="none") == [("adam", "adam", "mixstyle")]


def test_settings_of_the_base_depend_on_the_base() -> None:
    block = {"target": "art", "optimizer": "sam", "base": ["adam", "sgd"], "optimizer_settings": {"momentum": [0, 0.9]}}
    found = [(recipe.base, recipe.optimizer_settings) for recipe in expand([block], domains_of)]
    assert found == [("adam", {}), ("sgd", {"momentum": 0}), ("sgd", {"momentum": 0.9})]


def test_a_given_setting_goes_to_the_blocks_that_have_it() -> None:
    blocks = [{"target": "art", "optimizer": "adam"}, {"target": "art", "optimizer": "sam"}]
    found = expand(merge(blocks, {"optimizer_settings": {"rho": 0.2}}), domains_of)
    assert [(recipe.optimizer, recipe.optimizer_settings) for recipe in found] == [("adam", {}), ("sam", {"rho": 0.2})]
    with pytest.raises(RecipeError, match="adam and sam have no setting 'roh'; did you mean rho"):
        merge(blocks, {"optimizer_settings": {"roh": 0.2}})
    with pytest.raises(RecipeError, match="optimizer_settings=3 is not a table"):
        merge([{"optimizer_settings": {"eps": 1e-6}}], {"optimizer_settings": 3})


def test_a_run_that_two_blocks_name_is_one_run() -> None:
    assert len(expand([{"target": "art"}, {"target": ["art", "photo"]}], domains_of)) == 2


def test_the_order_of_entries_does_not_rename_runs() -> None:
    one = expand([{"target": "art", "seed": 1, "steps": 7}], domains_of)
    other = expand([{"steps": 7, "seed": 1, "target": "art"}], domains_of)
    assert [r.run_id for r in one] == [r.run_id for r in other]


def test_other_spellings_of_a_folder_are_one_data_set() -> None:
    blocks = [{"data": ["clean/", "./clean"], "target": "all"}, {"data": "./shapes", "target": "a"}]
    recipes = expand(blocks, lambda _values: ["a", "b"])
    assert [(recipe.data, recipe.target) for recipe in recipes] == [("clean", "a"), ("clean", "b"), ("./shapes", "a")]


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"seed": [0, 0]}, "seed = .* twice"),
        ({"seed": []}, "seed is an empty list"),
        ({"sede": 1}, "did you mean seed"),
        ({"optimizer_settings": 3}, "optimizer_settings=3 is not a table"),
        ({"optimizer_settings": {"rho": 0.1}}, "^adam has no setting 'rho'"),
        ({"optimizer": ["adam", "sam"], "optimizer_settings": {"roh": 0.1}}, "^adam and sam have .*did you mean rho"),
        ({"method": ["erm", "coral"], "method_settings": {"gama": 1}}, "^erm and coral have .*did you mean gamma"),
        ({"averaging": ["none", "ema"], "averaging_settings": {"decy": 0.9}}, "did you mean decay"),
        ({"averaging_settings": {"decay": 0.9}}, "^none has no setting 'decay'; there are none"),
        ({"optimizer": "mecam", "virtual_settings": {"alhpa": 1}}, "^mixstyle has no setting .*did you mean alpha"),
        ({"virtual_settings": {"alpha": 1}}, "needs an optimizer with a virtual domain, got adam"),
        ({"base": ["adam", "sgd"]}, "base=sgd is not used: adam is not sharpness-aware"),
        ({"optimizer": ["adam", "sam"], "virtual": "dsu"}, "virtual=dsu is not used: .* have: mecam, thinmecam"),
        ({"optimizer_settings": {"lr": [0.1, 0.2]}}, r"optimizer_settings.lr=0.2 is not used: .*; give lr \(--lr\)"),
        ({"optimizer": 3, "optimizer_settings": {"rho": 0.1}}, "optimizer=3 is a int"),
    ],
)
def test_bad_blocks_are_refused(block: dict[str, object], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        expand([block], domains_of)


def test_an_experiment_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "table.toml"
    file.write_text(
        'title = "T"\n[common]\nseed = [0, 1]\n[[runs]]\ndata = "PACS"\nlr = 3e-5\noptimizer = "sam"\n'
        '[[runs]]\ndata = "VLCS"\nlr = 1e-6\noptimizer = "sam"\n[small]\nseed = 0\nsteps = 5\n'
    )
    found = read(file)
    assert found.blocks[0] == {"seed": [0, 1], "data": "PACS", "lr": 3e-5, "optimizer": "sam"}
    small = shrink(found)
    assert small.blocks == ({"optimizer": "sam", "target": "all", "seed": 0, "steps": 5},)
    assert {r.data for r in expand(small.blocks, domains_of)} == {"shapes"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runs = 3 =", "not a TOML"),
        ("a = 1", "unknown entry 'a'"),
        ("", "needs either ..runs.. or runs_from"),
        ("runs_from = 'x.toml'\n[[runs]]\nseed = 0", "needs either ..runs.. or runs_from"),
        ("runs_from = 'x.toml'", "there is no experiment .*x.toml"),
        ("runs = 3", "runs must be ..runs.. tables"),
        ("runs = [3]", "runs must be ..runs.. tables"),
        ("common = 3\n[[runs]]\nseed = 0", "common must be a table .common."),
    ],
)
def test_a_bad_file_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(RecipeError, match=said):
        read(file)
    with pytest.raises(RecipeError, match="there is no experiment"):
        read(tmp_path / "none.toml")


def test_small_keeps_distinct_blocks() -> None:
    whole = Experiment(({"optimizer": "adam", "data": "PACS"}, {"optimizer": "sam", "data": "PACS"}))
    assert [block["optimizer"] for block in shrink(whole).blocks] == ["adam", "sam"]
    schedules = Experiment(({"lr_schedule": ["constant", "cosine"], "warmup": 500, "data": "PACS"},))
    assert shrink(schedules).blocks == ({"lr_schedule": ["constant", "cosine"], "target": "all"},)  # warmup is in steps


def test_given_entries_replace_those_of_every_block_and_settings_merge() -> None:
    blocks = [{"optimizer": "sam", "optimizer_settings": {"rho": 0.1, "eps": 1}}, {"seed": 1}]
    found = merge(blocks, {"seed": [0, 1], "optimizer_settings": {"rho": [0.2]}})
    assert found == [
        {"optimizer": "sam", "optimizer_settings": {"rho": [0.2], "eps": 1}, "seed": [0, 1]},
        {"seed": [0, 1], "optimizer_settings": {}},  # of Adam, which has no rho
    ]


def test_an_experiment_takes_the_runs_of_another(tmp_path: Path) -> None:
    (tmp_path / "whole.toml").write_text(
        '[common]\ndata = ["PACS", "VLCS"]\n[[runs]]\noptimizer = "sam"\n[[runs]]\nseed = 1\n'
        "[small]\nsteps = 5\nseed = 0\n"
    )
    part = tmp_path / "part.toml"
    part.write_text('title = "P"\nruns_from = "whole.toml"\n[common]\ndata = "PACS"\n[small]\nseed = 7\n')
    found = read(part)
    assert found.blocks == ({"data": "PACS", "optimizer": "sam"}, {"data": "PACS", "seed": 1})
    assert found.small == {"steps": 5, "seed": 7}


def test_a_profile_follows_the_data_of_each_run() -> None:
    blocks = [{"data": ["PACS", "DomainNet"], "target": "all", "profile": ["paper", "domainbed"], "optimizer": "sagm"}]
    found = {(r.data, r.lr, r.steps) for r in expand(blocks, lambda _values: ["photo"])}
    assert found == {
        ("PACS", 3e-5, 5000),
        ("PACS", 5e-5, 5000),
        ("DomainNet", 3e-5, 15000),
        ("DomainNet", 5e-5, 15000),
    }
    assert shrink(Experiment(tuple(blocks))).blocks == ({"optimizer": "sagm", "target": "all"},)
