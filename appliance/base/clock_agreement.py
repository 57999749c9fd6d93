"""Whether the wall clock has gone the way of the monotonic clock since the process started.

Owned by one process, which asks before it does something that cannot be undone because of a wall time: records are deleted by their age, and
a wall clock that jumped a month ahead would make every record old. Pure; time comes by the clock that is given. Weak spots: a wall clock that was wrong
when the process started and is set right later counts as a disagreement until the process is started again, and so does a machine that slept
(the monotonic clock stands still meanwhile): both keep records longer, never shorter. A clock that was wrong all the time is not noticed.
"""

from __future__ import annotations

from appliance.base.clock import Clock

TOLERANCE_MS = 3_600_000
"""One hour: summer time that was set by hand, and less, passes."""


class ClockAgreement:
    """Remembers both clocks as they stood at its creation."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._difference_ms = clock.wall_ms() - clock.monotonic_ms()

    def disagreement_ms(self) -> int:
        """How far the wall clock is ahead of where it should be; negative when it went back."""
        return self._clock.wall_ms() - self._clock.monotonic_ms() - self._difference_ms

    def holds(self) -> bool:
        return abs(self.disagreement_ms()) <= TOLERANCE_MS
