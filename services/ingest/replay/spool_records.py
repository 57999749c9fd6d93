"""The records of the spool: batches that wait on disk for a leader, and which of them are done.

Pure. A file is a sequence of `<IIIIB` (CRC-32C of the rest of this header and of the description,
bytes of the description, bytes of the data, CRC-32C of the data, kind), the description, the data;
little-endian. So a reader finds all batches without reading their data.

Weak: as in the journal, a file that was cut exactly between two records looks whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from appliance.records.crc32c import crc32c
from services.ingest.records.ack_group import IDENTITY_BYTES
from services.ingest.replay.replay_memory import Part

HEADER: Final = Struct("<IIIIB")
DESCRIPTION_BYTES_MAX: Final = 64 << 20
DATA_BYTES_MAX: Final = 1 << 30
_CRC_COVERS_FROM: Final = 4
_BATCH: Final = Struct("<QiIHH")  # number, partition, record count, bytes of the topic's name, shares
_SHARE: Final = Struct("<HIII")  # bytes of the listener's name, records, copies, parts
_PART: Final = Struct(f"<{IDENTITY_BYTES}sQI")
_DONE: Final = Struct("<Q")
assert HEADER.size == _CRC_COVERS_FROM + 4 + 4 + 4 + 1


class SpoolKind(IntEnum):
    """The kind of a record. The values are on disk."""

    BATCH = 1
    DONE = 2


class SpooledShare(NamedTuple):
    """A listener's share of a batch: its records, copies of records that count elsewhere, and the
    addresses of its records."""

    listener: str
    records: int
    copies: int
    parts: Sequence[Part]


class SpoolEntry(NamedTuple):
    """A batch without its data. `number` grows in the order of writing, over all incarnations."""

    number: int
    topic: str
    partition: int
    record_count: int
    shares: Sequence[SpooledShare]

    @property
    def parts(self) -> list[Part]:
        return [part for share in self.shares for part in share.parts]


class SpoolHeader(NamedTuple):
    """The header of one record."""

    crc: int
    description_bytes: int
    data_bytes: int
    data_crc: int
    kind: int


def encode_batch(batch: SpoolEntry, data: bytes) -> tuple[bytes, int]:
    """Return header and description, to be followed by the data; and the CRC of the data."""
    topic = batch.topic.encode()
    pieces = [_BATCH.pack(batch.number, batch.partition, batch.record_count, len(topic), len(batch.shares)), topic]
    for share in batch.shares:
        listener = share.listener.encode()
        pieces += [_SHARE.pack(len(listener), share.records, share.copies, len(share.parts)), listener, *[_PART.pack(*part) for part in share.parts]]
    data_crc = crc32c(data)
    return _with_header(SpoolKind.BATCH, b"".join(pieces), len(data), data_crc), data_crc


def encode_done(number: int) -> bytes:
    """The batch with this number is stored or given up."""
    return _with_header(SpoolKind.DONE, _DONE.pack(number), 0, 0)


def _with_header(kind: SpoolKind, description: bytes, data_bytes: int, data_crc: int) -> bytes:
    rest = HEADER.pack(0, len(description), data_bytes, data_crc, kind)[_CRC_COVERS_FROM:] + description
    return crc32c(rest).to_bytes(_CRC_COVERS_FROM, "little") + rest


def read_header(content: bytes) -> SpoolHeader | None:
    """Return the header; None if the bytes are none."""
    if len(content) < HEADER.size:
        return None
    header = SpoolHeader(*HEADER.unpack_from(content))
    return header if header.description_bytes <= DESCRIPTION_BYTES_MAX and header.data_bytes <= DATA_BYTES_MAX else None


def read_description(header: SpoolHeader, content: bytes) -> SpoolEntry | int | None:
    """Decode `content`, header and description: a batch, or the number of a batch that is done;
    None if it is damaged."""
    if len(content) != HEADER.size + header.description_bytes or crc32c(memoryview(content)[_CRC_COVERS_FROM:]) != header.crc:
        return None
    description = content[HEADER.size :]
    try:
        if header.kind == SpoolKind.DONE:
            number: int = _DONE.unpack(description)[0]
            return number
        return _read_batch(description) if header.kind == SpoolKind.BATCH else None
    except (StructError, ValueError):
        return None


def _read_batch(description: bytes) -> SpoolEntry:
    number, partition, record_count, topic_bytes, share_count = _BATCH.unpack_from(description)
    position = _BATCH.size + topic_bytes
    topic = description[_BATCH.size : position].decode()
    shares = []
    for _ in range(share_count):
        listener_bytes, count, copies, part_count = _SHARE.unpack_from(description, position)
        position += _SHARE.size
        parts_at = position + listener_bytes
        listener = description[position:parts_at].decode()
        position = parts_at + part_count * _PART.size
        shares.append(SpooledShare(listener, count, copies, list(_PART.iter_unpack(description[parts_at:position]))))
    if position != len(description):
        raise ValueError("shares do not fill the description")
    return SpoolEntry(number, topic, partition, record_count, shares)


def without_counted(batches: Sequence[SpoolEntry], in_flight: dict[str, int]) -> list[SpoolEntry]:
    """Return the batches so that each listener's records do not exceed what its ledger has in
    flight.

    An incarnation that died between counting a batch as stored and recording that it is done leaves
    it in the spool, and batches are done in order. So the excess is in the first batches: their
    records become copies, which do not count again.
    """
    excess: dict[str, int] = {}
    for batch in batches:
        for share in batch.shares:
            excess[share.listener] = excess.get(share.listener, -in_flight.get(share.listener, 0)) + share.records
    found = []
    for batch in batches:
        shares = []
        for share in batch.shares:
            counted = min(share.records, max(0, excess[share.listener]))
            excess[share.listener] -= counted
            shares.append(share._replace(records=share.records - counted, copies=share.copies + counted))
        found.append(batch._replace(shares=shares))
    return found
