"""Build record batches as a producer sends them: base offset 0, no leader epoch.

A batch has a producer id only if it is part of a transaction. Hot in ingest. A builder is used
again after `build()`. Header sections that repeat can be encoded once with `encode_headers` and
passed to `append` as bytes. Weak spot: `size_bytes` is the size before compression, so compressed
batches are closed earlier than their limit requires.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from appliance.records.batch import ATTRIBUTES_AT, BATCH_HEADER, LOG_OVERHEAD, MAGIC, RECORDS_AT, TRANSACTIONAL_FLAG
from appliance.records.compression import Codec, compress
from appliance.records.crc32c import crc32c
from appliance.records.record import NULL_LENGTH, TABLE, TABLE_END, encode_varint

NO_HEADERS = encode_varint(0)
RECORD_OVERHEAD_BYTES_MAX = 36
"""Attributes 1, timestamp delta 10, offset delta 5, lengths of record, key and value 5 each,
rounded up."""
_ATTRIBUTES = b"\x00"


def encode_headers(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """The header section of a record: count, then each name and value with its length."""
    pieces = [b""]
    count = 0
    for name, value in headers:
        encoded = name.encode()
        pieces += (encode_varint(len(encoded)), encoded)
        pieces += (NULL_LENGTH,) if value is None else (encode_varint(len(value)), value)
        count += 1
    pieces[0] = encode_varint(count)
    return b"".join(pieces)


class BatchBuilder:
    """Collects records and turns them into one batch."""

    __slots__ = ("_base_timestamp", "_codec", "_max_timestamp", "_pieces", "count", "size_bytes")

    def __init__(self, codec: Codec = Codec.NONE) -> None:
        self._codec = codec
        self._clear()

    def _clear(self) -> None:
        self._pieces: list[bytes] = []
        self._base_timestamp = -1
        self._max_timestamp = -1
        self.count = 0
        self.size_bytes = RECORDS_AT
        """What the batch would occupy uncompressed, header included."""

    def append(self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: bytes | Iterable[tuple[str, bytes | None]] = NO_HEADERS) -> None:
        """Add a record.

        `headers` is a sequence of (name, value) or what `encode_headers` made of one.
        """
        count = self.count
        if not count:
            self._base_timestamp = timestamp_ms
        if timestamp_ms > self._max_timestamp:
            self._max_timestamp = timestamp_ms
        delta = timestamp_ms - self._base_timestamp
        key_length = NULL_LENGTH if key is None else encode_varint(len(key))
        value_length = NULL_LENGTH if value is None else encode_varint(len(value))
        body = b"".join(
            (
                _ATTRIBUTES,
                TABLE[delta] if 0 <= delta < TABLE_END else encode_varint(delta),
                TABLE[count] if count < TABLE_END else encode_varint(count),
                key_length,
                key or b"",
                value_length,
                value or b"",
                headers if type(headers) is bytes else encode_headers(headers),  # type: ignore[arg-type]
            )
        )
        size_bytes = len(body)
        length = TABLE[size_bytes] if size_bytes < TABLE_END else encode_varint(size_bytes)
        self._pieces += (length, body)
        self.count = count + 1
        self.size_bytes += size_bytes + len(length)

    def append_run(
        self, timestamps_ms: Sequence[int], values: Sequence[bytes], keys: Sequence[bytes | None], headers: bytes, first: int, size_bytes_max: int
    ) -> int:
        """Add records that have their headers in common, beginning with number `first`, which is
        added in any case, as long as the next one is sure to leave the batch within
        `size_bytes_max`. Returns the number of the first that was not added. The same as `append`
        for each, in one loop.
        """
        count, size_bytes, latest = self.count, self.size_bytes, self._max_timestamp
        base = self._base_timestamp if count else timestamps_ms[first]
        extend = self._pieces.extend
        key: bytes | None = b""
        key_and_length = b""
        fixed_bytes = room_bytes = -1
        number = first
        for number in range(first, len(values)):
            value, timestamp_ms = values[number], timestamps_ms[number]
            if keys[number] is not key or fixed_bytes < 0:
                key = keys[number]
                key_and_length = NULL_LENGTH if key is None else encode_varint(len(key)) + key
                fixed_bytes = 1 + len(key_and_length) + len(headers)
                room_bytes = size_bytes_max - RECORD_OVERHEAD_BYTES_MAX - len(headers) - (len(key) if key is not None else 0)
            value_bytes = len(value)
            if size_bytes + value_bytes > room_bytes and number != first:
                break
            if timestamp_ms > latest:
                latest = timestamp_ms
            delta = timestamp_ms - base
            delta_text = TABLE[delta] if 0 <= delta < TABLE_END else encode_varint(delta)
            count_text = TABLE[count] if count < TABLE_END else encode_varint(count)
            length_text = TABLE[value_bytes] if value_bytes < TABLE_END else encode_varint(value_bytes)
            body_bytes = fixed_bytes + len(delta_text) + len(count_text) + len(length_text) + value_bytes
            size_text = TABLE[body_bytes] if body_bytes < TABLE_END else encode_varint(body_bytes)
            extend((size_text, _ATTRIBUTES, delta_text, count_text, key_and_length, length_text, value, headers))
            count += 1
            size_bytes += body_bytes + len(size_text)
        else:
            number = len(values)
        self.count, self.size_bytes, self._base_timestamp, self._max_timestamp = count, size_bytes, base, latest
        return number

    def build(self, producer_id: int = -1, producer_epoch: int = -1) -> bytes:
        """Return the batch, and empty the builder. At least one record must have been appended.

        With a producer id the batch is transactional, in the form in which a coordinator writes its
        own records: base sequence 0, which no log checks.
        """
        if not self.count:
            raise ValueError("a batch without records cannot be built")
        body = b"".join(self._pieces)
        if self._codec:
            body = compress(self._codec, body)
        header = bytearray(RECORDS_AT)
        attributes, base_sequence = (int(self._codec), -1) if producer_id < 0 else (int(self._codec) | TRANSACTIONAL_FLAG, 0)
        fields = (attributes, self.count - 1, self._base_timestamp, self._max_timestamp, producer_id, producer_epoch, base_sequence, self.count)
        length = RECORDS_AT - LOG_OVERHEAD + len(body)
        BATCH_HEADER.pack_into(header, 0, 0, length, -1, MAGIC, 0, *fields)
        crc = crc32c(body, crc32c(header[ATTRIBUTES_AT:]))
        BATCH_HEADER.pack_into(header, 0, 0, length, -1, MAGIC, crc, *fields)
        self._clear()
        return bytes(header) + body
