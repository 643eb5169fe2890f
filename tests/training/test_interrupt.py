"""Signals: remembered once, deadly the second time, and no one else's handlers are lost."""

import signal
import threading

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
