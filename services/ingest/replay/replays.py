"""Replays: the one door through which an ingest asks whether something was stored before, and says what it does, so that its next life can answer that.

Owned by one ingest. Memory of identities and streams (`replay_memory`, `frame_streams`), the journal that carries both over a crash, and the
questions to leaders about what the previous lives had under way. In the beginning the journal is read, 20 ms each turn (`is_loaded`); nobody may send
before.

Killed with -9, and what a sender's replay meets then:
* before the journal was written: nothing; its records are new, and were not stored.
* after that, whether the batch was offered, appended, completed, or answered: its identities are unsure until its leader has said what it has. The log-writer
  lets go of the dead life's rings first, so nothing of them can be appended after that answer.
* log-writer, acceptor or controller instead of ingest: this life goes on; the outlet offers under the same sequences again, and units settle once.
Leader moved: the new one is asked; what it does not have is stored when it comes again. For power cuts and damaged files see `replay_journal`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from appliance.base.clock import Clock
from appliance.base.logging import Logger
from appliance.cluster.metadata_image import MetadataImage
from appliance.shm.counters import Counters
from services.ingest.replay.frame_stream import FrameStream
from services.ingest.replay.frame_streams import FrameStreams
from services.ingest.replay.journal_findings import JournalFindings
from services.ingest.replay.journal_records import Done, Forgotten, Frames, JournalledBatch, JournalRecord, Stored
from services.ingest.replay.journalled_batches import JournalledBatches, SequenceRequester
from services.ingest.replay.replay_journal import ReplayJournal
from services.ingest.replay.replay_memory import Part, ReplayMemory
from services.ingest.replay.stream_replay import OnAligned, OnDropped, StreamReplay

if TYPE_CHECKING:
    from appliance.senders.listener import Listener
    from services.ingest.records.event import EventSource

ENTRY_BYTES = 150
LOOK_MS = 1_000
LOAD_NS = 20_000_000
LOADED_AT_ONCE = 200


class BatchWithParts(Protocol):
    """`OutgoingBatch`, as far as it is needed."""

    topic: str
    topic_id: bytes
    partition: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def parts(self) -> Sequence[Part]: ...


class Replays:
    """`do_work` each turn; `before_offer`, `stored` and `refused` for each batch that has parts."""

    def __init__(
        self, directory: str, life: str, boot: bytes, entries_max: int, keep_ms: int, peers: SequenceRequester, clock: Clock, counters: Counters, log: Logger
    ) -> None:
        """`directory`: `STATE/ingest/K/journal`; `life` is no other life's; `boot` is the machine's."""
        self._clock = clock
        now_ms = clock.monotonic_ms()
        self.memory = ReplayMemory(entries_max, keep_ms)
        self._streams = FrameStreams(self.memory, keep_ms, f"{life}.{clock.wall_ms():x}".encode())
        self._journal = ReplayJournal(directory, boot, entries_max * ENTRY_BYTES, keep_ms, clock, counters, log, self._checkpoint)
        self._checkpoint_bytes_max = self._journal.limit_bytes // 4
        self._under_way: dict[BatchWithParts, JournalledBatch] = {}
        self._asked = JournalledBatches(peers, self._on_resolved, now_ms)
        self._findings: JournalFindings | None = JournalFindings(self.memory, boot)
        self._reading: Iterator[JournalRecord] = iter(())
        self._next_look_ms = now_ms
        self._found = counters.counter("ingest.replay_batches_found")
        self._found_stored = counters.counter("ingest.replay_batches_found_stored")
        self._identities = counters.gauge("ingest.replay_identities")

    @property
    def is_loaded(self) -> bool:
        """Whether the journal was read: before that nothing may be taken."""
        return self._findings is None

    @property
    def is_resolved(self) -> bool:
        """Whether it is known of everything that the previous lives had under way what became of it."""
        return self.is_loaded and self._asked.is_empty

    # -- turns

    def do_work(self, now_ms: int, image: MetadataImage, rings_are_final: bool) -> int:
        """`rings_are_final`: nothing that the previous life put into a ring can be appended any more."""
        if self._findings is not None:
            return self._load(self._findings, now_ms)
        work = self._journal.turn(now_ms)
        if not self._asked.is_empty and rings_are_final:
            work += self._asked.turn(now_ms, image)
        if self._streams.holding:
            work += self._streams.turn(now_ms)
        if self.memory.has_news:
            work += self.memory.tell()
        if now_ms >= self._next_look_ms:
            self._look(now_ms)
        return work

    def _look(self, now_ms: int) -> None:
        self._next_look_ms = now_ms + LOOK_MS
        self.memory.expire(now_ms)
        self._streams.expire(now_ms)
        for identity in self._streams.ended:
            self._journal.note(Forgotten(identity))
        self._streams.ended.clear()
        self._identities.set(len(self.memory))

    # -- what previous lives left

    def _load(self, findings: JournalFindings, now_ms: int) -> int:
        deadline_ns = self._clock.monotonic_ns() + LOAD_NS
        while self._clock.monotonic_ns() < deadline_ns:
            records = list(islice(self._reading, LOADED_AT_ONCE))
            for record in records:
                findings.add(record)
            if records:
                continue
            self.memory.bound_found()
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
            self.memory.add_unsure(batch.parts)
            self._asked.add(batch)
            self._found.add()
        self.memory.remember_found(now_ms)

    def _on_resolved(self, batch: JournalledBatch, is_stored: bool) -> None:
        self._found_stored.add(is_stored)
        self._journal.note(Done(*batch.stamp, is_stored))
        self.memory.resolve(batch.topic, batch.parts, is_stored, self._clock.monotonic_ms())

    # -- what previous lives left in the spool

    def await_left_over(self, parts: Sequence[Part]) -> None:
        """A batch with these addresses will be stored: replays of them wait for that."""
        self.memory.add_unsure(parts)

    def has_left_over(self, topic: str, parts: Sequence[Part]) -> bool | None:
        """Whether all of it is stored; None while a leader is asked."""
        if any(self._asked.has(identity) for identity, _, _ in parts):
            return None
        has = self.memory.has
        return bool(parts) and all(has(identity, topic, ordinal) for identity, first, count in parts for ordinal in range(first, first + count))

    def end_left_over(self, topic: str, parts: Sequence[Part], is_stored: bool) -> None:
        """It waits no more. If it was offered, `stored` has been told before."""
        self.memory.resolve(topic, parts, is_stored, self._clock.monotonic_ms())

    # -- sessions

    def open_stream(self, listener: Listener, source: EventSource, on_aligned: OnAligned, on_dropped: OnDropped) -> StreamReplay:
        """A session of a protocol that numbers frames anew on each connection begins."""
        return StreamReplay(self._streams, (listener.name, source.host), on_aligned, on_dropped)

    def forget(self, identity: bytes) -> None:
        """Its sender says that it has the answer, or wants none: what comes under it from now on is new, in the next life, too."""
        self.memory.forget(identity)
        self._journal.write(Forgotten(identity))

    # -- batches

    def before_offer(self, batch: BatchWithParts) -> None:
        """It is about to be offered under its stamp for the first time."""
        parts = batch.parts
        record = JournalledBatch(
            batch.topic, batch.topic_id, batch.partition, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.record_count, parts
        )
        self._under_way[batch] = record
        frames = []
        for identity in {part[0] for part in parts}:
            stream = self._streams.known.get(identity)
            if stream is not None and stream.journalled_end < stream.end:
                frames.append(_frames_of(stream))
        self._journal.write(*frames, record)

    def stored(self, batch: BatchWithParts) -> None:
        """It is where its listeners' acks want it."""
        record = self._under_way.pop(batch, None)
        if record is not None:
            self._journal.note(Done(*record.stamp, True))
        parts = batch.parts
        self.memory.add_stored(batch.topic, parts)
        for identity in {part[0] for part in parts}:
            if identity in self._streams.known:
                self.memory.trim_stream(identity)

    def refused(self, batch: BatchWithParts) -> None:
        """For good; its records are not stored."""
        record = self._under_way.pop(batch, None)
        if record is not None:
            self._journal.note(Done(*record.stamp, False))

    # -- the journal's next file

    def _checkpoint(self) -> Iterator[JournalRecord]:
        """What the next file needs of those before it: batches under way, and the ends of streams, those that were made last first, as many as fit."""
        yield from self._under_way.values()
        yield from self._asked.batches()
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
        """An orderly end: what was noted is written."""
        self._look(self._clock.monotonic_ms())
        self._journal.close()


def _frames_of(stream: FrameStream) -> Frames:
    """What the journal lacks of a stream."""
    first_serial, digests = stream.take_unjournalled()
    return Frames(stream.identity, first_serial, stream.key[0], stream.key[1], digests)
