"""Decide which disks a `LeaderFetcher` waits for before its next fetch, and which it leaves out.

Appends usually take a millisecond, and the next fetch should name the offsets after them. If a disk
needs longer than `PATIENCE_NS` (plus the usual cost of its appends), the next fetches do not wait
for it for a while: only its partitions with an append in progress are missing in them. If a disk
completes nothing for `STUCK_NS`, or is slow and holds much of the arena, the fetches leave out all
its partitions until its appends are done, because records fetched for it would take the arena from
other disks. A response stays in the arena as a whole until the last append from it is done. So a
slow disk delays only its own partitions. Pure. Weak spots: leaving a disk out, and taking it back,
names each of its partitions; a disk that is fast again but never idle is still not waited for.
"""

from __future__ import annotations

from typing import Protocol

PATIENCE_NS = 20_000_000
APPEND_NS = 200_000
"""The time that each append adds: a response may cause hundreds of them, which on a busy machine
take longer than the patience."""
DISTRUST_NS = 5_000_000_000
STUCK_NS = 250_000_000


class Slot(Protocol):
    """Memory that an append holds; several appends may share it."""

    @property
    def size_bytes(self) -> int: ...


class _Appends:
    """The appends in progress on one disk."""

    __slots__ = ("count", "is_left_out", "is_let_go", "moved_ns", "offered", "since_ns", "size_bytes", "slots")

    def __init__(self, now_ns: int) -> None:
        self.count = 0
        self.slots: dict[Slot, int] = {}
        """Slot → number of appends that hold it."""
        self.size_bytes = 0
        """The total of those slots."""
        self.since_ns = self.moved_ns = now_ns
        """When the first of them was offered; when one completed last."""
        self.offered = 0
        """Appends offered since `since_ns`."""
        self.is_let_go = self.is_left_out = False

    def is_slow(self, now_ns: int) -> bool:
        return now_ns >= self.since_ns + PATIENCE_NS + (self.offered - 1) * APPEND_NS


class SlowDisks:
    """The disks of one leader's partitions.

    `held_bytes_max`: how much of the arena a disk that is not waited for may hold.
    """

    def __init__(self, held_bytes_max: int) -> None:
        self._held_bytes_max = held_bytes_max
        self._under_way: dict[str, _Appends] = {}
        self._distrusted_until_ns: dict[str, int] = {}

    def on_offered(self, disk: str, slot: Slot | None, now_ns: int) -> None:
        """Note an append, with its records in `slot` if it has any."""
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
        """Note a completion; return True if the disk was left out and no longer is."""
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
        """Return the disks that are left out from now on; called before each fetch."""
        left_out = []
        for disk, appends in self._under_way.items():
            if not appends.is_let_go and now_ns >= self._patience_ends_ns(disk, appends):
                appends.is_let_go = True
                if appends.is_slow(now_ns):  # only if it is slow now: otherwise only an idle disk would be trusted again
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
        """True while appends are in progress on disks that the next fetch waits for."""
        return any(not appends.is_let_go for appends in self._under_way.values())

    def patience_ends_ns(self) -> int:
        """Return when the patience with the next disk ends; 0: the fetch waits for none."""
        return min((self._patience_ends_ns(disk, appends) for disk, appends in self._under_way.items() if not appends.is_let_go), default=0)

    def _patience_ends_ns(self, disk: str, appends: _Appends) -> int:
        if appends.since_ns < self._distrusted_until_ns.get(disk, 0):
            return appends.since_ns
        return appends.since_ns + PATIENCE_NS + (appends.offered - 1) * APPEND_NS
