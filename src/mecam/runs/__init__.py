"""The run folder: written by training so that a crash loses nothing, read by tables, reports and analysis."""

from mecam.runs.claim import ClaimedError, claim
from mecam.runs.find import find_run, find_runs, runs_in
from mecam.runs.folder import RunFolder
from mecam.runs.sessions import CircumstancesWarning
from mecam.storage.files import RunError, read_json, write_atomic

__all__ = [
    "CircumstancesWarning",
    "ClaimedError",
    "RunError",
    "RunFolder",
    "claim",
    "find_run",
    "find_runs",
    "read_json",
    "runs_in",
    "write_atomic",
]
