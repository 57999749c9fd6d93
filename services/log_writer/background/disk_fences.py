"""Count how often a disk was fenced recently, and how long it waits before it is served again.

A disk that is a little too slow opens its logs, is fenced under load, releases its log-writer, is opened
again, and is fenced again; its clients go back and forth with it. So it is served again at once after
the first fence, and after 2 s, 4 s, … up to 2 minutes after the next ones, if it then accepts a write in
time. Ten minutes of service without a fence reset the count. It is kept in counters, which outlive their
process. Weak spot: after a repair of the disk the back-off still runs, unless the operator calls
`millrace disk replace`.
"""

from __future__ import annotations

from appliance.shm.counters import Counters

FENCES_LABEL = "disk.fences_of_late"
WAITED_LABEL = "disk.fences_waited_for"
WAIT_NS_FIRST = 2_000_000_000
WAIT_NS_MAX = 120_000_000_000
FORGOTTEN_NS = 600_000_000_000
"""So long must a disk be served without a fence before the count begins anew."""


class DiskFences:
    """Over all incarnations of one disk's log-writer."""

    def __init__(self, counters: Counters, now_ns: int) -> None:
        self._fences = counters.counter(FENCES_LABEL)
        self._waited = counters.counter(WAITED_LABEL)
        self._since_ns = now_ns

    @property
    def count(self) -> int:
        return self._fences.value

    def words(self) -> str:
        """For people; empty when there was none of late."""
        return f"fenced {self.count} times of late: its disk is too slow" if self.count else ""

    def add(self) -> None:
        """Count a fence: this incarnation ends."""
        self._fences.add()

    def wait_ns(self) -> int:
        """How long the disk must wait before it is served, 0: not at all."""
        fences = self._fences.value
        if fences < 2 or self._waited.value >= fences:
            return 0
        return min(WAIT_NS_MAX, WAIT_NS_FIRST << min(fences - 2, 16))

    def on_waited(self) -> None:
        """The wait is over: the next incarnation serves."""
        self._waited.set(self._fences.value)

    def maybe_forget(self, now_ns: int) -> None:
        """Reset the count after ten minutes of service. Call it now and then."""
        if self._fences.value and now_ns - self._since_ns > FORGOTTEN_NS:
            self._fences.set(0)
            self._waited.set(0)
