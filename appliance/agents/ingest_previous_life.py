"""What the previous lives of an ingest left in shared memory: completions nobody looked at, and an arena nobody needs.

Owned by the new life while it starts. Its books (the counters) are taken over with what they say; the rings of a dead life are
read once their log-writer has let go of them (it retires them when it notices the hang-up, within a turn) or is proven to be of another life
itself. Then the unseen completions are booked as stored and the rest of what was in flight as `crash`. New lines may be received
meanwhile: the booking is about the ledger as it was found.
Weak: a log-writer that hangs is waited for `PATIENCE_NS`; what it appends after that is booked as `crash` though it is stored.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.ingest.accounting import COUNTED_COUNTER, STORED_COUNTER, LossReason, plan_crash_booking, read_ledger
from appliance.ipc.descriptors import COMPLETION, DescriptorKind
from appliance.shm.counters import Counters
from appliance.shm.mapping import LayoutMismatch, SharedObjectAbsent, list_names, unlink
from appliance.shm.ring_pair import RingPair

PATIENCE_NS = 5_000_000_000

WriterIncarnation = Callable[[str], int | None]
"""The incarnation of a disk's log-writer that serves now; None while none does."""


class IngestPreviousLife:
    """One `settle` a turn until `settled`."""

    def __init__(self, layout: BoxLayout, process_name: str, incarnation: int, counters: Counters, log: Logger, now_ns: int) -> None:
        self._counters = counters
        self._log = log
        self._deadline_ns = now_ns + PATIENCE_NS
        values = {label: counters.counter(label).value for label in counters.labels()}
        self._ledger = read_ledger(values)
        self._completed_unseen = 0
        self._rings: list[tuple[str, RingPair]] = []  # (disk, rings)
        self.settled = False
        own = f".{incarnation:x}"
        prefix = layout.shared_memory_name("channel", process_name) + "."
        for name in list_names(prefix):
            if not name.endswith(own):
                self._open(name, name[len(prefix) :].rsplit(".", 2)[0])
        prefix = layout.shared_memory_name("arena", process_name) + "."
        for name in list_names(prefix):
            if not name.endswith(own):
                unlink(name)  # whoever still maps it goes on; its owner is dead

    def _open(self, name: str, disk: str) -> None:
        try:
            rings = RingPair.attach(name)
        except (SharedObjectAbsent, LayoutMismatch):
            unlink(name)
            return
        if rings.shared.is_of_this_boot():
            self._rings.append((disk, rings))
        else:
            self._forget(rings)

    def settle(self, now_ns: int, writer_incarnation: WriterIncarnation) -> int:
        """Read the rings that can be read now, and book when none is left. Returns how many were read."""
        read = 0
        for disk, rings in list(self._rings):
            if self._is_final(rings, writer_incarnation(disk)) or now_ns >= self._deadline_ns:
                self._rings.remove((disk, rings))
                self._completed_unseen += _count_stored(rings)
                self._forget(rings)
                read += 1
        if not self._rings and not self.settled:
            self._book()
        return read

    @staticmethod
    def _is_final(rings: RingPair, writer_incarnation: int | None) -> bool:
        """Whether nothing more can come: it was never taken up, its log-writer retired it, or another life of the log-writer serves."""
        claimed_by = rings.writer_incarnation
        return rings.retired or (writer_incarnation is not None and claimed_by != writer_incarnation)

    def _book(self) -> None:
        self.settled = True
        booking = plan_crash_booking(self._ledger, self._completed_unseen)
        self._counters.counter(STORED_COUNTER).add(booking.stored)
        self._counters.counter(COUNTED_COUNTER.format(reason=LossReason.CRASH)).add(booking.crash)
        if booking.stored or booking.crash:
            words = f"the previous life ended with {booking.stored} lines stored unseen and {booking.crash} lines lost; they are counted so"
            self._log.warning(words, reason="crash")

    @staticmethod
    def _forget(rings: RingPair) -> None:
        rings.close()
        rings.shared.unlink()

    def close(self) -> None:
        """The process ends before everything was read: the names stay for the next life."""
        for _, rings in self._rings:
            rings.close()


def _count_stored(rings: RingPair) -> int:
    completions = rings.completion_consumer(COMPLETION)
    return sum(entry[10] for entry in completions if entry[0] == DescriptorKind.PRODUCE and not entry[2])
