"""Puts GELF messages together that came in several datagrams: at most 128 pieces, all of them within five seconds.

Pure; owned by one datagram room. Time is an argument. Memory is bounded per sender and in all: what is too much takes the place of the oldest unfinished
message, that sender's first. A piece that came twice counts once; pieces that contradict each other are a broken message. Whatever is given up comes
back as a `LostMessage`, so that it can be counted.
Weak: a message is known by its sender's address (without the port, which some senders change per datagram) and the 8 bytes it chose.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum
from typing import Final, NamedTuple

MAGIC: Final = b"\x1e\x0f"
CHUNKS_MAX: Final = 128
DEADLINE_MS: Final = 5_000
SENDER_BYTES_MAX: Final = 8 << 20
BYTES_MAX: Final = 64 << 20
UNFINISHED_OVERHEAD_BYTES: Final = 512
"""What an unfinished message costs beside its bytes: tiny pieces with ever new ids are bounded too."""
_ID_AT, _INDEX_AT, _COUNT_AT, _DATA_AT = 2, 10, 11, 12


class LossReason(StrEnum):
    """Why an unfinished message was given up."""

    INCOMPLETE = "chunks_incomplete"
    """Five seconds, and not all pieces came."""
    CROWDED_OUT = "chunks_crowded_out"
    """Its sender, or all of them together, had too much unfinished."""
    BROKEN = "chunks_broken"
    """A header that cannot be."""


class LostMessage(NamedTuple):
    """One message that will not be whole any more."""

    host: bytes
    reason: LossReason


class _Unfinished:
    __slots__ = ("count", "deadline_ms", "pieces", "size_bytes")

    def __init__(self, count: int, deadline_ms: int) -> None:
        self.count = count
        self.deadline_ms = deadline_ms
        self.pieces: dict[int, bytes] = {}
        self.size_bytes = UNFINISHED_OVERHEAD_BYTES


_Name = tuple[bytes, bytes]


class _Sender:
    """What one has unfinished: `ids` in the order of their deadlines."""

    __slots__ = ("ids", "size_bytes")

    def __init__(self) -> None:
        self.ids: dict[bytes, None] = {}
        self.size_bytes = 0


class ChunkAssembly:
    """The unfinished messages of all senders."""

    def __init__(self, sender_bytes_max: int = SENDER_BYTES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._sender_bytes_max = sender_bytes_max
        self._bytes_max = bytes_max
        self._unfinished: OrderedDict[_Name, _Unfinished] = OrderedDict()  # by deadline, since all have the same time
        self._senders: dict[bytes, _Sender] = {}
        self._lost: list[LostMessage] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._unfinished)

    def take(self, datagram: bytes, host: bytes, now_ms: int) -> bytes | None:
        """The whole message, if this datagram is one or completes one."""
        if datagram[:_ID_AT] != MAGIC:
            return datagram
        self.expire(now_ms)
        if len(datagram) < _DATA_AT:
            self._lost.append(LostMessage(host, LossReason.BROKEN))
            return None
        index, count = datagram[_INDEX_AT], datagram[_COUNT_AT]
        if not index < count <= CHUNKS_MAX:
            self._lost.append(LostMessage(host, LossReason.BROKEN))
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
            self._give_up(name, LossReason.BROKEN)
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
        """Give up what is past its time."""
        while self._unfinished:
            name, unfinished = next(iter(self._unfinished.items()))
            if unfinished.deadline_ms > now_ms:
                return
            self._give_up(name, LossReason.INCOMPLETE)

    def take_lost(self) -> list[LostMessage]:
        """What was given up since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def _make_room(self, host: bytes) -> None:
        while (sender := self._senders.get(host)) is not None and sender.size_bytes > self._sender_bytes_max:
            self._give_up((host, next(iter(sender.ids))), LossReason.CROWDED_OUT)
        while self.size_bytes > self._bytes_max:
            self._give_up(next(iter(self._unfinished)), LossReason.CROWDED_OUT)

    def _give_up(self, name: _Name, reason: LossReason) -> None:
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
