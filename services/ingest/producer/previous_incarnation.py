"""What previous incarnations of an ingest left: counters, spool and journal.

Owned by one ingest. Its counters continue those of the dead incarnation. Order of a start: read the
counters as they were found; what is in the spool stays in flight in them; learn what the
log-writers completed; read the journal, 20 ms each turn. Senders are not read before the journal is
loaded.

A log-writer counts the records that it completes for an ingest, and an ingest those of completions
that it takes (`COMPLETED_COUNTER`), both in shared memory that outlives them. WELCOME brings the
first number, and by then the log-writer has dropped what a previous incarnation offered. The
difference counts as stored, and the rest of what was in flight as `crash`, except for what is in
the spool. New records may arrive meanwhile. What was appended, read, and not yet replicated counts
as stored, too (`APPENDED_COUNTER`). The accounting concerns the ledger as it was found. Which of
those records are in the log is a different question, for senders that repeat them. Leaders are
asked (`journalled_batches`) when all log-writers have answered, because after that nothing can be
appended any more.

Weak: a hung log-writer is waited for `PATIENCE_NS`; what it appends later was counted as `crash`,
although it is stored. The sums are right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from appliance.base.layout import INGEST_STATE, boot_id
from appliance.cluster.metadata_image import MetadataImage
from appliance.ipc.log_writer_proxy import COMPLETED_COUNTER
from appliance.runtime.agent import ServiceContext
from appliance.senders.accounting import (
    APPENDED_COUNTER,
    COUNTED_COUNTER,
    STORED_COUNTER,
    LossReason,
    labels_of,
    listeners_of,
    plan_crash_accountings,
    read_ledger,
)
from appliance.senders.listener import SYSLOG_TCP, Listener
from appliance.shm.counters import Counter, read_counters
from services.ingest.producer.ingest_spool import IngestSpool
from services.ingest.producer.spool_replay import SpoolReceiver, SpoolReplay
from services.ingest.replay.journalled_batches import SequenceRequester
from services.ingest.replay.replays import Replays

PATIENCE_NS = 5_000_000_000

_OPEN_CHANNELS = 'ingest.open_channels{{disk="{disk}"}}'


class PreviousIncarnation:
    """The accounting: call `account` until `is_accounted` and `is_final`. `spooled`: records of
    each listener in the spool."""

    def __init__(self, context: ServiceContext, spooled: Mapping[str, int]) -> None:
        self._layout, self._process_name, self._counters = context.layout, context.process_name, context.counters
        self._log = context.log
        self._deadline_ns = context.clock.monotonic_ns() + PATIENCE_NS
        self._spooled = spooled
        values = {label: self._counters.counter(label).value for label in self._counters.labels()}
        self._ledgers = {listener: read_ledger(values, listener) for listener in listeners_of(values)}
        self._appended = {listener: values.get(APPENDED_COUNTER.format(listener=listener), 0) for listener in self._ledgers}
        self._awaited = {labels_of(label)[1]["disk"] for label, value in values.items() if value and label.startswith(_OPEN_CHANNELS.partition("{")[0])}
        """Disks whose log-writer may still complete what was offered to it."""
        self._unread: dict[str, int] = {}
        """By disk: records of completions that were not read, until they are accounted for."""
        self.is_accounted = False
        """The ledger balances."""

    @property
    def is_final(self) -> bool:
        """True if nothing that a previous incarnation offered can be appended any more."""
        return not self._awaited

    def on_connected(self, disk: str, completed: int) -> None:
        """The log-writer has dropped what previous incarnations offered. `completed`: records that
        it has completed for all of them."""
        if disk in self._awaited:
            self._awaited.discard(disk)
            if not self.is_accounted:
                self._unread[disk] = self._unread_of(disk, completed)
        self._completed(disk).set(completed - self._unread.get(disk, 0))
        self._set_open(disk, 1)

    def on_gone(self, disk: str) -> None:
        """All completions of that channel were read."""
        self._set_open(disk, 0)

    def account(self, now_ns: int, disks: Collection[str]) -> int:
        """Account when no log-writer of `disks`, those of the box, is awaited or `PATIENCE_NS` is
        over. Return how much was done."""
        self._awaited.intersection_update(disks)
        if self.is_accounted or (self._awaited and now_ns < self._deadline_ns):
            return 0
        # A log-writer that hangs must not keep the ledger open: what it has completed until now counts.
        for disk in self._awaited:
            snapshot = read_counters(self._layout, f"log-writer@{disk}")
            if snapshot is not None:
                self._unread[disk] = self._unread_of(disk, snapshot.values.get(f'log_writer.completed_records{{source="{self._process_name}"}}', 0))
        self._account(sum(self._unread.values()))
        for disk, unread in self._unread.items():
            self._completed(disk).add(unread)
        self._unread.clear()
        return 1

    def _unread_of(self, disk: str, completed: int) -> int:
        return max(0, completed - self._completed(disk).value)

    def _completed(self, disk: str) -> Counter:
        return self._counters.counter(COMPLETED_COUNTER.format(disk=disk))

    def _set_open(self, disk: str, is_open: int) -> None:
        self._counters.gauge(_OPEN_CHANNELS.format(disk=disk)).set(is_open)

    def _account(self, unread: int) -> None:
        self.is_accounted = True
        accountings = plan_crash_accountings(self._ledgers, unread, self._spooled, self._appended)
        for listener, accounting in accountings.items():
            self._counters.counter(APPENDED_COUNTER.format(listener=listener)).add(-self._appended[listener])
            self._counters.counter(STORED_COUNTER.format(listener=listener)).add(accounting.stored)
            if accounting.crash:
                self._counters.counter(COUNTED_COUNTER.format(listener=listener, reason=LossReason.CRASH)).add(accounting.crash)
        stored, crash = (sum(column) for column in zip(*accountings.values(), strict=True)) if accountings else (0, 0)
        if stored or crash:
            message = f"the previous incarnation ended: {stored} records had been stored, or appended by their leader"
            self._log.warning(f"{message}, {crash} were only in its memory and are counted as crash", reason="crash")

    def close(self, disks: Iterable[str]) -> None:
        """Stop cleanly: no completion is left unread, but those that were not accounted for."""
        for disk in disks:
            if disk not in self._awaited:
                self._set_open(disk, int(disk in self._unread))


class InheritedState:
    """Spool, replay memory and crash accounting of an ingest. Call `turn` each turn."""

    def __init__(self, context: ServiceContext, listeners: Mapping[str, Listener], peers: SequenceRequester, disks: Collection[str]) -> None:
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
        self._disks = disks

    @property
    def topics(self) -> Sequence[str]:
        """Topics of the batches in the spool."""
        return self._left_over.topics

    def turn(self, now_ns: int, image: MetadataImage, sender: SpoolReceiver) -> int:
        work = 0
        if not self._left_over.is_done:
            work += self._left_over.turn(self.replays, sender, now_ns)
        if not (self.accounting.is_accounted and self.accounting.is_final):
            work += self.accounting.account(now_ns, self._disks)
        return work + self.replays.do_work(now_ns // 1_000_000, image, self.accounting.is_final)

    def close(self) -> None:
        self.accounting.close(self._disks)
        self.replays.close()
        self.spool.close()
