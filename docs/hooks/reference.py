"""Write the pages of the reference at build time, from the commands, the recipe and the registries."""

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any, get_type_hints

import typer
from mkdocs.structure.files import File, Files

from mecam import listing
from mecam.analysis.measures import MEASURES
from mecam.benchmark.settings import registry
from mecam.cli import app
from mecam.recipe import Recipe


def on_files(files: Files, config: Any) -> Files:
    for name, page in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(page())))
    return files


def commands() -> Iterator[str]:
    """Every command with its arguments, options and examples, as its --help has them."""
    yield from opening("Commands", "a command, its options and their defaults", "COMMAND --help")
    group: Any = typer.main.get_command(app)
    found = {**group.commands, **{f"data {name}": each for name, each in group.commands["data"].commands.items()}}
    del found["data"]
    summaries = ((_link(f"mecam {name}"), plain(each.help.partition("\n")[0])) for name, each in found.items())
    yield from table(("command", "what it does"), summaries)
    for name, command in found.items():
        context = command.make_context(name, [], resilient_parsing=True)
        summary, _, more = command.help.partition("\n\n")
        yield f"\n## mecam {name}\n\n{plain(summary)}\n\n{plain(more)}\n"
        yield f"```text\nmecam {name} {' '.join(command.collect_usage_pieces(context))}\n```\n"
        records = [record for each in command.params if (record := each.get_help_record(context))]
        yield from table(("argument or option", "meaning"), ((f"`{words}`", plain(text)) for words, text in records))
        examples = inspect.cleandoc((command.epilog or "").partition("Examples:")[2])
        if examples:
            yield f"\nExamples:\n\n```sh\n{examples}\n```"


def recipe() -> Iterator[str]:
    """Every entry of a recipe, and the values of the profiles."""
    yield from opening("Recipe entries", "what a run is made of", "list recipe")
    yield "An entry is a keyword of `mecam.Recipe`, `mecam.train` and `mecam.bench`, a line of a TOML recipe, and an"
    yield "option of `mecam train`.\n"
    shapes, other, types = Recipe(), Recipe(data="other"), get_type_hints(Recipe)
    rows = []
    for field in fields(Recipe):
        values = [json.dumps(getattr(each, field.name)).replace("null", "not given") for each in (shapes, other)]
        default = values[0] if values[0] == values[1] or field.name == "data" else f"{values[1]}; {values[0]} on shapes"
        declared = types[field.name]
        kind = declared.__name__ if isinstance(declared, type) else str(declared).replace("typing.", "")
        rows.append((f"`{field.name}`", f"`{_words(kind)}`", f"`{default}`", plain(field.metadata["help"])))
    yield from table(("entry", "type", "default", "meaning"), rows)
    yield "\n## Profiles\n\n`profile` sets defaults by name. Values per data set, `mecam list profiles`:\n\n```text"
    yield from listing.lines("profiles")
    yield "```"


def optimizers() -> Iterator[str]:
    """Every optimizer: formula, cost, hyperparameters."""
    yield from opening("Optimizers", "an optimizer's formula, cost, defaults and ranges", "list optimizers --verbose")
    yield "A pass is a forward and a backward pass. `mecam.optim.create(name, ...)` builds an optimizer.\n"
    found = registry("optimizer")
    yield from table(
        ("optimizer", "", "passes per step"),
        ((_link(name), plain(found.summary(name)), str(each.passes)) for name, each in found.items()),
    )
    yield "\nIn the formulas, g is the gradient of the loss f at the weights θ, ρ the radius `rho`, and n(v) = v/‖v‖"
    yield "with one norm over all weights. What follows g ← is given to the base optimizer."
    for name, each in found.items():
        yield f"\n## {name}\n\n{plain(found.summary(name))} {_passes(each.passes)}\n"
        if each.sharpness_aware and not each.stands_for:
            yield from documented(each.sharpness_aware)
            yield f"\nIn Python: `mecam.optim.{each.sharpness_aware.__name__}`.\n"
        yield from settings("optimizer", name)


def methods() -> Iterator[str]:
    """Every method: formula, hyperparameters, what it needs."""
    yield from opening("Methods", "a method's objective, defaults and ranges", "list methods --verbose")
    found = registry("method")
    yield from table(("method", ""), ((_link(name), plain(found.summary(name))) for name in found))
    yield "\nIn the formulas, CE is the cross-entropy, z are features, h is the head, and d, i and j are domains."
    for name, each in found.items():
        yield f"\n## {name}\n\n{plain(_origin(each))}\n"
        yield from documented(each)
        yield f"\nSource domains: at least {max(1, each.sources)}.\n"
        yield from settings("method", name)
        if own := Recipe(method=name).method_settings:
            values = ", ".join(f"`{key} = {value:g}`" for key, value in own.items())
            yield f"\nOn the embedded set, where networks start from scratch: {values}."


