"""Find, list and create the parts of a recipe by name, and register your own."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from mecam.near import hint

if TYPE_CHECKING:  # which imports torch
    from mecam.hyperparameters import Hyperparameter

Item = TypeVar("Item")
Kind = TypeVar("Kind")
Made = TypeVar("Made")


class Registry(dict[str, Item]):
    """The items of one kind, by their attribute `name`: classes, or descriptions with `summary` and `defaults`.

    The first line of a class's docstring is its summary. The keywords of its constructor are its settings.

    Args:
        kind: the word for an item in messages, such as "method".
        items: those of this package.
        note: advice for a name that is not known.
        examples: names in old runs whose code is now a file in examples/.
    """

    def __init__(
        self, kind: str, items: Iterable[Item], *, note: str = "", examples: Mapping[str, str] | None = None
    ) -> None:
        super().__init__({item.name: item for item in items})  # type: ignore[attr-defined]
        self.kind, self.note, self.examples = kind, note, examples or {}
        self._builtin = frozenset(self)

    def register(self, item: Kind) -> Kind:
        """Make your own item available by its name, in this process; a decorator.

        Other processes, such as the workers of `mecam bench`, know the items of this package alone.
        """
        name = getattr(item, "name", None)
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(
                f"name={name!r} is not allowed; a registered {self.kind} needs a name such as name = 'mine'"
            )
        if name in self._builtin:
            raise ValueError(f"mecam has a {self.kind} {name!r} already; choose another name")
        self[name] = item  # type: ignore[assignment]
        return item

    def find(self, name: str) -> Item:
        """Return the item of this name; an unknown name is an error with near matches."""
        if name in self:
            return self[name]
        if name in self.examples:
            raise ValueError(
                f"the {self.kind} {name!r} is not part of mecam; its code is in examples/{self.examples[name]}. Import "
                "that file in Python before you open or resume the run"
            )
        note = f" ({self.note})" if self.note else ""
        raise ValueError(f"there is no {self.kind} {name!r}; {hint(name, self)}{note}")

    def summary(self, name: str) -> str:
        """Return one line about the item: of a file of its own the first, which has its full name and source."""
        item = self.find(name)
        module = inspect.getmodule(item)
        own_file = module is not None and module.__name__.rpartition(".")[2] == name
        return getattr(item, "summary", None) or first_line(module if own_file else item)

    def hyperparameters(self, name: str) -> Mapping[str, Hyperparameter]:
        """Return what the item declares, with meaning, range and search space."""
        declared: Mapping[str, Hyperparameter] = getattr(self.find(name), "hyperparameters", {})
        return declared

    def defaults(self, name: str) -> dict[str, Any]:
        """Return every setting of the item with its default."""
        item: Any = self.find(name)
        if not isinstance(item, type):
            return dict(getattr(item, "defaults", {}))
        parameters = inspect.signature(item).parameters.values()
        named = {p.name: p.default for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        return {**{key: each.default for key, each in self.hyperparameters(name).items()}, **named}

    def create(self: Registry[type[Made]], name: str, **settings: Any) -> Made:
        """Return an instance of the class of this name, its settings checked."""
        defaults = self.defaults(name)
        given = {key: value for key, value in settings.items() if value is not None or defaults.get(key, 0) is not None}
        check_settings(name, given, list(defaults), self.hyperparameters(name))
        return self.find(name)(**settings)


def first_line(documented: object) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def check_settings(
    owner: str, settings: Mapping[str, Any], known: Sequence[str], declared: Mapping[str, Hyperparameter]
) -> None:
    """Refuse a setting that is not known, with near matches, and a value outside its declared range."""
    for setting, value in settings.items():
        if setting not in known:
            near = hint(setting, known, otherwise="it has") if known else "it has none"
            everything = f" It has {', '.join(known)}" if near.endswith("?") else ""
            raise ValueError(f"{owner} has no setting {setting!r}; {near}{everything}")
        if setting in declared:
            declared[setting].check(owner, setting, value)


__all__ = ["Registry", "check_settings", "first_line"]
