"""The command line: each command parses its options, calls a function of the library and prints the result.

What is imported here delays --help, so commands import the library where they use it.
"""

from mecam._garbage import collect_rarely
from mecam.cli._app import app, data_app

# in the order of --help
# isort: off
from mecam.cli import fit, train, bench, analysis, runs, data  # noqa: F401
# isort: on


def main() -> None:
    collect_rarely()
    app()


__all__ = ["app", "data_app", "main"]
