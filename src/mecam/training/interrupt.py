"""Let Ctrl-C and SIGTERM end a run between two steps, not within one."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from mecam import ranks


class Interrupted(Exception):
    """The run received a signal to stop, and has been saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}; the run is saved")
        self.signal_number = signal_number


class StopSignals:
    """Note a SIGINT or SIGTERM and keep running; a second one kills, as is Python's default.

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
        self.received = number
        if ranks.count() == 1:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._former = {}
