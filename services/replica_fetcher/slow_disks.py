"""Which of our disks a lane waits for before it fetches again, and which it leaves out of its fetches.

Appends take a millisecond as a rule, and the next fetch should name the offsets behind them. A disk that needs longer than `PATIENCE_NS`, and as much again as
many appends cost, is not waited for, and for a while no more: then only the partitions with an append under way are missing in the next fetch. A disk that
completes nothing for `STUCK_NS`, or is slow and holds much of the arena, is left out as a whole until all its appends are done: what is fetched for it would
take the arena from the others. An answer is held as a whole, with what other disks have in it, until the last append from it is done. So a slow disk holds back
nobody's partitions but its own. Pure; owned by a lane. Weak spots: to leave a disk out, and to take it in again, names every one of its partitions; a disk that
is quick again while it always has something under way is still not waited for.
"""

from __future__ import annotations

from typing import Protocol

PATIENCE_NS = 20_000_000
APPEND_NS = 200_000
"""What each append may take on top: an answer has one for each of hundreds of partitions, and on a busy machine they alone take longer than the rest."""
DISTRUST_NS = 5_000_000_000
STUCK_NS = 250_000_000


class Slot(Protocol):
    """Memory that an append holds; others may hold the same."""

    @property
    def size_bytes(self) -> int: ...


class _Appends:
    """Of one disk, what is under way."""

    __slots__ = ("count", "is_left_out", "is_let_go", "moved_ns", "offered", "since_ns", "size_bytes", "slots")

    def __init__(self, now_ns: int) -> None:
        self.count = 0
        self.slots: dict[Slot, int] = {}
        """How many of them hold it."""
        self.size_bytes = 0
        """Of those slots."""
        self.since_ns = self.moved_ns = now_ns
        """When the first of them was offered; when something was completed last."""
        self.offered = 0
        """Since the first."""
        self.is_let_go = self.is_left_out = False

    def is_slow(self, now_ns: int) -> bool:
        return now_ns >= self.since_ns + PATIENCE_NS + (self.offered - 1) * APPEND_NS


class SlowDisks:
    """Of one lane. `held_bytes_max`: what a disk that is not waited for may hold of the arena."""

    def __init__(self, held_bytes_max: int) -> None:
        self._held_bytes_max = held_bytes_max
        self._under_way: dict[str, _Appends] = {}
        self._distrusted_until_ns: dict[str, int] = {}

    def on_offered(self, disk: str, slot: Slot | None, now_ns: int) -> None:
        """An append, with its records in `slot`, if it has any."""
        appends = self._under_way.get(disk)
        if appends is None:
            appends = self._under_way[disk] = _Appends(now_ns)
        appends.count += 1
        appends.offered += 1
        if slot is not None:
            users = appends.slots.get(slot, 0)
            appends.slots[slot] = users + 1
            appends.size_bytes += 0 if users else slot.size_bytes

    def on_done(self, disk: str, slot: Slot | None, now_ns: int) -> bool:
        """Whether it was left out, and no longer is."""
        appends = self._under_way[disk]
        appends.count -= 1
        appends.moved_ns = now_ns
        if slot is not None:
            appends.slots[slot] -= 1
            if not appends.slots[slot]:
                del appends.slots[slot]
                appends.size_bytes -= slot.size_bytes
        if appends.count:
            return False
        del self._under_way[disk]
        if appends.is_slow(now_ns):
            self._distrusted_until_ns[disk] = now_ns + DISTRUST_NS
        return appends.is_left_out

    def leave_out(self, now_ns: int) -> list[str]:
        """To be called before a fetch: disks that are left out from now on."""
        left_out = []
        for disk, appends in self._under_way.items():
            if not appends.is_let_go and now_ns >= self._patience_ends_ns(disk, appends):
                appends.is_let_go = True
                if appends.is_slow(now_ns):  # and not for what it was before: else nothing but a pause would ever earn its trust again
                    self._distrusted_until_ns[disk] = now_ns + DISTRUST_NS
            is_stuck = now_ns >= appends.moved_ns + STUCK_NS or appends.size_bytes > self._held_bytes_max
            if appends.is_let_go and is_stuck and not appends.is_left_out:
                appends.is_left_out = True
                left_out.append(disk)
        return left_out

    def is_left_out(self, disk: str) -> bool:
        appends = self._under_way.get(disk)
        return appends is not None and appends.is_left_out

    @property
    def is_waiting(self) -> bool:
        """Whether appends are under way on disks that are waited for."""
        return any(not appends.is_let_go for appends in self._under_way.values())

    def patience_ends_ns(self) -> int:
        """When the next of them is waited for no longer; 0: none is waited for."""
        return min((self._patience_ends_ns(disk, appends) for disk, appends in self._under_way.items() if not appends.is_let_go), default=0)

    def _patience_ends_ns(self, disk: str, appends: _Appends) -> int:
        if appends.since_ns < self._distrusted_until_ns.get(disk, 0):
            return appends.since_ns
        return appends.since_ns + PATIENCE_NS + (appends.offered - 1) * APPEND_NS
