"""Reads by log-readers of records that are not in the page cache, before a response is built and while it is sent.

Before: a fetch has one cold partition at a time, as in Kafka with tiered storage, so that no fetch holds
memory of a log-reader while it waits for more of it; the others follow with the next fetch. A read that fails
is that partition's error. While a response is sent: a part of a range was evicted since, or one batch is
larger than an answer. Its head was sent already, so a failure closes the connection, and the client retries.
Gathered: such a batch for a client that needs it converted is copied to the heap, piece by piece, before.
Owned by one acceptor. Weak spot: a consumer of many cold partitions gets one answer (at most 2 to 3 MiB) of
one of them at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.model import NO_OFFSET, Position
from appliance.ipc.log_reader_messages import FIRST_WHATEVER, IS_ACTIVE, READ, WHOLE_BATCHES, Answer, Extent, ReadAnswer
from appliance.ipc.log_reader_proxy import LogReaderProxy
from appliance.shm.counters import Counters
from services.acceptor.connection import Connection
from services.acceptor.fetch.record_ranges import ArenaRange, FileRange, ServedSegment

_NO_POSITION = Position(-1)
REST_BYTES = 2 << 20
"""Asked for at a time while a response is sent, or a batch is gathered."""
GATHERED_BYTES_MAX = 64 << 20
"""A batch that is larger is not converted from the disk."""


class GatheredBatch:
    """One batch in the heap, whole when it is `size_bytes` long."""

    __slots__ = ("content", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.content = bytearray()
        self.size_bytes = size_bytes

    @property
    def is_whole(self) -> bool:
        return len(self.content) == self.size_bytes


class ColdRead:
    """A fetch's one read: what was asked, and how it ended."""

    __slots__ = ("answer", "base_offset", "error", "gathered", "position", "range", "target")

    def __init__(self, target: object) -> None:
        self.target = target
        """which partition of the fetch"""
        self.base_offset, self.position = NO_OFFSET, _NO_POSITION
        """where in which segment it begins"""
        self.error: ErrorCode | None = None
        self.answer: ReadAnswer | None = None
        self.range: ArenaRange | None = None
        """what to send; none where not even one batch fits"""
        self.gathered: GatheredBatch | None = None


