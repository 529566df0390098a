"""Signals that end a selftest, and signals that do not."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from provision.validate.selftest import signals


@pytest.fixture
def nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_hangup_under_nohup_ends_nothing(nohup: None) -> None:  # noqa: ARG001 - the fixture has an effect
    with signals.as_interrupts():
        os.kill(os.getpid(), signal.SIGHUP)
        with signals.held_back():
            os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_two_signals_at_once_do_not_cut_the_tidying_up() -> None:
    tidied = False
    with signals.as_interrupts(), contextlib.suppress(KeyboardInterrupt):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
            with signals.held_back():
                tidied = True
    assert tidied


def test_a_later_signal_ends_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who presses Ctrl-C a second time must not wait forever."""
    monkeypatch.setattr(signals, "_TOGETHER", 0.0)
    with signals.as_interrupts():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
