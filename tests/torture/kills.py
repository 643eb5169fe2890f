"""Real commands that meet kills and failing disks again and again, and eight processes at once."""

import random
from pathlib import Path

import pytest

from tests.reliability.histories import WRITING, Blow, Whole, suffer, undisturbed
from tests.reliability.test_several import run_crowd

SET = ("--set", "batch=4", "--set", "image_size=16", "--set", "evaluate_every=5")
COMMANDS = {
    "train": ("train", "--target", "art", "--optimizer", "mecam", "--averaging", "swad", "--quiet", "--steps", "60"),
    "bench": (
        *("bench", "--target", "art,photo", "--optimizer", "adam,mecam", "--seeds", "0", "--workers", "2"),
        *("--steps", "30"),
    ),
}
BLOWS = 5  # per history
HISTORIES = [(command, number) for command, count in (("train", 12), ("bench", 4)) for number in range(count)]
# where faults are injected: a part of the path, and the number of calls to choose from
PLACES = {
    "checkpoint/": 30,
    "/.claim-": 60,
    "checkpoint/manifest.json": 8,  # its rename makes a checkpoint valid
    "/.mecam-": 12,  # files before they are renamed
    "records.jsonl": 20,
    "model.safetensors": 1,
    "done.json": 1,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Whole]:
    """What each command leaves if nothing happens."""
    root = tmp_path_factory.mktemp("whole")
    return {name: undisturbed((*words, *SET), root / name) for name, words in COMMANDS.items()}


def blow(draw: random.Random) -> Blow:
    """Draw a signal at a random moment, or with equal probability a kill or an error during a write."""
    if draw.random() < 0.5:
        how = draw.choice(("SIGKILL", "SIGKILL", "SIGTERM", "SIGINT"))
        return Blow(how, draw.random(), alone=how == "SIGKILL" and draw.random() < 0.3)
    place = draw.choice(list(PLACES))
    how = draw.choice(("SIGKILL", "SIGKILL", "ENOSPC", "EIO", "EROFS"))
    calls = {"ENOSPC": WRITING, "EIO": ("write", "fsync", "replace")}.get(how)
    return Blow(how, match=place, calls=calls, at=draw.randint(1, PLACES[place]))


@pytest.mark.attack("Kills, full disks, power cuts")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("command", "history"), HISTORIES)
def test_five_kills_and_failures_of_one_command(
    command: str, history: int, whole: dict[str, Whole], tmp_path: Path
) -> None:
    draw = random.Random(f"{command} {history}")
    blows = [blow(draw) for _ in range(BLOWS)]
    tally = suffer((*COMMANDS[command], *SET), tmp_path / "out", blows, whole[command])
    assert (tally.lost, tally.doubled, tally.wrong) == ([], [], [])


@pytest.mark.attack("Several processes")
@pytest.mark.parametrize("number", range(3))
def test_eight_processes_at_once_and_two_of_them_killed(number: int, tmp_path: Path) -> None:
    run_crowd(tmp_path / str(number))
