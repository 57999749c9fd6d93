"""GELF over UDP: a message in one datagram, or in up to 128 chunks within five seconds.

`ChunkAssembly` is pure, owned by the handler of one listener. Time is an argument. Memory is
limited for each sender and in total: a chunk above the limit replaces the oldest incomplete
message, that sender's first. A repeated chunk counts once; chunks that contradict each other are a
broken message. UDP has no answers, so each message that is given up comes back as a `LostMessage`
and is counted as refused. Weak: a message is identified by its sender's address (without the port,
which some senders change) and the 8 bytes that the sender chose.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum
from typing import Final, NamedTuple

from appliance.records.compression import OPENED_BATCH_FACTOR
from appliance.senders.listener import Listener
from services.ingest.protocols.bounded_inflate import NotCompressed, TooLarge
from services.ingest.protocols.gelf.gelf_message import gelf_record, open_gelf
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.event import EventSource
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import Intake, RefusedReason

MAGIC: Final = b"\x1e\x0f"
CHUNKS_MAX: Final = 128
DEADLINE_MS: Final = 5_000
SENDER_BYTES_MAX: Final = 8 << 20
BYTES_MAX: Final = 64 << 20
UNFINISHED_OVERHEAD_BYTES: Final = 512
"""Cost of an incomplete message besides its bytes; it limits tiny chunks with ever new ids as well.
"""
OPENED_BYTES_MIN: Final = 1 << 20
"""A larger message is opened to 32 times its size only: datagrams cannot be made to wait."""
_ID_AT, _INDEX_AT, _COUNT_AT, _DATA_AT = 2, 10, 11, 12


class ChunkLoss(StrEnum):
    """Why an incomplete message was given up."""

    INCOMPLETE = "chunks_incomplete"
    """Not all chunks arrived within five seconds."""
    CROWDED_OUT = "chunks_crowded_out"
    """The sender, or all senders together, had too much incomplete."""
    BROKEN = "chunks_broken"
    """The header is invalid."""


class LostMessage(NamedTuple):
    """One message that was given up."""

    host: bytes
    reason: ChunkLoss


class _Unfinished:
    __slots__ = ("count", "deadline_ms", "pieces", "size_bytes")

    def __init__(self, count: int, deadline_ms: int) -> None:
        self.count = count
        self.deadline_ms = deadline_ms
        self.pieces: dict[int, bytes] = {}
        self.size_bytes = UNFINISHED_OVERHEAD_BYTES


_Name = tuple[bytes, bytes]


class _Sender:
    """The incomplete messages of one sender: `ids` in the order of their deadlines."""

    __slots__ = ("ids", "size_bytes")

    def __init__(self) -> None:
        self.ids: dict[bytes, None] = {}
        self.size_bytes = 0


class ChunkAssembly:
    """The incomplete messages of all senders."""

    def __init__(self, sender_bytes_max: int = SENDER_BYTES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._sender_bytes_max = sender_bytes_max
        self._bytes_max = bytes_max
        self._unfinished: OrderedDict[_Name, _Unfinished] = OrderedDict()  # by deadline, because all have the same time limit
        self._senders: dict[bytes, _Sender] = {}
        self._lost: list[LostMessage] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._unfinished)

    @property
    def sender_count(self) -> int:
        """The number of senders with an incomplete message."""
        return len(self._senders)

    def take(self, datagram: bytes, host: bytes, now_ms: int) -> bytes | None:
        """Return the whole message if this datagram is one or completes one."""
        if datagram[:_ID_AT] != MAGIC:
            return datagram
        self.expire(now_ms)
        if len(datagram) < _DATA_AT:
            self._lost.append(LostMessage(host, ChunkLoss.BROKEN))
            return None
        index, count = datagram[_INDEX_AT], datagram[_COUNT_AT]
        if not index < count <= CHUNKS_MAX:
            self._lost.append(LostMessage(host, ChunkLoss.BROKEN))
            return None
        if count == 1:
            return datagram[_DATA_AT:]
        name = (host, datagram[_ID_AT:_INDEX_AT])
        unfinished = self._unfinished.get(name)
        if unfinished is None:
            unfinished = self._unfinished[name] = _Unfinished(count, now_ms + DEADLINE_MS)
            self._senders.setdefault(host, _Sender()).ids[name[1]] = None
            self._charge(host, UNFINISHED_OVERHEAD_BYTES)
        elif unfinished.count != count:
            self._give_up(name, ChunkLoss.BROKEN)
            return None
        if index not in unfinished.pieces:
            piece = datagram[_DATA_AT:]
            unfinished.pieces[index] = piece
            unfinished.size_bytes += len(piece)
            self._charge(host, len(piece))
        if len(unfinished.pieces) == count:
            self._drop(name)
            return b"".join(unfinished.pieces[index] for index in range(count))
        self._make_room(host)
        return None

    def expire(self, now_ms: int) -> None:
        """Give up messages past their deadline."""
        while self._unfinished:
            name, unfinished = next(iter(self._unfinished.items()))
            if unfinished.deadline_ms > now_ms:
                return
            self._give_up(name, ChunkLoss.INCOMPLETE)

    def take_lost(self) -> list[LostMessage]:
        """Return the messages that were given up since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def _make_room(self, host: bytes) -> None:
        while (sender := self._senders.get(host)) is not None and sender.size_bytes > self._sender_bytes_max:
            self._give_up((host, next(iter(sender.ids))), ChunkLoss.CROWDED_OUT)
        while self.size_bytes > self._bytes_max:
            self._give_up(next(iter(self._unfinished)), ChunkLoss.CROWDED_OUT)

    def _give_up(self, name: _Name, reason: ChunkLoss) -> None:
        self._drop(name)
        self._lost.append(LostMessage(name[0], reason))

    def _drop(self, name: _Name) -> _Unfinished:
        unfinished = self._unfinished.pop(name)
        host, message_id = name
        self._charge(host, -unfinished.size_bytes)
        del self._senders[host].ids[message_id]
        if not self._senders[host].ids:
            del self._senders[host]
        return unfinished

    def _charge(self, host: bytes, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self._senders[host].size_bytes += size_bytes


_REASONS = {ChunkLoss.BROKEN: RefusedReason.MALFORMED}


class GelfDatagrams:
    """The handler of one listener, for all its senders."""

    def __init__(self, listener: Listener, intake: Intake) -> None:
        self._listener = listener
        self._intake = intake
        self.assembly = ChunkAssembly()

    def received(self, unit: AckGroup, datagrams: list[bytes]) -> int:
        opened_bytes = 0
        records: list[IngestRecord] = []
        now_ms = self._intake.monotonic_ms()
        source: EventSource = unit.source
        for datagram in datagrams:
            message = self.assembly.take(datagram, source.host, now_ms)
            if message is None:
                continue
            try:
                text = open_gelf(message, min(self._listener.decompressed_bytes_max, max(OPENED_BYTES_MIN, OPENED_BATCH_FACTOR * len(message))))
                opened_bytes += max(0, len(text) - len(message))
            except NotCompressed:
                self._intake.refuse(self._listener, source, RefusedReason.MALFORMED)
            except TooLarge:
                self._intake.refuse(self._listener, source, RefusedReason.TOO_LARGE)
            else:
                if text:
                    records.append(gelf_record(text, self._listener, source, self._intake))
        self._count_lost()
        if records:
            self._intake.take(unit, records)
        return opened_bytes

    def tick(self, now_ms: int) -> None:
        self.assembly.expire(now_ms)
        self._count_lost()

    def _count_lost(self) -> None:
        for host, reason in self.assembly.take_lost():
            refused = _REASONS.get(reason, RefusedReason.INCOMPLETE)
            self._intake.refuse(self._listener, EventSource(host, host, b"gelf"), refused)
