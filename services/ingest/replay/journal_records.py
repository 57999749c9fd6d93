"""The records of the replay journal, and what all files together say to the next incarnation.

Pure; bytes to values and back. A file is a sequence of records, each `<IIB` (CRC-32C of what
follows it, length of what follows these nine bytes, kind) and its content, little-endian. A damaged
record ends its file.

What a file of another boot reports as stored was in the page cache of that boot, and a power cut
may have removed it from the log. So every batch of such a file is open again until its leader
reports what it has. Otherwise a record that only a journal remembers would be acknowledged and
lost.

Weak: a file that was cut exactly between two records looks whole. A stream whose older frames were
in a removed or damaged file is known from the next file on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from appliance.base.model import ProducerId
from appliance.records.crc32c import crc32c
from services.ingest.records.ack_group import IDENTITY_BYTES
from services.ingest.replay.frame_streams import DIGEST_BYTES, REMEMBERED_FRAMES, FrameStream
from services.ingest.replay.replay_memory import Ordinals, Part, ReplayMemory

_FRAME: Final = Struct("<IIB")
_BATCH: Final = Struct("<16siqiiiHI")  # topic id, partition, producer id, producer epoch, base sequence, record count, bytes of the topic's name, parts
_PART: Final = Struct(f"<{IDENTITY_BYTES}sQI")
_DONE: Final = Struct("<qiiB")
_FRAMES: Final = Struct(f"<{IDENTITY_BYTES}sQHHI")  # stream, first serial, bytes of the listener's name, bytes of the host, frames
_STORED: Final = Struct(f"<{IDENTITY_BYTES}sQHI")  # identity, first ordinal, bytes of the topic's name, bytes of the bits
_CRC_COVERS_FROM: Final = 4
BOOT_BYTES: Final = 16
RECORD_BYTES_MAX: Final = 256 << 20
assert _FRAME.size == _CRC_COVERS_FROM + 4 + 1


class JournalRecordKind(IntEnum):
    """The kind of a record. The values are on disk."""

    BATCH = 1
    DONE = 2
    FRAMES = 3
    FORGOTTEN = 4
    STORED = 5
    BEGUN = 6


class JournalledBatch(NamedTuple):
    """A batch that is about to be offered under this stamp, and the addresses of its records. A
    producer id belongs to one partition."""

    topic: str
    topic_id: bytes
    partition: int
    producer_id: ProducerId
    producer_epoch: int
    base_sequence: int
    record_count: int
    parts: Sequence[Part]

    @property
    def stamp(self) -> tuple[ProducerId, int, int]:
        return self.producer_id, self.producer_epoch, self.base_sequence


class Done(NamedTuple):
    """The result of the batch with this stamp."""

    producer_id: ProducerId
    producer_epoch: int
    base_sequence: int
    is_stored: bool


class Frames(NamedTuple):
    """Frames of a stream, `DIGEST_BYTES` each."""

    identity: bytes
    first_serial: int
    listener: str
    host: bytes
    digests: bytes


class Forgotten(NamedTuple):
    """An identity that will not be repeated, or is new if it is: a stream whose sender has every
    answer, a request that its sender asked to forget."""

    identity: bytes


class Stored(NamedTuple):
    """Records of an identity that are stored in a topic: bit n is ordinal `first` + n."""

    identity: bytes
    first: int
    topic: str
    bits: int


class Begun(NamedTuple):
    """A file's first record: the boot in which it was written. A power cut since then may have
    removed from the log what the file reports as stored."""

    boot: bytes


UNKNOWN_BOOT: Final = Begun(bytes(BOOT_BYTES))
JournalRecord = JournalledBatch | Done | Frames | Forgotten | Stored | Begun


def encode(record: JournalRecord) -> bytes:
    """Return the record's bytes with its CRC."""
    kind, content = _content(record)
    rest = _FRAME.pack(0, len(content), kind)[_CRC_COVERS_FROM:] + content
    return crc32c(rest).to_bytes(_CRC_COVERS_FROM, "little") + rest


