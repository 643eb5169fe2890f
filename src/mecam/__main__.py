"""The `mecam` command, or what it lacks: without the extra `cli`, mecam requires torch alone."""

import sys
from importlib.util import find_spec

PACKAGES = ("numpy", "PIL", "rich", "safetensors", "scipy", "typer")


def main() -> None:
    """Run the command line."""
    if sys.version_info < (3, 11):
        sys.exit(_lacks("the command line needs Python 3.11 or newer"))
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        needs = "the command line needs more packages: pip install 'mecam[cli]'"
        sys.exit(_lacks(f"{needs} (missing: {', '.join(missing)})"))
    from mecam.cli import main as run

    run()


def _lacks(message: str) -> int:
    print(f"mecam: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
