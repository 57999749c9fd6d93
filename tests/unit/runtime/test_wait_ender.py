"""A wait ends when a signal handler says so: without that a process would hear of its stop only when its wait is over."""

from __future__ import annotations

import signal
import time

from appliance.runtime.poller import Poller
from appliance.runtime.service_main import wait_ender

WAIT_MS = 20_000


def test_a_signal_handler_ends_a_wait_and_the_next_wait_is_a_whole_one() -> None:
    poller = Poller()
    end_wait = wait_ender(poller)
    before = signal.signal(signal.SIGALRM, lambda _number, _frame: end_wait())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        started = time.monotonic()
        assert poller.poll(WAIT_MS) == 1
        assert time.monotonic() - started < WAIT_MS / 1000 / 2
        assert poller.poll(1) == 0
    finally:
        signal.signal(signal.SIGALRM, before)
        poller.close()


def test_two_wake_ups_end_one_wait() -> None:
    poller = Poller()
    end_wait = wait_ender(poller)
    end_wait()
    end_wait()
    assert (poller.poll(WAIT_MS), poller.poll(1)) == (1, 0)
    poller.close()
