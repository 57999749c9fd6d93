"""Which lives of processes ended because they did not turn. systemd kills them and tells nobody but the journal; here they are counted, for the alarm.

Known by their hearts alone: a life whose heart had stood still for nearly as long as the watchdog allows when it ended. Owned by the supervisor of a box whose
processes are systemd's units, which looks once a second. Weak spot: who kills a hanging process by hand before systemd does is counted, too.
"""

from __future__ import annotations

from typing import NamedTuple

DEADLY_SHARE = 0.75
"""systemd counts from the last time that it was told, which is up to a quarter of the watchdog's time before the heart's last beat."""
SEEN_SHARE = 0.2
"""That much of the stand-still must have been seen: a supervisor that was itself held up has not seen what it did not look at."""


class _Incarnation(NamedTuple):
    pid: int
    beat_ns: int
    silent_ns: int


class WatchdogKills:
    """`look` once a second at each process."""

    def __init__(self, watchdog_ms: int) -> None:
        self._watchdog_ns = watchdog_ms * 1_000_000
        self._lives: dict[str, _Incarnation] = {}

    def look(self, process: str, pid: int, beat_ns: int, now_ns: int) -> float:
        """How many seconds its heart had stood still when the life that was seen last was killed for it; 0 if none was. `pid` is 0 when nobody lives;
        `beat_ns`: the heart's last beat, 0 before the first."""
        before = self._lives.pop(process, None)
        if pid and beat_ns:
            self._lives[process] = _Incarnation(pid, beat_ns, now_ns - beat_ns)
        if before is None or before.pid == pid or before.silent_ns < SEEN_SHARE * self._watchdog_ns:
            return 0
        silent_ns = now_ns - before.beat_ns
        return silent_ns / 1e9 if silent_ns >= DEADLY_SHARE * self._watchdog_ns else 0
