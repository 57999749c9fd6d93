"""Read a segment file batch by batch, in large pieces, up to the first damaged batch.

Used by recovery, look-ups and dumps; the caller owns the descriptor. Weak spot: a batch larger than
a piece is read twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct

from appliance.base.model import Position
from appliance.records.batch import ATTRIBUTES_AT, BATCH_HEADER, LOG_OVERHEAD, MAGIC, RECORDS_AT, BatchHeader, stored_batch_problem
from appliance.records.crc32c import crc32c
from appliance.storage import file_io

SCAN_PIECE_BYTES = 1024 * 1024
_HEADER_PIECE_BYTES = 16 * 1024
_unpack_header = BATCH_HEADER.unpack_from
assert isinstance(BATCH_HEADER, Struct)


class SegmentScan:
    """Iterate to get (position, header) of each batch in [position, end).

    Afterwards `valid_end` is where the intact part ends and `problem` why it ends before `end`
    (None if it does not).
    """

    def __init__(self, fd: int, position: Position, end: int, verify: bool = True, read: Callable[[int, Position, int], bytes] = file_io.pread_all) -> None:
        """`read`(descriptor, position, size in bytes) returns a piece; the scrubber passes one that
        bypasses the page cache."""
        self._fd = fd
        self._get = read
        self._end = end
        self._verify = verify
        self.valid_end = position
        self.problem: str | None = None

    def __iter__(self) -> Iterator[tuple[Position, BatchHeader]]:
        """With `verify` every byte is read and checked; without, only headers are."""
        piece = b""
        piece_at = self.valid_end
        make = BatchHeader._make
        while self.valid_end < self._end:
            position = self.valid_end - piece_at
            if position < 0 or position + RECORDS_AT > len(piece):
                piece, piece_at, position = self._read(self.valid_end, RECORDS_AT), self.valid_end, 0
                if len(piece) < RECORDS_AT:
                    self.problem = f"{len(piece)} bytes are too few for a record batch"
                    return
            header = make(_unpack_header(piece, position))
            size_bytes = header.batch_length + LOG_OVERHEAD
            if size_bytes < RECORDS_AT or self.valid_end + size_bytes > self._end:
                self.problem = f"a batch claims {size_bytes} bytes, {self._end - self.valid_end} are there"
                return
            if header.magic != MAGIC or header.last_offset_delta < 0:
                self.problem = f"a batch has magic {header.magic} and last offset delta {header.last_offset_delta}"
                return
            if self._verify:
                if position + size_bytes > len(piece):
                    piece, piece_at, position = self._read(self.valid_end, size_bytes), self.valid_end, 0
                if crc32c(memoryview(piece)[position + ATTRIBUTES_AT : position + size_bytes]) != header.crc:
                    self.problem = f"a batch's checksum does not match its bytes (stored {header.crc:#010x})"
                    return
            yield self.valid_end, header
            self.valid_end += size_bytes

    def _read(self, position: Position, least_bytes: int) -> bytes:
        piece_bytes = SCAN_PIECE_BYTES if self._verify else _HEADER_PIECE_BYTES
        return self._get(self._fd, position, min(max(piece_bytes, least_bytes), self._end - position))


class SegmentBatches:
    """Iterate to get (header, bytes) of each batch of a whole segment, checked; `valid_end` and
    `problem` as with `SegmentScan`.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._fd = fd
        self._size_bytes = size_bytes
        self.valid_end = 0
        self.problem: str | None = None

    def __iter__(self) -> Iterator[tuple[BatchHeader, bytes]]:
        while self.valid_end < self._size_bytes:
            piece = file_io.pread_wanted(self._fd, self.valid_end, min(SCAN_PIECE_BYTES, self._size_bytes - self.valid_end))
            position = 0
            while position < len(piece):
                left = len(piece) - position
                header = BatchHeader._make(_unpack_header(piece, position)) if left >= RECORDS_AT else None
                needed = RECORDS_AT if header is None else header.size_bytes
                if left < needed <= self._size_bytes - self.valid_end:
                    if position:
                        break  # the rest of it is in the next piece
                    piece = file_io.pread_all(self._fd, self.valid_end, needed)  # longer than a piece
                self.problem = stored_batch_problem(piece, position, len(piece))
                if self.problem is not None:
                    return
                header = BatchHeader._make(_unpack_header(piece, position))
                yield header, piece[position : position + header.size_bytes]
                position += header.size_bytes
                self.valid_end += header.size_bytes
