"""What previous incarnations of an ingest left: counters, rings, spool and journal.

Owned by one ingest. Its counters continue those of the dead incarnation. Order of a start: read the
counters as they were found; what is in the spool stays in flight in them; read the rings when they
are final; read the journal, 20 ms each turn. Senders are not read before the journal is loaded.

Rings are final when their log-writer has retired them (it notices the hang-up within a turn), or
another incarnation of the log-writer serves. Then unread completions count as stored, and the rest
of what was in flight counts as `crash`, except for what is in the spool. New records may arrive
meanwhile. What was appended, read, and not yet replicated counts as stored, too (`APPENDED_COUNTER`).
The accounting concerns the ledger as it was found. Which of those records are in the log
is a different question, for senders that repeat them. Leaders are asked (`journalled_batches`) when
all rings are final, because after that nothing can be appended from them.

Weak: a hung log-writer is waited for `PATIENCE_NS`; what it appends later was counted as `crash`,
although it is stored. The sums are right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from appliance.base.layout import INGEST_STATE, boot_id
from appliance.cluster.metadata_image import MetadataImage
from appliance.ipc.descriptors import COMPLETION, DescriptorKind
from appliance.runtime.agent import ServiceContext
from appliance.senders.accounting import APPENDED_COUNTER, COUNTED_COUNTER, STORED_COUNTER, LossReason, listeners_of, plan_crash_accountings, read_ledger
from appliance.senders.listener import SYSLOG_TCP, Listener
from appliance.shm.mapping import LayoutMismatch, SharedObjectAbsent, list_names, unlink
from appliance.shm.ring import RingPair
from services.ingest.producer.ingest_spool import IngestSpool
from services.ingest.producer.spool_replay import SpoolReceiver, SpoolReplay
from services.ingest.replay.journalled_batches import SequenceRequester
from services.ingest.replay.replays import Replays

PATIENCE_NS = 5_000_000_000

WriterIncarnation = Callable[[str], int | None]
"""Return the incarnation of a disk's serving log-writer; None if none serves."""


class PreviousIncarnation:
    """The accounting: call `account` until `is_accounted` and `is_final`. `spooled`: records of
    each listener in the spool."""

    def __init__(self, context: ServiceContext, spooled: Mapping[str, int]) -> None:
        layout, process_name, counters = context.layout, context.process_name, context.counters
        self._counters = counters
        self._log = context.log
        self._deadline_ns = context.clock.monotonic_ns() + PATIENCE_NS
        self._spooled = spooled
        values = {label: counters.counter(label).value for label in counters.labels()}
        self._ledgers = {listener: read_ledger(values, listener) for listener in listeners_of(values)}
        self._appended = {listener: values.get(APPENDED_COUNTER.format(listener=listener), 0) for listener in self._ledgers}
        self._completed_unseen = 0
        self._rings: list[tuple[str, RingPair]] = []  # (disk, rings)
        self.is_accounted = False
        """The ledger balances."""
        own = f".{context.incarnation:x}"
        prefix = layout.shared_memory_name("channel", process_name) + "."
        for name in list_names(prefix):
            if not name.endswith(own):
                self._open(name, name[len(prefix) :].rsplit(".", 2)[0])
        prefix = layout.shared_memory_name("arena", process_name) + "."
        for name in list_names(prefix):
            if not name.endswith(own):
                unlink(name)  # a process that maps it keeps its memory; the owner is dead

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
        """True if nothing that a previous incarnation offered can be appended any more."""
        return not self._rings

    def account(self, now_ns: int, writer_incarnation: WriterIncarnation) -> int:
        """Read the final rings; account when none is left or `PATIENCE_NS` is over. Return the
        number of rings read."""
        read = 0
        for disk, rings in list(self._rings):
            if _is_final(rings, writer_incarnation(disk)):
                self._rings.remove((disk, rings))
                self._completed_unseen += _count_stored(rings)
                self._forget(rings)
                read += 1
        # A log-writer that hangs must not keep the ledger open: its rings are counted as they are now.
        if not self.is_accounted and (not self._rings or now_ns >= self._deadline_ns):
            self._completed_unseen += sum(_count_stored(rings) for _, rings in self._rings)
            self._account()
        return read

    def _account(self) -> None:
        self.is_accounted = True
        accountings = plan_crash_accountings(self._ledgers, self._completed_unseen, self._spooled, self._appended)
        for listener, accounting in accountings.items():
            self._counters.counter(APPENDED_COUNTER.format(listener=listener)).add(-self._appended[listener])
            self._counters.counter(STORED_COUNTER.format(listener=listener)).add(accounting.stored)
            if accounting.crash:
                self._counters.counter(COUNTED_COUNTER.format(listener=listener, reason=LossReason.CRASH)).add(accounting.crash)
        stored, crash = (sum(column) for column in zip(*accountings.values(), strict=True)) if accountings else (0, 0)
        if stored or crash:
            message = f"the previous incarnation ended: {stored} records had been stored, or appended by their leader"
            self._log.warning(f"{message}, {crash} were only in its memory and are counted as crash", reason="crash")

    @staticmethod
    def _forget(rings: RingPair) -> None:
        rings.close()
        rings.shared.unlink()

    def close(self) -> None:
        """Stop before all rings were read: their names stay for the next incarnation."""
        for _, rings in self._rings:
            rings.close()


def _is_final(rings: RingPair, writer_incarnation: int | None) -> bool:
    """True if the rings were never attached, were retired, or belong to another incarnation of the
    log-writer."""
    return rings.retired or (writer_incarnation is not None and rings.writer_incarnation != writer_incarnation)


def _count_stored(rings: RingPair) -> int:
    completions = rings.completion_consumer(COMPLETION)
    return sum(entry[10] for entry in completions if entry[0] == DescriptorKind.PRODUCE and not entry[2])


class InheritedState:
    """Spool, replay memory and crash accounting of an ingest. Call `turn` each turn."""

    def __init__(self, context: ServiceContext, listeners: Mapping[str, Listener], peers: SequenceRequester, writer_incarnation: WriterIncarnation) -> None:
        box, counters, clock, log = context.box, context.counters, context.clock, context.log
        state = f"{box.state_directory}/{INGEST_STATE}/{context.instance or '0'}"
        found = {label: counters.counter(label).value for label in counters.labels()}
        self.spool = IngestSpool(f"{state}/spool", box.integer("ingest.spool.bytes"), clock, counters, log)
        self._left_over = SpoolReplay(self.spool, found, listeners, lambda name: listeners[SYSLOG_TCP]._replace(name=name))
        self.accounting = PreviousIncarnation(context, self._left_over.records)
        self.peers = peers
        self.replays = Replays(
            f"{state}/journal",
            f"{context.process_name}.{context.incarnation:x}",
            boot_id(),
            box.integer("ingest.replay.entries.max"),
            box.integer("ingest.replay.ms"),
            peers,
            clock,
            counters,
            log,
        )
        self._writer_incarnation = writer_incarnation

    @property
    def topics(self) -> Sequence[str]:
        """Topics of the batches in the spool."""
        return self._left_over.topics

    def turn(self, now_ns: int, image: MetadataImage, sender: SpoolReceiver) -> int:
        work = 0
        if not self._left_over.is_done:
            work += self._left_over.turn(self.replays, sender, now_ns)
        if not (self.accounting.is_accounted and self.accounting.is_final):
            work += self.accounting.account(now_ns, self._writer_incarnation)
        return work + self.replays.do_work(now_ns // 1_000_000, image, self.accounting.is_final)

    def close(self) -> None:
        self.accounting.close()
        self.replays.close()
        self.spool.close()
