"""Every command line in --help, on the pages, in examples/ and in recipes/ runs, on small data.

What cannot run here is listed with the reason, and its words are checked.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator

import pytest

from tests.docs.commands import parse, shown
from tests.docs.pages import ROOT
from tests.docs.sandbox import Sandbox, small_world

LINES = shown()
NOT_RUN = {  # by its first words
    "pip install": "needs a network",
    "pre-commit install": "changes the repository",
    "python benchmarks/": "takes hours",
    "python docs/pictures/": "redraws a picture",
    "python exported/": "tests/serving/test_export.py runs it, where mecam is not installed",
    "make": "takes minutes, and sets up an environment",
    "mecam serve": "runs until it is stopped; tests/serving/test_server.py runs it",
    "mecam predict model new-place --wanted-precision": "needs a model of mecam fit; tests/fitting/test_fit.py runs it",
    "mecam --install-completion": "changes the start-up files of a shell",
    "mecam train --backbone tiny": "a backbone that the reader of docs/adding/backbone.md adds",
}
NOT_COMPLETE = ("mecam data check benchmarks/PACS", "mecam data check images --name OfficeHome")
NOT_COMPLETE += ("mecam data check root --name PACS",)  # the small data lack classes and images: exit code 1
SAYS = {  # by the command: what its output has in it
    "fit": r"^expected accuracy in a new domain: [\d.]+ %",
    "train": r"accuracy on \w+, which was not trained on: [\d.]+ %| per step$|^\S+-seed0-",
    "bench": r"^Accuracy on the unseen domain|\d+ runs to do, 0 done",
    "table": r"Accuracy on the unseen domain|\\begin{tabular}",
    "report": r"^(report|model)\.html$",
    "figures": r"\.png",
    "curvature": r"rho",
    "spectrum": r"trace",
    "landscape": r"\.png",
    "soup": r"^averaged \d+ runs?",
    "predict": r"image,class,probability|\"probability\": ",
    "evaluate": r"^balanced accuracy|\"balanced_accuracy\": ",
    "rerun": r"the same bytes",
    "verify": r"damaged: 0",
    "export": r"exported/model\.(onnx|safetensors)",
    "list": r":\n  \w+",
    "doctor": r"^mecam \d|torch",
    "data list": r"DomainNet",
    "data check": r"missing|can be read|as they were packed",
    "data pack": r": 30 images",
}


def reason_not_to_run(line: str) -> str | None:
    return next((reason for words, reason in NOT_RUN.items() if line.startswith(words)), None)


def is_mention(line: str) -> bool:
    """Whether a line in running text names a command, or an option, and leaves out what the command needs."""
    if not LINES[line].endswith(", text") or line.startswith("torchrun"):
        return False
    if line.endswith(" --help"):
        return True
    try:
        parse(shlex.split(line)[1:])
    except Exception as error:
        if type(error).__name__ in ("MissingParameter", "BadOptionUsage"):  # the latter: an option without its value
            return True
        raise
    return False


RUN = [line for line in LINES if reason_not_to_run(line) is None and not is_mention(line)]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    home = tmp_path_factory.mktemp("sandbox")
    with small_world(home):
        yield Sandbox(home)


def test_the_lines_are_found() -> None:
    places = set(LINES.values())
    assert {"mecam --help", "mecam train --help", "README.md", "docs/benchmark.md", "examples/own_folder.py"} <= places
    assert len(RUN) > 60


@pytest.mark.parametrize("line", RUN)
@pytest.mark.filterwarnings("ignore")
def test_an_example_works(line: str, sandbox: Sandbox) -> None:
    result, folder = sandbox.run(line)
    assert result.exit_code == (1 if line in NOT_COMPLETE else 0), f"{LINES[line]}: {result.output}"
    words = sandbox.words(line)
    command = " ".join(words[:2]) if words[0] == "data" else words[0]
    assert re.search(SAYS[command], result.stdout, flags=re.MULTILINE), result.stdout
    for option in ("--out", "--plot", "--density"):
        if option in words and "--dry-run" not in words:
            assert (folder / words[words.index(option) + 1]).exists()


@pytest.mark.parametrize("line", [line for line in LINES if reason_not_to_run(line) is not None])
def test_what_is_not_run_exists(line: str) -> None:
    program, *words = shlex.split(line)
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        targets = [word for word in words if "=" not in word]  # others set variables
        assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
        assert set(re.findall(r"\w+", words[1].partition("[")[2])) <= set(extras)
    elif program == "python":
        file = words[0].replace("exported/", "src/mecam/serving/")  # an export has a copy
        assert (ROOT / file).is_file()
    elif program == "mecam" and words[0] != "--install-completion" and not is_mention(line):
        parse(words)


@pytest.mark.parametrize("words", list(NOT_RUN))
def test_a_reason_is_about_a_line(words: str) -> None:
    assert any(line.startswith(words) for line in LINES)


def test_examples_of_one_place_do_not_meet_in_one_folder() -> None:
    """`mecam train` keeps one run in a folder: what is typed after another example must have an --out of its own."""
    taken: dict[tuple[str, str], str] = {}
    for line, place in LINES.items():
        if " train " in line and "--dry-run" not in line and not place.endswith(", text"):
            command = line[line.index("train") :]
            out = re.search(r"--out (\S+)", line)
            where = "help" if place.endswith("--help") else place
            assert taken.setdefault((where, out[1] if out else "runs"), command) == command


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("trian", "AssertionError"),
        ("train --optimiser mecam", "NoSuchOption"),
        ("train --steps many", "BadParameter"),
        ("data chek root", "AssertionError"),
        ("predict", "MissingParameter"),
    ],
)
def test_a_command_that_is_none_is_noticed(words: str, complaint: str) -> None:
    with pytest.raises(Exception) as found:  # noqa: PT011
        parse(words.split())
    assert type(found.value).__name__ == complaint