def _content(record: JournalRecord) -> tuple[JournalRecordKind, bytes]:
    if isinstance(record, JournalledBatch):
        topic = record.topic.encode()
        parts = record.parts
        fixed = _BATCH.pack(
            record.topic_id, record.partition, record.producer_id, record.producer_epoch, record.base_sequence, record.record_count, len(topic), len(parts)
        )
        return JournalRecordKind.BATCH, b"".join([fixed, topic, *[_PART.pack(*part) for part in parts]])
    if isinstance(record, Done):
        return JournalRecordKind.DONE, _DONE.pack(*record)
    if isinstance(record, Frames):
        listener = record.listener.encode()
        fixed = _FRAMES.pack(record.identity, record.first_serial, len(listener), len(record.host), len(record.digests) // DIGEST_BYTES)
        return JournalRecordKind.FRAMES, b"".join((fixed, listener, record.host, record.digests))
    if isinstance(record, Forgotten):
        return JournalRecordKind.FORGOTTEN, record.identity
    if isinstance(record, Begun):
        return JournalRecordKind.BEGUN, record.boot
    topic = record.topic.encode()
    bits = record.bits.to_bytes((record.bits.bit_length() + 7) // 8, "little")
    return JournalRecordKind.STORED, _STORED.pack(record.identity, record.first, len(topic), len(bits)) + topic + bits


class Damaged(ValueError):
    """A damaged record; `position` is its start."""

    def __init__(self, position: int) -> None:
        super().__init__(f"the record at {position} is damaged")
        self.position = position


def decode_all(content: bytes) -> Iterator[JournalRecord]:
    """Yield the records of a file. Raises `Damaged` after the last whole one."""
    position = 0
    while position < len(content):
        if len(content) - position < _FRAME.size:
            raise Damaged(position)
        crc, size_bytes, kind = _FRAME.unpack_from(content, position)
        begin, end = position + _FRAME.size, position + _FRAME.size + size_bytes
        if size_bytes > RECORD_BYTES_MAX or end > len(content) or crc32c(memoryview(content)[position + _CRC_COVERS_FROM : end]) != crc:
            raise Damaged(position)
        try:
            record = _decode(kind, content[begin:end])
        except (StructError, ValueError) as error:
            raise Damaged(position) from error
        if record is not None:
            yield record
        position = end


def _decode(kind: int, content: bytes) -> JournalRecord | None:
    """Return the record; None for a kind that a later version writes."""
    if kind == JournalRecordKind.BATCH:
        *fixed, topic_size, part_count = _BATCH.unpack_from(content)
        parts_at = _BATCH.size + topic_size
        if len(content) != parts_at + part_count * _PART.size:
            raise ValueError("parts do not fill the record")
        topic_id, partition, producer_id, producer_epoch, base_sequence, record_count = fixed
        parts = list(_PART.iter_unpack(content[parts_at:]))
        topic = content[_BATCH.size : parts_at].decode()
        return JournalledBatch(topic, topic_id, partition, producer_id, producer_epoch, base_sequence, record_count, parts)
    if kind == JournalRecordKind.DONE:
        producer_id, producer_epoch, base_sequence, is_stored = _DONE.unpack(content)
        return Done(producer_id, producer_epoch, base_sequence, bool(is_stored))
    if kind == JournalRecordKind.FRAMES:
        identity, first_serial, listener_size, host_size, frame_count = _FRAMES.unpack_from(content)
        host_at = _FRAMES.size + listener_size
        digests = content[host_at + host_size :]
        if len(digests) != frame_count * DIGEST_BYTES:
            raise ValueError("digests do not fill the record")
        return Frames(identity, first_serial, content[_FRAMES.size : host_at].decode(), content[host_at : host_at + host_size], digests)
    if kind == JournalRecordKind.FORGOTTEN:
        if len(content) != IDENTITY_BYTES:
            raise ValueError("no identity")
        return Forgotten(content)
    if kind == JournalRecordKind.BEGUN:
        if len(content) != BOOT_BYTES:
            raise ValueError("no boot")
        return Begun(content)
    if kind == JournalRecordKind.STORED:
        identity, first, topic_size, bits_size = _STORED.unpack_from(content)
        bits = content[_STORED.size + topic_size :]
        if len(bits) != bits_size:
            raise ValueError("bits do not fill the record")
        return Stored(identity, first, content[_STORED.size : _STORED.size + topic_size].decode(), int.from_bytes(bits, "little"))
    return None


_Stamp = tuple[int, int, int]


class JournalFindings:
    """Combines the records of all files while a new incarnation reads them.

    `add` every record, oldest first; the memory learns at once what is stored. Then take what is
    open.
    """

    def __init__(self, memory: ReplayMemory, boot: bytes) -> None:
        self._memory = memory
        self._boot = boot
        self._is_of_this_boot = False
        self._open: dict[_Stamp, JournalledBatch] = {}
        self._streams: dict[bytes, FrameStream] = {}

    def add(self, record: JournalRecord) -> None:
        if isinstance(record, JournalledBatch):
            self._open[record.stamp] = record
        elif isinstance(record, Begun):
            self._is_of_this_boot = record.boot == self._boot
        elif isinstance(record, Done):
            self._on_done(record)
        elif isinstance(record, Frames):
            self._add_frames(record)
        elif isinstance(record, Forgotten):
            self._forget(record.identity)
        elif self._is_of_this_boot:
            for first, count in Ordinals(record.first, record.bits).runs():
                self._memory.add_stored(record.topic, [(record.identity, first, count)])

    def _on_done(self, record: Done) -> None:
        if record.is_stored and not self._is_of_this_boot:
            return  # the log may have lost it with the page cache: its leader is asked
        batch = self._open.pop(record[:3], None)
        if batch is not None and record.is_stored:
            self._memory.add_stored(batch.topic, batch.parts)

    def _forget(self, identity: bytes) -> None:
        """From here on this identity is new."""
        self._streams.pop(identity, None)
        self._memory.forget(identity)
        for stamp, batch in self._open.items():
            if any(part[0] == identity for part in batch.parts):
                self._open[stamp] = batch._replace(parts=[part for part in batch.parts if part[0] != identity])

    def _add_frames(self, record: Frames) -> None:
        stream = self._streams.get(record.identity)
        if stream is None or not stream.base <= record.first_serial <= stream.end:
            stream = self._streams[record.identity] = FrameStream((record.listener, record.host), record.identity, record.first_serial)
            self._memory.keep(record.identity)
        known = (stream.end - record.first_serial) * DIGEST_BYTES
        stream.digests += record.digests[known:]
        surplus = stream.end - stream.base - REMEMBERED_FRAMES
        if surplus > REMEMBERED_FRAMES:
            del stream.digests[: surplus * DIGEST_BYTES]
            stream.base += surplus
            self._memory.trim_stream(record.identity)

    def broken_streams(self) -> Iterator[FrameStream]:
        """Yield all streams without a clean end. Their answered end is unknown: it is derived from
        what is stored."""
        for stream in self._streams.values():
            stream.answered_end = None
            stream.journalled_end = stream.end
            yield stream

    def open_batches(self) -> list[JournalledBatch]:
        """Return the batches whose result is not recorded, or recorded in another boot."""
        return [batch for batch in self._open.values() if batch.parts]
