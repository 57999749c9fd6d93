"""Records of a response that are not in our heap: ranges of segment files, and of a log-reader's memory.

`SegmentFiles` keeps segments that a log-reader opened, the least recently used first to go. A file is closed
when neither the set nor a range that is being sent refers to it. Reference counting does that, so no
reference cycle may include these objects. A log-reader does not reuse memory of an `ArenaRange` while that
exists. Owned by one acceptor. Weak spot: a client that reads nothing holds memory that all consumers of the
disk share; after a while the acceptor copies the rest to its heap (`Connection.move_to_heap`).
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from appliance.base.model import Offset, Position
from appliance.ipc.log_reader_proxy import ArenaPart

if TYPE_CHECKING:
    from appliance.security.transport import ClientTransport
    from appliance.storage.page_cache import FileMap

SEND_BYTES_A_TURN = 1 << 20
"""Sent to one connection in a turn: other clients wait less than a millisecond. With 256 KiB a librdkafka
consumer of 1 KB records reached 0.63 of the MB/s for 1.36 times the broker's CPU."""


class SegmentOrigin(NamedTuple):
    """Where a segment is."""

    disk: str
    topic: str
    partition: int
    base_offset: Offset


class ServedSegment:
    """An open segment. The partition's row has the end of the active one; a sealed one does not change."""

    __slots__ = ("_inode", "_sealed_bytes", "descriptor", "map", "origin", "residency")

    def __init__(self, descriptor: int, origin: SegmentOrigin, residency: Residency) -> None:
        self.descriptor = descriptor
        self.origin = origin
        self.residency = residency
        self.map: FileMap | None = None
        """for mincore"""
        self._sealed_bytes = -1
        self._inode = 0

    @property
    def inode(self) -> int:
        """Identifies the file: compaction puts another one under the same name."""
        if not self._inode:
            self._inode = os.fstat(self.descriptor).st_ino
        return self._inode

    @property
    def was_sealed(self) -> bool:
        return self._sealed_bytes >= 0

    def sealed_size_bytes(self) -> int:
        """Its size. Call it only when a later segment is active: the file may have been opened while it grew."""
        if self._sealed_bytes < 0:
            self._sealed_bytes = os.fstat(self.descriptor).st_size
        return self._sealed_bytes

    def __del__(self) -> None:
        os.close(self.descriptor)


class FileRange(NamedTuple):
    """Bytes of a segment that a response sends from the page cache. `is_checked`: the first ones are there."""

    file: ServedSegment
    position: Position
    size_bytes: int
    is_checked: bool = False


class Residency(Protocol):
    """Checks that bytes of a segment are in the page cache, and sends them; see `residency.py`."""

    def is_resident(self, file: ServedSegment, position: Position, size_bytes: int) -> bool: ...

    def send(self, transport: ClientTransport, piece: FileRange, more: bool) -> int:
        """Return the number of bytes taken, WOULD_BLOCK, or NOT_RESIDENT."""


SegmentKey = tuple[str, int, int, Offset]
"""(disk, row, row generation, base offset)"""


class SegmentFiles:
    """At most `maximum` files; the least recently used one is dropped first."""

    def __init__(self, maximum: int, residency: Residency) -> None:
        self._residency = residency
        self._files: OrderedDict[SegmentKey, ServedSegment] = OrderedDict()
        self._maximum = maximum

    def get(self, key: SegmentKey) -> ServedSegment | None:
        found = self._files.get(key)
        if found is not None:
            self._files.move_to_end(key)
        return found

    def add(self, key: SegmentKey, descriptor: int, topic: str, partition: int) -> ServedSegment:
        file = ServedSegment(descriptor, SegmentOrigin(key[0], topic, partition, key[3]), self._residency)
        self._files[key] = file
        if len(self._files) > self._maximum:
            self._files.popitem(last=False)
        return file

    def forget(self, key: SegmentKey) -> None:
        self._files.pop(key, None)

    def keep_active(self, disk: str, row: int, row_generation: int, base_offset: Offset) -> None:
        """Drop all segments of a partition but the active one: its segment list has changed.

        Deleted and compacted files would keep their space. A segment that was sealed and is active again was
        truncated: it has another end now.
        """
        partition = (disk, row, row_generation)
        for key in [key for key, file in self._files.items() if key[:3] == partition and (key[3] != base_offset or file.was_sealed)]:
            del self._files[key]

    def forget_disk(self, disk: str) -> None:
        """Drop all files of a disk: the next incarnation of its log-writer numbers its rows from 0 again."""
        for key in [key for key in self._files if key[0] == disk]:
            del self._files[key]

    def keep_only(self, rows: set[tuple[str, int, int]]) -> None:
        """Drop segments of partitions that are not in `rows` (disk, row, row generation), which frees their space."""
        for key in [key for key in self._files if key[:3] not in rows]:
            del self._files[key]

    def __len__(self) -> int:
        return len(self._files)


class ArenaRange:
    """The rest to send from a log-reader's memory, in parts."""

    __slots__ = ("_parts", "_sent", "since_ns", "size_bytes")

    def __init__(self, parts: list[ArenaPart], since_ns: int) -> None:
        self._parts = deque(parts)
        self._sent = 0
        self.size_bytes = sum(len(part.memory) for part in parts)
        self.since_ns = since_ns

    @property
    def next_piece(self) -> memoryview:
        return self._parts[0].memory[self._sent :]

    @property
    def is_last(self) -> bool:
        return len(self._parts) == 1

    def on_sent(self, count: int) -> None:
        """`count` bytes of `next_piece` were sent. A part that was sent is released at once."""
        self._sent += count
        self.size_bytes -= count
        if self._sent == len(self._parts[0].memory):
            self._parts.popleft()
            self._sent = 0

    def to_bytes(self) -> bytes:
        """A copy of the rest."""
        skipped = self._sent
        pieces = []
        for part in self._parts:
            pieces.append(part.memory[skipped:])
            skipped = 0
        return b"".join(pieces)
