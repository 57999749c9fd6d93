"""The `.txnindex` of a segment: aborted transactions that ended in it; read_committed skips them.

Owned by its log; the file is created with its first entry. An entry goes into the segment that holds
the abort marker, after the marker's bytes. What a crash left out is added when the log is opened, from
the markers behind the newest producer snapshot; after a power cut everything above the recovery point
is rebuilt, from a snapshot below that; without one, from all headers
of the log.

    34 bytes an entry: int16 version 0, int64 producer id, int64 first offset, int64 last offset (of the marker), int64 last stable offset then

Entries ascend strictly in last offset, which is never below the segment's base offset. Source: Kafka's
`TransactionIndex`, KIP-98. Weak spot: files are read whole when the log is opened; millions of aborted
transactions in a partition would make that slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from appliance.base.model import FIRST_OFFSET, NO_OFFSET, Offset, ProducerId
from appliance.storage import file_io
from appliance.storage.segment_files import TRANSACTION_INDEX_SUFFIX, offset_of_name, segment_path

TRANSACTION_ENTRY = Struct(">hqqqq")
_VERSION = 0
assert TRANSACTION_ENTRY.size == 34


class AbortedTxn(NamedTuple):
    """An entry of the index; `last_offset` is that of the abort marker."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset

    @property
    def is_possible(self) -> bool:
        """Whether an append can have written this entry.

        Zeros, which a power cut leaves of an entry in the segment of base offset 0, are not.
        """
        return self.producer_id >= 0 and self.first_offset < self.last_offset


def encode_transaction_index(entries: Iterable[AbortedTxn]) -> bytes:
    """Return the bytes of these entries."""
    return b"".join(TRANSACTION_ENTRY.pack(_VERSION, *entry) for entry in entries)


def decode_transaction_index(content: bytes) -> list[AbortedTxn]:
    """Return the entries of a `.txnindex` file. Raises `ValueError` if it is damaged."""
    if len(content) % TRANSACTION_ENTRY.size:
        raise ValueError(f"a transaction index of {len(content)} bytes ends inside an entry")
    found = []
    for version, *fields in TRANSACTION_ENTRY.iter_unpack(content):
        if version != _VERSION:
            raise ValueError(f"a transaction index entry has version {version}")
        found.append(AbortedTxn._make(fields))
    return found


def transaction_index_problem(content: bytes, base_offset: Offset) -> str | None:
    """Return why this cannot be the transaction index of the segment at `base_offset`, None if it
    can.
    """
    try:
        entries = decode_transaction_index(content)
    except ValueError as problem:
        return str(problem)
    if entries and entries[0].last_offset < base_offset:
        return f"an entry has last offset {entries[0].last_offset}, the segment begins at {base_offset}"
    if any(one.last_offset >= other.last_offset for one, other in pairwise(entries)):
        return "last offsets do not ascend"
    if not all(entry.is_possible for entry in entries):
        return "a marker is not behind the first record of its transaction"
    return None


