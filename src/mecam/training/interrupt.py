"""Let Ctrl-C and SIGTERM end a run between two steps, not within one."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType

from mecam import ranks

NUMBERS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 0.2  # seconds that the main thread has to acknowledge a signal


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

    Python calls signal handlers in the main thread, between two operations. A backward pass is one operation, which
    takes seconds on a CPU. So a thread acknowledges what the main thread has not acknowledged yet.

    Under torchrun a second one is ignored: a Ctrl-C reaches every process, and torchrun sends it to them once more. It
    kills those that do not end within half a minute.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._former: dict[int, object] = {}
        self._arrived = threading.Event()  # the handler has been called
        self._acknowledged = threading.Lock()  # taken once
        self._wakeup: tuple[int, int] | None = None  # the end of a pipe that signals are written to, and the former one

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # signals belong to the main thread
            for number in NUMBERS:
                self._former[number] = signal.signal(number, self._remember)
            reading, writing = os.pipe()
            os.set_blocking(writing, False)
            self._wakeup = writing, signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(reading,), name="mecam signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        if self._wakeup is not None:
            writing, former = self._wakeup
            signal.set_wakeup_fd(former)
            os.close(writing)
            self._wakeup = None

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        self._arrived.set()
        if ranks.count() == 1:
            self._restore()
        self._acknowledge(number)

    def _watch(self, pipe: int) -> None:
        """Acknowledge signals that the main thread is too busy for, until the other end of the pipe is closed."""
        with open(pipe, "rb", buffering=0) as signals:
            while number := signals.read(1):
                if number[0] in NUMBERS and not self._arrived.wait(PATIENCE):
                    self._acknowledge(number[0])

    def _acknowledge(self, number: int) -> None:
        if not self._acknowledged.acquire(blocking=False) or ranks.rank() != 0:
            return
        # stderr may be closed, absent, or in the middle of a write
        with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
            after_echo = "\n" if sys.stderr.isatty() else ""  # the terminal has just shown ^C
            print(f"{after_echo}mecam: {acknowledgement(number)}", file=sys.stderr, flush=True)

    def _restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._former = {}
