"""Signals: remembered once, deadly the second time, and no one else's handlers are lost."""

import os
import signal
import threading
from pathlib import Path

import pytest

from mecam.training.interrupt import Interrupted, StopSignals

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_is_remembered_and_the_second_goes_where_it_went_before(number: signal.Signals) -> None:
    heard: list[int] = []
    former = signal.signal(number, lambda received, _: heard.append(received))
    try:
        with StopSignals() as signals:
            signal.raise_signal(number)
            assert signals.received == number
            assert not heard
            signal.raise_signal(number)
            assert heard == [number]
        signal.raise_signal(number)
        assert heard == [number, number]
    finally:
        signal.signal(number, former)


def test_the_first_is_acknowledged_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    former = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with StopSignals():
            assert capsys.readouterr().err == ""
            signal.raise_signal(signal.SIGINT)
            assert capsys.readouterr().err == (
                "mecam: SIGINT received; saving after the current step, then stopping. A second one is not needed: it "
                "would stop at once, without saving\n"
            )
            signal.raise_signal(signal.SIGINT)
            assert capsys.readouterr().err == ""
    finally:
        signal.signal(signal.SIGINT, former)


class Reader:
    """A stderr that knows when it was written to."""

    def __init__(self) -> None:
        self.text, self.written = "", threading.Event()

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> None:
        self.text += text
        self.written.set()

    def flush(self) -> None:
        pass


def test_a_busy_main_thread_does_not_delay_the_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python writes a signal to the pipe when it arrives, and calls the handler when the main thread is free."""
    monkeypatch.setattr("sys.stderr", reader := Reader())
    with StopSignals() as signals:
        pipe = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(pipe)
        os.write(pipe, bytes([signal.SIGINT]))
        reader.written.wait()
        assert signals.received is None
        signal.raise_signal(signal.SIGINT)
        assert signals.received == signal.SIGINT
    assert reader.text.count("SIGINT received") == 1


def test_the_pipe_of_others_is_put_back() -> None:
    def join_readers() -> None:
        readers = [thread for thread in threading.enumerate() if thread.name == "mecam signals"]
        for thread in readers:
            thread.join()
        return len(readers)

    join_readers()  # those of earlier tests may still be ending
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    former = signal.set_wakeup_fd(writing)
    try:
        with StopSignals():
            assert [thread.name for thread in threading.enumerate()].count("mecam signals") == 1
        assert signal.set_wakeup_fd(writing) == writing
        join_readers()
    finally:
        signal.set_wakeup_fd(former)
        os.close(reading)
        os.close(writing)


def test_a_closed_stderr_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "full").open("w") as file:
        monkeypatch.setattr("sys.stderr", file)
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
        assert signals.received == signal.SIGTERM


def test_one_process_of_torchrun_acknowledges_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        with StopSignals():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
        said = capsys.readouterr().err.splitlines()
        assert len(said) == lines
        assert all(line.endswith("A second one is not needed: it is ignored") for line in said)


def test_under_torchrun_the_second_does_not_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGINT)  # the terminal's
        signal.raise_signal(signal.SIGINT)  # torchrun's
        assert signals.received == signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_handlers_are_put_back_after_an_error() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    with pytest.raises(ZeroDivisionError), StopSignals():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_other_threads_than_the_main_one_leave_signals_alone() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    seen = []

    def work() -> None:
        with StopSignals() as signals:
            seen.append((signals.received, [signal.getsignal(number) for number in NUMBERS]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(None, before)]


def test_the_message_names_signal_and_step() -> None:
    stop = Interrupted(signal.SIGTERM, 41)
    assert str(stop) == "stopped by SIGTERM after step 41; the run is saved"
    assert stop.signal_number == signal.SIGTERM
