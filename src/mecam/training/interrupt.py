"""Ctrl-C and SIGTERM end a run between two steps, not within one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

from mecam import ranks


class Interrupted(Exception):
    """The run was asked to stop, and has been saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}; the run is saved")
        self.signal_number = signal_number


class StopSignals:
    """Remembers a SIGINT or SIGTERM instead of dying of it; a second one kills as usual.

    Not so under torchrun: a Ctrl-C reaches every process, and torchrun passes it on to them once more. It kills those
    that do not end within half a minute.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._former: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # signals belong to the main thread
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._restore()

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        if ranks.count() == 1:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._former = {}
