"""Which of our disks a lane waits for before it fetches again.

Appends take a millisecond as a rule, and the next fetch should name the offsets behind them. A disk that needs longer than `PATIENCE_NS`, and as much again as
many appends cost, is left out of the fetches until its appends are done, and for a while it is not waited for at all. So it holds back nobody's partitions but
its own. Pure; owned by a lane. Weak spot: what is left out waits for the fetch that was sent without it, 50 ms where the others have nothing new.
"""

from __future__ import annotations

PATIENCE_NS = 20_000_000
APPEND_NS = 200_000
"""What each append may take on top: an answer has one for each of hundreds of partitions, and on a busy machine they alone take longer than the rest."""
DISTRUST_NS = 5_000_000_000


class SlowDisks:
    """Counts the appends under way by disk."""

    def __init__(self) -> None:
        self._under_way: dict[str, int] = {}
        self._since_ns: dict[str, int] = {}
        self._offered: dict[str, int] = {}
        """Since then."""
        self._left_out: set[str] = set()
        self._distrusted_until_ns: dict[str, int] = {}

    def on_offered(self, disk: str, now_ns: int) -> None:
        if not self._under_way.get(disk):
            self._since_ns[disk], self._offered[disk] = now_ns, 0
        self._under_way[disk] = self._under_way.get(disk, 0) + 1
        self._offered[disk] += 1

    def on_done(self, disk: str) -> bool:
        """Whether it was left out, and no longer is."""
        self._under_way[disk] -= 1
        if self._under_way[disk]:
            return False
        del self._under_way[disk]
        was_left_out = disk in self._left_out
        self._left_out.discard(disk)
        return was_left_out

    def let_go_of(self, now_ns: int) -> list[str]:
        """Disks that were waited for long enough; they are left out from now on."""
        slow = [disk for disk in self._under_way if disk not in self._left_out and now_ns >= self._patience_ends_ns(disk)]
        for disk in slow:
            self._left_out.add(disk)
            self._distrusted_until_ns[disk] = now_ns + DISTRUST_NS
        return slow

    def is_left_out(self, disk: str) -> bool:
        return disk in self._left_out

    @property
    def is_waiting(self) -> bool:
        """Whether appends are under way on disks that are waited for."""
        return len(self._under_way) > len(self._left_out)

    def patience_ends_ns(self) -> int:
        """When the next of them is waited for no longer; 0: none is waited for."""
        return min((self._patience_ends_ns(disk) for disk in self._under_way if disk not in self._left_out), default=0)

    def _patience_ends_ns(self, disk: str) -> int:
        since_ns = self._since_ns[disk]
        if since_ns < self._distrusted_until_ns.get(disk, 0):
            return since_ns
        return since_ns + PATIENCE_NS + (self._offered[disk] - 1) * APPEND_NS
