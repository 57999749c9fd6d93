"""What the previous lives of an ingest left in shared memory: completions nobody looked at, and an arena nobody needs.

Owned by the new life while it starts. Its books (the counters) are taken over with what they say; the rings of a dead life are
read once their log-writer has let go of them (it retires them when it notices the hang-up, within a turn) or is proven to be of another life
itself. Then the unseen completions are booked as stored and the rest of what was in flight as `crash`, but for what waits in the spool. New
records may be received meanwhile: the booking is about the ledger as it was found. What of it was stored is another question, for those who
send it again: leaders are asked (`journalled_batches`) once all rings are final, because nothing can be appended after that.
Weak: a log-writer that hangs is waited for `PATIENCE_NS`; what it appends after that is booked as `crash` though it is stored. So is what was
appended, seen, and not yet replicated. The sums are right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.ipc.descriptors import COMPLETION, DescriptorKind
from appliance.senders.accounting import COUNTED_COUNTER, STORED_COUNTER, LossReason, listeners_of, plan_crash_accountings, read_ledger
from appliance.shm.counters import Counters
from appliance.shm.mapping import LayoutMismatch, SharedObjectAbsent, list_names, unlink
from appliance.shm.ring_pair import RingPair

PATIENCE_NS = 5_000_000_000

WriterIncarnation = Callable[[str], int | None]
"""The incarnation of a disk's log-writer that serves now; None while none does."""


class PreviousIncarnation:
    """One `account` a turn until `is_accounted` and `is_final`. `spooled`: records of each listener that wait in the spool."""

    def __init__(
        self, layout: BoxLayout, process_name: str, incarnation: int, counters: Counters, log: Logger, now_ns: int, spooled: Mapping[str, int] | None = None
    ) -> None:
        self._counters = counters
        self._log = log
        self._deadline_ns = now_ns + PATIENCE_NS
        self._spooled = spooled or {}
        values = {label: counters.counter(label).value for label in counters.labels()}
        self._ledgers = {listener: read_ledger(values, listener) for listener in listeners_of(values)}
        self._completed_unseen = 0
        self._rings: list[tuple[str, RingPair]] = []  # (disk, rings)
        self.is_accounted = False
        """The books are in order."""
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

    @property
    def is_final(self) -> bool:
        """Whether nothing that a previous life offered to a log-writer can be appended any more."""
        return not self._rings

    def account(self, now_ns: int, writer_incarnation: WriterIncarnation) -> int:
        """Read the rings that can be read now, and book when none is left, or the time is over. Returns how many were read."""
        read = 0
        for disk, rings in list(self._rings):
            if _is_final(rings, writer_incarnation(disk)):
                self._rings.remove((disk, rings))
                self._completed_unseen += _count_stored(rings)
                self._forget(rings)
                read += 1
        if not self.is_accounted and (not self._rings or now_ns >= self._deadline_ns):
            self._completed_unseen += sum(_count_stored(rings) for _, rings in self._rings)
            self._book()
        return read

    def _book(self) -> None:
        self.is_accounted = True
        bookings = plan_crash_accountings(self._ledgers, self._completed_unseen, self._spooled)
        for listener, booking in bookings.items():
            self._counters.counter(STORED_COUNTER.format(listener=listener)).add(booking.stored)
            if booking.crash:
                self._counters.counter(COUNTED_COUNTER.format(listener=listener, reason=LossReason.CRASH)).add(booking.crash)
        stored, crash = (sum(column) for column in zip(*bookings.values(), strict=True)) if bookings else (0, 0)
        if stored or crash:
            words = f"the previous life ended with {stored} records stored unseen and {crash} that were in it alone; they are counted so"
            self._log.warning(words, reason="crash")

    @staticmethod
    def _forget(rings: RingPair) -> None:
        rings.close()
        rings.shared.unlink()

    def close(self) -> None:
        """The process ends before everything was read: the names stay for the next life."""
        for _, rings in self._rings:
            rings.close()


def _is_final(rings: RingPair, writer_incarnation: int | None) -> bool:
    """Whether nothing more can come: it was never taken up, its log-writer retired it, or another life of the log-writer serves."""
    return rings.retired or (writer_incarnation is not None and rings.writer_incarnation != writer_incarnation)


def _count_stored(rings: RingPair) -> int:
    completions = rings.completion_consumer(COMPLETION)
    return sum(entry[10] for entry in completions if entry[0] == DescriptorKind.PRODUCE and not entry[2])
