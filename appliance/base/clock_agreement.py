"""Whether wall clock and monotonic clock have advanced equally since the process started.

Used before deletions that depend on a wall time: if the wall clock jumped ahead by a month,
retention would delete all records. Pure; the clock is an argument. Weak: a wrong wall clock that is
corrected later, and a machine that slept (the monotonic clock stops meanwhile), count as a
disagreement until the process restarts; both keep records longer. A clock that was wrong from the
start is not detected.
"""

from __future__ import annotations

from appliance.base.clock import Clock

TOLERANCE_MS = 3_600_000
"""One hour: a manual change to summer time is accepted."""


class ClockAgreement:
    """Remembers both clocks at its creation."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._difference_ms = clock.wall_ms() - clock.monotonic_ms()

    def disagreement_ms(self) -> int:
        """Return by how many milliseconds the wall clock is ahead of the monotonic clock; negative
        if it went back."""
        return self._clock.wall_ms() - self._clock.monotonic_ms() - self._difference_ms

    def holds(self) -> bool:
        """Return whether the clocks differ by no more than the tolerance."""
        return abs(self.disagreement_ms()) <= TOLERANCE_MS