class ColdReads:
    """All of one acceptor."""

    def __init__(
        self,
        readers: dict[str, LogReaderProxy],
        clock: Clock,
        counters: Counters,
        on_ready: Callable[[Connection], None],
        on_failed: Callable[[Connection], None],
    ) -> None:
        """`on_ready`: a connection can go on sending. `on_failed`: it cannot, ever."""
        self._readers = readers
        self._clock = clock
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._questions = counters.counter("fetch.cold_reads")
        self._bytes = counters.counter("fetch.cold_bytes")
        self._rest_bytes = counters.counter("fetch.cold_rest_bytes")
        self._failures = counters.counter("fetch.cold_failures")

    def ask(
        self, read: ColdRead, file: ServedSegment, position: Position, most: int, limit: int, is_first: bool, is_active: bool, then: Callable[[], None]
    ) -> bool:
        """Ask for whole batches of [position, limit), about `most` bytes of them; `then` is called when `read` knows. False: it has its error now."""
        origin = file.origin
        read.base_offset, read.position = origin.base_offset, position
        reader = self._readers.get(origin.disk)
        if reader is None:
            read.error = ErrorCode.NOT_LEADER_OR_FOLLOWER  # the disk was taken out
            return False
        flags = WHOLE_BATCHES | (FIRST_WHATEVER if is_first else 0) | (IS_ACTIVE if is_active else 0)
        extent = Extent(max(1, most), limit, file.inode, flags)

        def on_answer(answer: Answer | None, _descriptor: int) -> None:
            if answer is None or answer.error_code:
                self._failures.add()
                read.error = ErrorCode(answer.error_code) if answer is not None else _silence(reader)
            else:
                read.answer = told = ReadAnswer.unpacked(answer.offsets)
                if told.parts:
                    parts = reader.arena.take(told)
                    if parts:
                        read.range = ArenaRange(parts, self._clock.monotonic_ns())
                        self._bytes.add(read.range.size_bytes)
                    else:
                        read.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            then()

        if reader.reads_hang:
            read.error = ErrorCode.KAFKA_STORAGE_ERROR
            return False
        if not reader.ask(READ, origin.topic, origin.partition, 0, origin.base_offset, position, on_answer, extent):
            read.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return False
        self._questions.add()
        return True

    def gather(self, read: ColdRead, file: ServedSegment, then: Callable[[], None]) -> bool:
        """Bring the next part of `read.gathered`; `then` is called when it is whole or cannot be had. False: `read` has its error now."""
        batch = read.gathered
        assert batch is not None
        origin = file.origin
        reader = self._readers.get(origin.disk)
        position, end = read.position + len(batch.content), read.position + batch.size_bytes

        def on_answer(answer: Answer | None, _descriptor: int) -> None:
            told = ReadAnswer.unpacked(answer.offsets) if answer is not None and not answer.error_code else None
            parts = reader.arena.take(told) if reader is not None and told is not None else []
            for part in parts:
                batch.content += part.memory
            if not parts:
                self._failures.add()
                read.error = ErrorCode.KAFKA_STORAGE_ERROR if answer is not None and answer.error_code else ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif not batch.is_whole and self.gather(read, file, then):
                return
            then()

        extent = Extent(min(end - position, REST_BYTES), end, file.inode, IS_ACTIVE)
        if reader is None or reader.reads_hang:
            read.error = ErrorCode.NOT_LEADER_OR_FOLLOWER if reader is None else ErrorCode.KAFKA_STORAGE_ERROR
            return False
        if not reader.ask(READ, origin.topic, origin.partition, 0, origin.base_offset, position, on_answer, extent):
            read.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return False
        self._questions.add()
        return True

    def maybe_read_rest(self, connection: Connection) -> bool:
        """If the disk stands before what `connection` has to send next, have it brought; nothing is sent until `on_ready`. False: that cannot be done."""
        if not connection.waits_for_disk:
            return True
        piece = connection.outgoing[0]
        assert isinstance(piece, FileRange)
        file, position, size_bytes, _ = piece
        origin = file.origin
        reader = self._readers.get(origin.disk)
        if reader is None:
            return False
        extent = Extent(min(size_bytes, REST_BYTES), position + size_bytes, file.inode, IS_ACTIVE)

        def on_answer(answer: Answer | None, _descriptor: int) -> None:
            connection.waits_for_disk = False
            told = ReadAnswer.unpacked(answer.offsets) if answer is not None and not answer.error_code else None
            parts = reader.arena.take(told) if told is not None else []
            if connection.closed:
                return
            if not parts:
                self._failures.add()
                self._on_failed(connection)
                return
            found = ArenaRange(parts, self._clock.monotonic_ns())
            self._rest_bytes.add(found.size_bytes)
            connection.outgoing.popleft()
            if found.size_bytes < size_bytes:
                connection.outgoing.appendleft(FileRange(file, position + found.size_bytes, size_bytes - found.size_bytes))
            connection.outgoing.appendleft(found)
            self._on_ready(connection)

        if reader.reads_hang or not reader.ask(READ, origin.topic, origin.partition, 0, origin.base_offset, position, on_answer, extent):
            self._failures.add()
            return False
        self._questions.add()
        return True

    def send_releases(self) -> None:
        """Once a turn: tell log-readers what was let go."""
        for reader in self._readers.values():
            if reader.arena.released:
                reader.send_releases()


def _silence(reader: LogReaderProxy) -> ErrorCode:
    """Its disk hangs, or it died."""
    return ErrorCode.KAFKA_STORAGE_ERROR if reader.reads_hang else ErrorCode.NOT_LEADER_OR_FOLLOWER
