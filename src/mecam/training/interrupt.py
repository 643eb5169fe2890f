"""Let Ctrl-C and SIGTERM end a run between two steps, not within one."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from types import FrameType

from mecam import ranks


class Interrupted(Exception):
    """The run received a signal to stop, and has been saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}; the run is saved")
        self.signal_number = signal_number


def acknowledgement(signal_number: int) -> str:
    """Return what is printed as soon as the signal arrives; a step and an evaluation can take a minute on a CPU."""
    name = signal.Signals(signal_number).name
    second = "is ignored" if ranks.count() > 1 else "would stop at once, without saving"
    return f"{name} received; saving after the current step, then stopping. A second one is not needed: it {second}"


class StopSignals:
    """Acknowledge a SIGINT or SIGTERM at once and keep running; a second one kills, as is Python's default.

    Under torchrun a second one is ignored: a Ctrl-C reaches every process, and torchrun sends it to them once more. It
    kills those that do not end within half a minute.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._former: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # signals belong to the main thread
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        first, self.received = self.received is None, number
        if ranks.count() == 1:
            self._restore()
        if first and ranks.rank() == 0:
            # stderr may be closed, absent, or in the middle of a write
            with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
                after_echo = "\n" if sys.stderr.isatty() else ""  # the terminal has just shown ^C
                print(f"{after_echo}mecam: {acknowledgement(number)}", file=sys.stderr, flush=True)

    def _restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._former = {}
