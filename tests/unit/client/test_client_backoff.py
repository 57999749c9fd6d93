from __future__ import annotations

import pytest

from appliance.base.clock import ManualClock
from appliance.client.cluster import Backoff
from appliance.client.errors import ConnectionLost


class Sleeper:
    """Sleeps by moving a clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.pauses: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance_ms(round(seconds * 1000))


def test_pauses_double_up_to_a_second_and_the_error_is_raised_when_the_time_is_over() -> None:
    clock = ManualClock()
    sleeper = Sleeper(clock)
    backoff = Backoff(clock, 3_000, sleeper)
    with pytest.raises(ConnectionLost, match="gone"):
        while True:
            backoff.pause_or_raise(ConnectionLost("gone"))
    assert sleeper.pauses[:7] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0]
    assert sum(sleeper.pauses) == pytest.approx(3.0)


def test_a_success_starts_the_time_anew() -> None:
    clock = ManualClock()
    backoff = Backoff(clock, 1_000, Sleeper(clock))
    clock.advance_ms(900)
    backoff.succeeded()
    clock.advance_ms(900)
    backoff.pause_or_raise(ConnectionLost("gone"))
    assert backoff.tries == 1
