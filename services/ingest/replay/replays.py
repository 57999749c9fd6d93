"""`Replays`: what an ingest records about identities, and asks to recognise repeats.

Owned by one ingest. It combines the memory of identities and streams (`replay_memory`,
`frame_streams`), the journal that carries both over a crash, and the requests to leaders about what
previous incarnations had in flight. At the start the journal is read, 20 ms each turn; no sender is
read before `is_loaded`.

What a repeat finds after `kill -9`:

* before the journal was written: nothing. Its records are new, and were not stored.
* after that, whether the batch was offered, appended, completed or answered: its identities are
  unresolved until the leader has reported what it has. The log-writers release the dead
  incarnation's rings first, so nothing from them can be appended after that report.
* if log-writer, acceptor or controller died instead: this incarnation continues, offers under the
  same sequences again, and each ack group completes once.

If the leader moved, the new one is asked; what it lacks is stored when it is repeated. Power cuts
and damaged files: `replay_journal`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from appliance.base.clock import Clock
from appliance.base.logging import Logger
from appliance.base.model import ProducerId
from appliance.cluster.metadata_image import MetadataImage
from appliance.shm.counters import Counters
from services.ingest.replay.frame_streams import FrameStream, FrameStreams
from services.ingest.replay.journal_records import Done, Forgotten, Frames, JournalFindings, JournalledBatch, JournalRecord, Stored
from services.ingest.replay.journalled_batches import JournalledBatches, SequenceRequester
from services.ingest.replay.replay_journal import ReplayJournal
from services.ingest.replay.replay_memory import Part, ReplayMemory
from services.ingest.replay.stream_replay import OnAligned, OnDropped, StreamReplay

if TYPE_CHECKING:
    from appliance.senders.listener import Listener
    from services.ingest.records.event import EventSource

ENTRY_BYTES = 150
EXPIRE_MS = 1_000
LOAD_NS = 20_000_000
LOADED_AT_ONCE = 200


class BatchWithParts(Protocol):
    """`ProducerBatch`, as far as it is needed."""

    topic: str
    topic_id: bytes
    partition: int
    producer_id: ProducerId
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def parts(self) -> Sequence[Part]: ...


class Replays:
    """Call `do_work` each turn; `before_offer`, `stored` and `refused` for each batch that has
    parts."""

    def __init__(
        self,
        directory: str,
        incarnation: str,
        boot: bytes,
        entries_max: int,
        keep_ms: int,
        peers: SequenceRequester,
        clock: Clock,
        counters: Counters,
        log: Logger,
    ) -> None:
        """`directory`: `STATE/ingest/K/journal`; `incarnation`: unique to this run; `boot`: the
        machine's boot id."""
        self._clock = clock
        now_ms = clock.monotonic_ms()
        self.memory = ReplayMemory(entries_max, keep_ms)
        self._streams = FrameStreams(self.memory, keep_ms, f"{incarnation}.{clock.wall_ms():x}".encode())
        self._journal = ReplayJournal(directory, boot, entries_max * ENTRY_BYTES, keep_ms, clock, counters, log, self._checkpoint)
        self._checkpoint_bytes_max = self._journal.limit_bytes // 4
        self._in_flight: dict[BatchWithParts, JournalledBatch] = {}
        self._forgotten: set[bytes] = set()
        self._answered: set[bytes] = set()
        """Of those, the ones of an earlier turn, which the journal still lacks."""
        self._unresolved = JournalledBatches(peers, self._on_resolved, now_ms)
        self._findings: JournalFindings | None = JournalFindings(self.memory, boot)
        self._reading: Iterator[JournalRecord] = iter(())
        self._next_expiry_ms = now_ms
        self._found = counters.counter("ingest.replay_batches_found")
        self._found_stored = counters.counter("ingest.replay_batches_found_stored")
        self._identities = counters.gauge("ingest.replay_identities")

    @property
    def is_loaded(self) -> bool:
        """True after the journal was read; no record may be taken before."""
        return self._findings is None

    @property
    def is_resolved(self) -> bool:
        """True if the result of every batch of previous incarnations is known."""
        return self.is_loaded and self._unresolved.is_empty

    # -- turns

    def do_work(self, now_ms: int, image: MetadataImage, rings_are_final: bool) -> int:
        """`rings_are_final`: nothing that a previous incarnation put into a ring can be appended
        any more."""
        if self._findings is not None:
            return self._load(self._findings, now_ms)
        work = self._journal.turn(now_ms)
        if self._answered:
            self._write_forgotten(self._answered)
        if self._forgotten:  # their answers are sent at the end of this turn
            self._answered, self._forgotten = self._forgotten, self._answered
            work += 1
        if not self._unresolved.is_empty and rings_are_final:
            work += self._unresolved.turn(now_ms, image)
        if self._streams.holding:
            work += self._streams.turn(now_ms)
        if self.memory.has_callbacks:
            work += self.memory.notify()
        if now_ms >= self._next_expiry_ms:
            self._expire(now_ms)
        return work

    def _expire(self, now_ms: int) -> None:
        self._next_expiry_ms = now_ms + EXPIRE_MS
        self.memory.expire(now_ms)
        self._streams.expire(now_ms)
        for identity in self._streams.ended:
            self._journal.note(Forgotten(identity))
        self._streams.ended.clear()
        self._identities.set(len(self.memory))

    # -- what previous incarnations left

    def _load(self, findings: JournalFindings, now_ms: int) -> int:
        deadline_ns = self._clock.monotonic_ns() + LOAD_NS
        while self._clock.monotonic_ns() < deadline_ns:
            records = list(islice(self._reading, LOADED_AT_ONCE))
            for record in records:
                findings.add(record)
            if records:
                continue
            self.memory.limit_found()
            if not self._journal.unread:
                self._take_findings(findings, now_ms)
                break
            self._reading = self._journal.read_one()
        return 1

    def _take_findings(self, findings: JournalFindings, now_ms: int) -> None:
        self._findings = None
        for stream in findings.broken_streams():
            self._streams.add_broken(stream)
        for batch in findings.open_batches():
            self.memory.add_unresolved(batch.parts)
            self._unresolved.add(batch)
            self._found.add()
        self.memory.remember_found(now_ms)

    def _on_resolved(self, batch: JournalledBatch, is_stored: bool) -> None:
        self._found_stored.add(is_stored)
        self._journal.note(Done(*batch.stamp, is_stored))
        self.memory.resolve(batch.topic, batch.parts, is_stored, self._clock.monotonic_ms())

    # -- what previous incarnations left in the spool

    def await_left_over(self, parts: Sequence[Part]) -> None:
        """A spooled batch with these addresses will be offered: repeats of its records wait."""
        self.memory.add_unresolved(parts)

    def has_left_over(self, topic: str, parts: Sequence[Part]) -> bool | None:
        """True if all of it is stored; None while a leader is asked."""
        if any(self._unresolved.has(identity) for identity, _, _ in parts):
            return None
        has = self.memory.has
        return bool(parts) and all(has(identity, topic, ordinal) for identity, first, count in parts for ordinal in range(first, first + count))

    def end_left_over(self, topic: str, parts: Sequence[Part], is_stored: bool) -> None:
        """The spooled batch is done. If it was offered and stored, `stored` was called before."""
        self.memory.resolve(topic, parts, is_stored, self._clock.monotonic_ms())

    # -- sessions

    def open_stream(self, listener: Listener, source: EventSource, on_aligned: OnAligned, on_dropped: OnDropped) -> StreamReplay:
        """Return the stream of a new session whose protocol numbers frames anew on each connection."""
        return StreamReplay(self._streams, (listener.name, source.host), on_aligned, on_dropped)

    def forget(self, identity: bytes) -> None:
        """The sender is answered or wants no answer: the identity is new from now on, and in the
        next incarnation, too, once the answers of this turn are sent. A death before that leaves a
        sender without the answer, and what it repeats has to be recognised."""
        self.memory.forget(identity)
        self._forgotten.add(identity)

    def _write_forgotten(self, identities: set[bytes]) -> None:
        self._journal.write(*map(Forgotten, identities))
        identities.clear()

    # -- batches

    def before_offer(self, batch: BatchWithParts) -> None:
        """Record a batch that is about to be offered under its stamp for the first time.

        The record is written before the offer. Otherwise a crash right after the append would leave
        a stored batch that no journal knows, and its repeat would be stored twice.
        """
        parts = batch.parts
        record = JournalledBatch(
            batch.topic, batch.topic_id, batch.partition, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.record_count, parts
        )
        self._in_flight[batch] = record
        frames = []
        identities = {part[0] for part in parts}
        if not (identities.isdisjoint(self._answered) and identities.isdisjoint(self._forgotten)):
            self._write_forgotten(self._answered)  # before the record that uses one of them again
            self._write_forgotten(self._forgotten)
        for identity in identities:
            stream = self._streams.known.get(identity)
            if stream is not None and stream.journalled_end < stream.end:
                frames.append(_frames_of(stream))
        self._journal.write(*frames, record)

    def stored(self, batch: BatchWithParts) -> None:
        """The batch is where its listeners' acks require it."""
        record = self._in_flight.pop(batch, None)
        if record is not None:
            self._journal.note(Done(*record.stamp, True))
        parts = batch.parts
        self.memory.add_stored(batch.topic, parts)
        for identity in {part[0] for part in parts}:
            if identity in self._streams.known:
                self.memory.trim_stream(identity)

    def refused(self, batch: BatchWithParts) -> None:
        """The batch is refused for good; its records are not stored."""
        record = self._in_flight.pop(batch, None)
        if record is not None:
            self._journal.note(Done(*record.stamp, False))

    # -- the journal's next file

    def _checkpoint(self) -> Iterator[JournalRecord]:
        """Yield what the next file needs of those before it: batches in flight, and the ends of
        streams, newest first, as many as fit."""
        yield from self._in_flight.values()
        yield from self._unresolved.batches()
        size_bytes = 0
        for stream in reversed(self._streams.known.values()):
            if stream.journalled_end <= stream.base:
                continue
            size_bytes += len(stream.digests)
            if size_bytes > self._checkpoint_bytes_max:
                break
            stream.journalled_end = stream.base
            yield _frames_of(stream)
            for topic, stored in self.memory.stored_of(stream.identity).items():
                yield Stored(stream.identity, stored.base, topic, stored.bits)

    def close(self) -> None:
        """Write what was noted."""
        self._write_forgotten(self._answered | self._forgotten)
        self._expire(self._clock.monotonic_ms())
        self._journal.close()


def _frames_of(stream: FrameStream) -> Frames:
    """Return the frames that the journal lacks."""
    first_serial, digests = stream.take_unjournalled()
    return Frames(stream.identity, first_serial, stream.key[0], stream.key[1], digests)
