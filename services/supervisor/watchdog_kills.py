"""Counts the processes that systemd's watchdog killed, for the alarm: systemd reports them only in
the journal.

A kill is inferred from heartbeats: the incarnation ended after its heartbeat was nearly as old as
the watchdog allows. Owned by the supervisor under systemd, which checks once a second. Weak: a
hanging process that an operator kills before systemd does is counted, too.
"""

from __future__ import annotations

from typing import NamedTuple

DEADLY_SHARE = 0.75
"""Part of the watchdog timeout. systemd counts from the last message, up to a quarter of the
timeout before the last heartbeat."""
SEEN_SHARE = 0.2
"""Part of the watchdog timeout during which the old heartbeat must have been observed. A supervisor
that was itself suspended has observed nothing."""


class _Incarnation(NamedTuple):
    pid: int
    beat_ns: int
    silent_ns: int


class WatchdogKills:
    """Detects watchdog kills; call `look` once a second for each process."""

    def __init__(self, watchdog_ms: int) -> None:
        self._watchdog_ns = watchdog_ms * 1_000_000
        self._incarnations: dict[str, _Incarnation] = {}

    def look(self, process: str, pid: int, beat_ns: int, now_ns: int) -> float:
        """Return for how many seconds the heartbeat had stopped if the last incarnation was killed
        for it, otherwise 0.

        `pid` is 0 if the process does not run; `beat_ns` is its last heartbeat, 0 before the first.
        """
        before = self._incarnations.pop(process, None)
        if pid and beat_ns:
            self._incarnations[process] = _Incarnation(pid, beat_ns, now_ns - beat_ns)
        if before is None or before.pid == pid or before.silent_ns < SEEN_SHARE * self._watchdog_ns:
            return 0
        silent_ns = now_ns - before.beat_ns
        return silent_ns / 1e9 if silent_ns >= DEADLY_SHARE * self._watchdog_ns else 0