def virtual() -> Iterator[str]:
    """Every virtual domain."""
    yield from opening("Virtual domains", "how MeCAM's third pass sees another domain", "list virtual --verbose")
    yield from _each("virtual")


def averagings() -> Iterator[str]:
    """Every averaging."""
    yield from opening("Averagings", "which weights a run keeps", "list averagings --verbose")
    yield from _each("averaging")


def measures() -> Iterator[str]:
    """Every further column of mecam curvature."""
    yield from opening("Measures", "the further columns of `mecam curvature --measure`", "list measures")
    rows = ((f"`{name}`", plain(MEASURES.summary(name)), ", ".join(each.columns)) for name, each in MEASURES.items())
    yield from table(("measure", "", "columns"), rows)
    yield "\nSources, cost and use: [the instruments](../instruments.md#further-measures)."


def backbones() -> Iterator[str]:
    """Every backbone."""
    yield from opening("Backbones", "a network's size and weights", "list backbones --verbose")
    rows = ((f"`{name}`", plain(each.summary), plain(each.details)) for name, each in registry("backbone").items())
    yield from table(("backbone", "", "size and weights"), rows)
    yield "\n`timm/<name>` is any model of timm, and `hf-hub:<organization>/<name>` one on the Hugging Face Hub:"
    yield "[adding a backbone](../adding/backbone.md)."


PAGES = {
    each.__name__: each for each in (commands, recipe, optimizers, methods, virtual, averagings, measures, backbones)
}


def _each(part: str) -> Iterator[str]:
    for name, each in registry(part).items():
        yield f"\n## {name}\n\n{plain(_origin(each))}\n"
        yield from documented(each)
        yield ""
        yield from settings(part, name)


def opening(title: str, what: str, command: str) -> Iterator[str]:
    """The heading of a page, and the command that prints the same."""
    yield f"# {title}\n\nLook up {what}. `mecam {command}` prints the same.\n"


def settings(part: str, name: str) -> Iterator[str]:
    """The hyperparameters of a part, with defaults, ranges and search spaces."""
    found = registry(part)
    declared, defaults = found.hyperparameters(name), found.defaults(name)
    ranges = {key: each.allowed.partition(" in ")[2] for key, each in declared.items()}
    rows = (
        (f"`{key}`", _number(defaults.get(key)), plain(each.meaning), ranges[key], str(each.search or ""))
        for key, each in declared.items()
    )
    yield from table(("hyperparameter", "default", "meaning", "range", "search"), rows)


def documented(part: object) -> Iterator[str]:
    """The docstring of a part up to its arguments, as Markdown: a paragraph that is no sentence is a formula."""
    for paragraph in re.split(r"\n\n", (inspect.getdoc(part) or "").partition("\n\nArgs:")[0]):
        formula = paragraph.startswith("    ") or not paragraph.endswith((".", ":"))
        yield f"```text\n{inspect.cleandoc(paragraph)}\n```\n" if formula else f"{plain(paragraph)}\n"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table, or nothing where there are no rows."""
    lines = [f"| {' | '.join(map(in_table, row))} |" for row in rows]
    if lines:
        yield f"| {' | '.join(heading)} |\n|{' --- |' * len(heading)}"
        yield from lines


def in_table(cell: str) -> str:
    """A cell whose bars do not end it; those in code never do."""
    return "".join(
        part if part.startswith("`") else part.replace("|", "&#124;") for part in re.split(r"(`[^`]*`)", cell)
    )


def plain(text: str) -> str:
    """Text whose signs Markdown and HTML leave alone, on one line; what is in backticks stays code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else escaped(part) for part in parts)


def escaped(text: str) -> str:
    """Text with the signs of Markdown and HTML; Markdown has no backslash before <."""
    return re.sub(r"([\\*_>\[\]#])", r"\\\1", text).replace("<", "&lt;")


def _origin(part: object) -> str:
    """The first line of the part's module: its full name and source."""
    return (inspect.getdoc(inspect.getmodule(part)) or "").partition("\n")[0]


def _passes(count: int) -> str:
    return "One pass per step." if count == 1 else f"{count} passes per step."


def _number(value: object) -> str:
    return "not given" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)


def _words(kind: str) -> str:
    """A type in few words, such as `constant | cosine` for a choice."""
    return re.sub(r"Literal\[(.*?)\]", lambda found: found[1].replace(", ", " | ").replace("'", ""), kind)


def _link(name: str) -> str:
    return f"[`{name}`](#{name.replace(' ', '-')})"
