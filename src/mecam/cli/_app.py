"""The command-line application, and how a command reports its errors."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperCommand

from mecam import __version__
from mecam.columns import visible
from mecam.storage.files import RunError

INTERRUPTED = 130  # 128 + SIGINT, as in shells
FIRST = """Train image classifiers that generalize to unseen domains.

\b
First steps:
  mecam fit root --minutes 15 --out model                  train on root/<domain>/<class>/<image> within a time
                                                           budget, and estimate the accuracy in a new domain
  mecam doctor                                             report hardware, packages and known problems
  mecam train --optimizer mecam --target sketch            train on the embedded data set
  mecam bench --data root --optimizer adam,mecam --out results
                                                           leave out each domain of root/<domain>/<class>/<image>
                                                           in turn, and print accuracies on the unseen domain
  mecam list                                               list methods, optimizers, backbones, data sets
  mecam COMMAND --help                                     options and examples of a command
"""

app = typer.Typer(
    name="mecam",
    help=FIRST,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: the same on a terminal and off it, and twice as fast
)
data_app = typer.Typer(help="List, check and pack data sets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"mecam {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def command(
    *examples: str,
    group: typer.Typer = app,
    name: str | None = None,
    resumes: bool = False,
    cls: type[TyperCommand] = TyperCommand,
) -> Callable[[Callable[..., int | None]], Callable[..., None]]:
    """Register a function as a command. It returns its exit code; None is success.

    Args:
        examples: shown at the end of the command's help.
        resumes: whether the same command continues after an interrupt.
        cls: the class that parses its words.
    """

    def register(function: Callable[..., int | None]) -> Callable[..., None]:
        @group.command(name=name, cls=cls, epilog="\n".join(("\b", "Examples:", *(f"  {line}" for line in examples))))
        @functools.wraps(function)
        def run(*arguments: Any, **options: Any) -> None:
            with short_errors(resumes=resumes), redirect_stdout(_Visible(sys.stdout)):
                code = function(*arguments, **options)
            raise typer.Exit(code or 0)

        return run

    return register


@contextmanager
def short_errors(*, resumes: bool = False) -> Iterator[None]:
    """Print errors that the user can fix as one line; others keep their traceback."""
    try:
        yield
    except BrokenPipeError:  # the reader of the output has closed it; typer handles that
        raise
    except (RunError, ValueError, ImportError, OSError) as error:  # data and recipe errors are ValueErrors
        lines = getattr(error, "lines", (error,))  # an error about several images has a line for each
        print("mecam: " + "\n  ".join(map(one_line, lines)), file=sys.stderr)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as error:
        print(f"mecam: interrupted{'; the same command resumes' if resumes else ''}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from error


def warn(message: object) -> None:
    """Print a warning as one line on stderr."""
    print(f"mecam: {one_line(message)}", file=sys.stderr, flush=True)


def one_line(message: object) -> str:
    """Return a message on one line; those of other libraries may have several."""
    return visible(" ".join(str(message).split()))


class _Visible:
    """A text stream that shows the control characters in names from files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