def _good_entries(content: bytes, base_offset: Offset) -> list[AbortedTxn]:
    """Those before the first that no append writes."""
    found: list[AbortedTxn] = []
    least = base_offset
    for version, *fields in TRANSACTION_ENTRY.iter_unpack(content[: len(content) // TRANSACTION_ENTRY.size * TRANSACTION_ENTRY.size]):
        entry = AbortedTxn._make(fields)
        if version != _VERSION or entry.last_offset < least or not entry.is_possible:
            break
        found.append(entry)
        least = entry.last_offset + 1
    return found


def read_transaction_index(directory: str, base_offset: Offset) -> list[AbortedTxn]:
    """Return the entries of a segment, none without a file. Raises `ValueError`, OSError."""
    try:
        content = file_io.read_file(segment_path(directory, base_offset, TRANSACTION_INDEX_SUFFIX))
    except FileNotFoundError:
        return []
    return decode_transaction_index(content)


def end_of_aborted(directory: str) -> Offset:
    """Return the offset behind the newest abort marker in any index of the log, 0 without one.

    Raises OSError.
    """
    bases = [base for name in file_io.listdir(directory) if (base := offset_of_name(name, TRANSACTION_INDEX_SUFFIX)) is not None]
    for base_offset in sorted(bases, reverse=True):
        entries = _good_entries(file_io.read_file(segment_path(directory, base_offset, TRANSACTION_INDEX_SUFFIX)), base_offset)
        if entries:
            return entries[-1].last_offset + 1
    return FIRST_OFFSET


def aborted_between(indexes: Iterable[bytes], first_offset: Offset, end_offset: Offset) -> list[AbortedTxn]:
    """Return the aborted transactions that have records in [first_offset, end_offset).

    `indexes`: whole `.txnindex` files in ascending order, beginning with that of the segment that
    contains `first_offset`; they are read only as far as needed. Raises `ValueError` if one is
    damaged.
    """
    found = []
    for content in indexes:
        for entry in decode_transaction_index(content):
            if entry.last_offset >= first_offset and entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return found
    return found


class TransactionIndexes:
    """Writes the `.txnindex` files of one log, and records which of them a flush round must sync.

    Raises OSError.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._unsynced: set[str] = set()

    def append(self, base_offset: Offset, entries: Iterable[AbortedTxn]) -> None:
        """Append entries to a segment's index. After a failure call `cut`."""
        content = encode_transaction_index(entries)
        path = segment_path(self._directory, base_offset, TRANSACTION_INDEX_SUFFIX)
        fd = file_io.open_path(path, file_io.READ_WRITE_CREATE)
        try:
            self._unsynced.add(path)
            file_io.write_all(fd, (content,), file_io.size_of(fd), len(content))
        finally:
            file_io.close(fd)

    def cut(self, base_offset: Offset, end_offset: Offset) -> None:
        """Remove the entries of markers at or behind `end_offset` from a segment's index, and a
        partial entry at its end.
        """
        path = segment_path(self._directory, base_offset, TRANSACTION_INDEX_SUFFIX)
        try:
            content = file_io.read_file(path)
        except FileNotFoundError:
            return
        kept = encode_transaction_index(entry for entry in _good_entries(content, base_offset) if entry.last_offset < end_offset)
        if kept != content:
            fd = file_io.open_path(path, file_io.READ_WRITE)
            try:
                file_io.ftruncate(fd, len(kept))
            finally:
                file_io.close(fd)
            self._unsynced.add(path)

    def take_unsynced(self) -> list[str]:
        """Return the paths that the next flush round must sync."""
        paths = sorted(self._unsynced)
        self._unsynced.clear()
        return paths

    def put_back_unsynced(self, paths: Iterable[str]) -> None:
        """Mark these paths of `take_unsynced` as unsynced again."""
        self._unsynced.update(path for path in paths if path.endswith(TRANSACTION_INDEX_SUFFIX))


def first_doubtful(directory: str, names: Iterable[str], scanned_from: Offset) -> Offset:
    """Return the marker offset from which the transaction indexes must be rebuilt, -1 if all are
    good.

    That is where the first file is damaged, or `scanned_from` (-1: no markers were scanned). Raises
    OSError.
    """
    doubtful = [scanned_from] if scanned_from >= 0 else []
    for name in names:
        base_offset = offset_of_name(name, TRANSACTION_INDEX_SUFFIX)
        if base_offset is None:
            continue
        try:
            content = file_io.read_file(f"{directory}/{name}")
        except FileNotFoundError:
            continue  # its segment lay behind the log's end and has just been removed
        if transaction_index_problem(content, base_offset) is not None:
            good = _good_entries(content, base_offset)
            doubtful.append(good[-1].last_offset + 1 if good else base_offset)
    return min(doubtful, default=NO_OFFSET)


def settle(directory: str, bases: Sequence[Offset], end_offset: Offset, found: Sequence[AbortedTxn], rebuilt_from: Offset) -> None:
    """Bring the indexes of a log in line with its batches, durably if one changes.

    Entries at or behind `end_offset` are removed, and missing ones of `found` (in the order of
    their markers) are added. For markers from `rebuilt_from` on (-1: none) only `found` counts.
    Raises OSError.
    """
    trusted_end = end_offset if rebuilt_from < 0 else min(end_offset, rebuilt_from)
    for base_offset, next_offset in pairwise([*bases, end_offset]):
        path = segment_path(directory, base_offset, TRANSACTION_INDEX_SUFFIX)
        here = [entry for entry in found if base_offset <= entry.last_offset < next_offset]
        content = file_io.read_file(path) if file_io.exists(path) else b""
        kept = [entry for entry in _good_entries(content, base_offset) if entry.last_offset < min(next_offset, trusted_end)]
        last = kept[-1].last_offset if kept else -1
        wanted = encode_transaction_index([*kept, *(entry for entry in here if entry.last_offset > last)])
        if wanted != content:
            file_io.replace_file(path, wanted)
