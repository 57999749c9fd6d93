"""Makes the summaries of sealed segments: a log-writer starts it for searched topics, at idle
priority, and it ends when all have one.

The job is read from standard input, a file in memory; a report goes to standard output for each
summary. The partition's directory is pinned, because a new topic may have its name before the work
ends. A summary is written beside, synced and renamed, so it is whole or not there. A segment with a
damaged batch gets a summary that rules nothing out; a repair changes the file, and so asks for
another. Weak: in one piece of half a megabyte the work takes about 40 MB besides the filter.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import orjson

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported; nothing here computes with matrices

import numpy as np
from numpy.typing import NDArray

from appliance.base.clock import Clock, SystemClock
from appliance.base.model import Offset, TopicId
from appliance.pipeline.local_segments import LocalSegment
from appliance.records.batch import (
    BATCH_HEADER,
    CODEC_MASK,
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    RECORDS_AT,
    TRANSACTIONAL_FLAG,
    stored_batch_problem,
)
from appliance.records.compression import Codec, CorruptBatch, decompress, opened_batch_limit
from appliance.records.crc32c import crc32c
from appliance.records.record import decode_varint
from appliance.runtime.scheduling import take_idle_priority
from appliance.runtime.service_main import name_process
from appliance.runtime.spawning import bind_to_parent
from appliance.storage import file_io
from appliance.storage.directory_identity import read_topic_id
from appliance.storage.partition_directory import PinnedDirectory
from appliance.storage.segment_files import LOG_SUFFIX, SUMMARY_SUFFIX, segment_name
from services.search.agent import limit_memory
from services.search.summary import (
    BASE,
    FIELDS,
    HASHES,
    MIX_1,
    MIX_2,
    MIX_3,
    PAGE_BYTES,
    PAGE_FILTER_BYTES,
    SEGMENT_BYTES_MIN,
    TOKEN_BYTES_MAX,
    VALUES_BYTES_MAX,
    VALUES_MAX,
    WORD_BYTES,
    SegmentIdentity,
    SummaryHeader,
    read_header,
    slot_bits_of,
    token_hash,
)

WINDOW_BYTES = 8 << 20
PIECE_BYTES = 512 << 10
CHUNK_BYTES = 128 << 10
"""Hashed at a time: its arrays stay in the cache of a core."""
OVERLAP_BYTES = TOKEN_BYTES_MAX + 2
FILTER_BYTES_MAX = 32 << 20
FILL_MAX = 0.35
"""The filter is halved while fewer of its bits would be set: one of 70 blocks is then read for nothing."""
VALUE_BYTES_MAX = 48
SEEN_BITS = 16
MEMORY_BYTES = 384 << 20
FREE_SHARE_MIN = 20
"""No summary is written when less than this part of the disk is free."""
_PADDING = bytes(VALUE_BYTES_MAX + 16)

Words = NDArray[np.uint64]
Places = NDArray[np.int64]


def _table(members: Iterable[int]) -> NDArray[np.bool_]:
    table = np.zeros(256, np.bool_)
    table[list(members)] = True
    return table


_IS_WORD = _table(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_WORD_TABLE = _IS_WORD.tobytes()
"""For `bytes.translate`, which is three times as fast as an index."""
_FIRST_BYTES: Words = np.array([(1 << 8 * count) - 1 for count in range(WORD_BYTES + 1)], np.uint64)
_POWERS: Words = np.array([pow(BASE, number, 1 << 64) for number in range(-(-TOKEN_BYTES_MAX // WORD_BYTES))], np.uint64)
_IS_SHORT_ESCAPE = _table(b"bfnrt")
_ENDS_SCALAR = _table(b",}] \t\r\n")
_HEX = np.zeros(256, np.uint8)
for _digit in b"0123456789abcdefABCDEF":
    _HEX[_digit] = int(chr(_digit), 16)


class Unfit(Exception):
    """The segment gets no summary that counts; the text says why."""


class SummaryFigures(NamedTuple):
    """What of a segment is in its summary."""

    blocks: list[tuple[int, int, int]]
    records: int
    has_transactions: bool
    has_words: bool
    fields: dict[str, list[Any] | None]


class WordFilter:
    """The Bloom filters of a segment's blocks under construction, as slots of a bit for each."""

    def __init__(self, pages: int, slot_bits: int) -> None:
        """`pages`: a power of two; `slot_bits`: the bits of a slot."""
        self._slots_of_page = PAGE_FILTER_BYTES * 8 // slot_bits
        self._slots: NDArray[Any] = np.zeros(pages * self._slots_of_page, f"<u{slot_bits // 8}")
        self._seen: Words = np.zeros(1 << SEEN_BITS, np.uint64)
        """The last word with each of these leading bits: frequent ones are not set again."""
        self._blocks = 0

    def begin_block(self) -> None:
        """Add what follows for the next block."""
        self._bit = self._slots.dtype.type(1 << self._blocks)
        self._blocks += 1
        self._seen[:] = 0

    def add(self, hashed: Words) -> None:
        """Add words by their hashes."""
        leading = (hashed >> np.uint64(64 - SEEN_BITS)).astype(np.int64)
        new = self._seen[leading] != hashed
        self._seen[leading] = hashed
        hashed = hashed[new]
        if not hashed.size:
            return
        pages = np.uint64(self._slots.size // self._slots_of_page - 1)
        first = (hashed & pages).astype(np.int64) * self._slots_of_page
        other = hashed * np.uint64(MIX_3)
        other ^= other >> np.uint64(29)
        for number in range(HASHES):
            slots = (other >> np.uint64(16 * number) & np.uint64(0xFFFF)) * np.uint64(self._slots_of_page) >> np.uint64(16)
            self._slots[first + slots.astype(np.int64)] |= self._bit  # of two equal places, both assign the same

    def encode(self) -> tuple[int, bytes]:
        """Return the number of pages, and the pages."""
        slots, a_page = self._slots, self._slots_of_page
        while slots.size > a_page:
            half = slots[: slots.size // 2] | slots[slots.size // 2 :]
            if int(np.bitwise_count(half).sum()) > FILL_MAX * self._blocks * half.size:
                break
            slots = half
        content = bytearray()
        for start in range(0, slots.size, a_page):
            page = slots[start : start + a_page].tobytes().ljust(PAGE_FILTER_BYTES, b"\0")
            content += page + crc32c(page).to_bytes(4, "little")
        return slots.size // a_page, bytes(content)


class FieldValues:
    """The values of one field, as JSON writes them; None if they are too many or not plain."""

    def __init__(self, name: str, factors: Words) -> None:
        """`factors`: random and odd, so that no sender can make two values look the same."""
        self._factors = factors
        self._hash = np.uint64(token_hash(name.encode()))
        self._found: dict[bytes, Any] | None = {}
        self._bytes = 0

    @property
    def values(self) -> list[Any] | None:
        return None if self._found is None else list(self._found.values())

    def add(self, data: NDArray[np.uint8], starts: Places, ends: Places, hashed: Words) -> None:
        """Add what follows the words that are this field's name."""
        if self._found is None:
            return
        named = hashed == self._hash
        starts, ends = starts[named], ends[named]
        is_name = (data[np.maximum(starts - 1, 0)] == ord('"')) & (data[ends] == ord('"')) & (starts > 0)
        ends = ends[is_name]
        behind = data[ends + 1]
        if np.any((behind == ord(" ")) | (behind == ord("\t")) | (behind == ord("\n")) | (behind == ord("\r"))):
            self._found = None
            return
        at = ends[behind == ord(":")] + 2
        words = _unaligned(data)
        rows = np.stack([words[at + start] for start in range(0, VALUE_BYTES_MAX, WORD_BYTES)], axis=1).view(np.uint8)
        is_text = rows[:, 0] == ord('"')
        is_end = rows == ord('"')
        if not is_text.all():
            is_end[~is_text] = _ENDS_SCALAR[rows[~is_text]]
        is_end[:, 0] = False
        length = np.argmax(is_end, axis=1)
        has_end = is_end[np.arange(length.size), length]
        length += is_text
        rows = np.where(np.arange(VALUE_BYTES_MAX) < length[:, None], rows, np.uint8(0))
        if not has_end.all() or np.any(rows == ord("\\")):
            self._found = None
            return
        _, first = np.unique((rows.view(np.uint64) * self._factors).sum(axis=1, dtype=np.uint64), return_index=True)
        for row, size_bytes in zip(rows[first], length[first], strict=True):
            self._take(row[: int(size_bytes)].tobytes())

    def _take(self, written: bytes) -> None:
        if self._found is None or written in self._found:
            return
        try:
            value = orjson.loads(written)
        except orjson.JSONDecodeError:
            self._found = None
            return
        self._bytes += len(written)
        if isinstance(value, list | dict) or len(self._found) >= VALUES_MAX or self._bytes > VALUES_BYTES_MAX:
            self._found = None
            return
        self._found[written] = value


class SegmentSummarizer:
    """Collects what is in the records of one segment."""

    def __init__(self, pages: int, slot_bits: int, random: bytes) -> None:
        """`random`: 48 bytes."""
        self.filter = WordFilter(pages, slot_bits)
        factors = np.frombuffer(random, np.uint64) | np.uint64(1)
        self._fields = {name: FieldValues(name, factors) for name in FIELDS}
        self._blocks: list[tuple[int, int, int]] = []
        self._records = 0
        self.has_transactions = False
        self._has_escaped_letters = False

    def figures(self) -> SummaryFigures:
        """Return everything but the filter."""
        fields = {name: each.values for name, each in self._fields.items()}
        return SummaryFigures(self._blocks, self._records, self.has_transactions, not self._has_escaped_letters, fields)

    def begin_block(self, position: int) -> None:
        """Take what follows as the next block, which begins there in the file."""
        self._blocks.append((position, 1 << 62, -(1 << 62)))
        self.filter.begin_block()

    def take(self, content: bytes, starts: list[int], times: list[int], append_times: list[int]) -> None:
        """Take records: where each begins in `content`, its batch's base timestamp, and its append
        time (-1: none). Raises `Unfit`."""
        if not starts:
            return
        data = np.frombuffer(content + _PADDING, np.uint8)
        at = np.array(starts, np.int64) + 1
        delta, at = _varints(data, at)
        _, at = _varints(data, at)
        key_bytes, at = _varints(data, at)
        value_bytes, at = _varints(data, at + np.clip(key_bytes, 0, len(content)))  # hostile ones: their sum must not wrap
        ends = at + np.clip(value_bytes, 0, len(content))
        if int(ends.max()) >= len(content) or int(key_bytes.min()) < -1 or int(value_bytes.min()) < -1 or np.any(at[1:] < ends[:-1]):
            raise Unfit("records that do not fill their batch")
        stamped = np.array(append_times, np.int64)
        written = np.where(stamped < 0, np.array(times, np.int64) + delta, stamped)
        position, first_ms, last_ms = self._blocks[-1]
        self._blocks[-1] = position, min(first_ms, int(written.min())), max(last_ms, int(written.max()))
        self._records += len(starts)
        is_word = np.frombuffer(bytearray(content + _PADDING).translate(_WORD_TABLE), np.bool_)
        between = np.concatenate(([0], ends)), np.concatenate((at, [len(content)]))
        is_word[_all_of(*between)] = False  # lengths, keys and headers are no words, and no parts of one
        self._take_words(data, is_word, len(content))

    def _take_words(self, data: NDArray[np.uint8], is_word: NDArray[np.bool_], size_bytes: int) -> None:
        escaped = self._behind_escapes(data, size_bytes)
        folded = _unaligned(data | np.uint8(0x20))
        for start in range(0, size_bytes, CHUNK_BYTES):
            first, end = max(start - OVERLAP_BYTES, 0), min(start + CHUNK_BYTES, size_bytes)
            marked = is_word[first:end]
            edges = np.flatnonzero(marked[1:] != marked[:-1]) + 1
            edges = np.concatenate((edges[:0] if not marked[0] else np.zeros(1, np.int64), edges, [marked.size] if marked[-1] else edges[:0]))
            starts, ends = edges[0::2], edges[1::2]
            more = escaped[(escaped >= first) & (escaped < end)] - first
            if more.size and starts.size:
                more = more[marked[more]]
                run = np.searchsorted(starts, more, "right") - 1
                starts, ends = np.concatenate((starts, more)), np.concatenate((ends, ends[run]))
            is_short = ends - starts <= TOKEN_BYTES_MAX
            starts, ends = starts[is_short], ends[is_short]
            hashed = _hashes(folded, starts + first, ends - starts)
            for values in self._fields.values():
                values.add(data, starts + first, ends + first, hashed)
            self.filter.add(hashed)

    def _behind_escapes(self, data: NDArray[np.uint8], size_bytes: int) -> Places:
        """Return where words may begin because what precedes is an escape of JSON."""
        slashes = np.flatnonzero(data[:size_bytes] == ord("\\"))
        letters = data[slashes + 1]
        codes = slashes[letters == ord("u")]
        character = _HEX[data[codes + 4]] << 4 | _HEX[data[codes + 5]]
        is_ascii = (data[codes + 2] == ord("0")) & (data[codes + 3] == ord("0"))
        self._has_escaped_letters = self._has_escaped_letters or bool(np.any(is_ascii & _IS_WORD[character]))
        return np.concatenate((slashes[_IS_SHORT_ESCAPE[letters]] + 2, codes + 6))


def _unaligned(data: NDArray[np.uint8]) -> Words:
    """Return a view with the 8 bytes from each place on."""
    return np.ndarray((data.size - WORD_BYTES + 1,), "<u8", buffer=data, strides=(1,))


def _all_of(starts: Places, ends: Places) -> Places:
    """Return all places in ranges."""
    lengths = ends - starts
    firsts = np.cumsum(lengths) - lengths
    places: Places = np.arange(int(lengths.sum())) + np.repeat(starts - firsts, lengths)
    return places


def _hashes(folded: Words, starts: Places, sizes: Places) -> Words:
    """Return the hashes of words; as `token_hash`. `folded`: the view of folded bytes."""
    hashed: Words = folded[starts] & _FIRST_BYTES.take(np.minimum(sizes, WORD_BYTES))
    longer, number = np.flatnonzero(sizes > WORD_BYTES), 1
    while longer.size:
        left = sizes[longer] - WORD_BYTES * number
        words = folded[starts[longer] + WORD_BYTES * number] & _FIRST_BYTES.take(np.minimum(left, WORD_BYTES))
        hashed[longer] += words * _POWERS[number]
        longer, number = longer[left > WORD_BYTES], number + 1
    hashed ^= sizes.astype(np.uint64) * np.uint64(MIX_3)
    hashed ^= hashed >> np.uint64(30)
    hashed *= np.uint64(MIX_1)
    hashed ^= hashed >> np.uint64(27)
    hashed *= np.uint64(MIX_2)
    hashed ^= hashed >> np.uint64(31)
    return hashed


def _varints(data: NDArray[np.uint8], at: Places) -> tuple[Places, Places]:
    """Return zigzag varints at many places, and the places behind them. Raises `Unfit`."""
    if at.size and int(at.max()) >= data.size - 10:
        raise Unfit("records that do not fill their batch")
    byte = data[at]
    value, at = (byte & 0x7F).astype(np.uint64), at + 1
    open_ones = np.flatnonzero(byte & 0x80)
    for shift in range(7, 70, 7):
        if not open_ones.size:
            break
        byte = data[at[open_ones]]
        value[open_ones] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[open_ones] += 1
        open_ones = open_ones[byte & 0x80 != 0]
    if open_ones.size:
        raise Unfit("a number that does not end")
    return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64), at


class _Piece:
    """Records of neighbouring batches, until they are worth a turn."""

    def __init__(self, summarizer: SegmentSummarizer) -> None:
        self._summarizer = summarizer
        self._bodies: list[bytes] = []
        self._bytes = 0
        self._starts: list[int] = []
        self._times: list[int] = []
        self._append_times: list[int] = []

    def add(self, body: bytes, count: int, base_ms: int, append_ms: int) -> None:
        """Add a batch's records. Raises `Unfit`."""
        position, starts, before = 0, self._starts, self._bytes
        try:
            for _ in range(count):
                length = body[position]
                if length < 0x80:
                    size_bytes, position = length >> 1, position + 1
                elif (byte := body[position + 1]) < 0x80:
                    size_bytes, position = (length & 0x7F | byte << 7) >> 1, position + 2
                else:
                    size_bytes, position = decode_varint(body, position)
                    if size_bytes < 0:
                        raise CorruptBatch("a record of negative length")
                starts.append(before + position)
                position += size_bytes
        except (IndexError, CorruptBatch) as problem:
            raise Unfit(f"records that do not fill their batch: {problem}") from problem
        if position != len(body):
            raise Unfit("records that do not fill their batch")
        self._times += [base_ms] * count
        self._append_times += [append_ms] * count
        self._bodies.append(body)
        self._bytes += len(body)
        if self._bytes >= PIECE_BYTES:
            self.flush()

    def note_transaction(self) -> None:
        self._summarizer.has_transactions = True

    def flush(self) -> None:
        """Hand the records on. Raises `Unfit`."""
        self._summarizer.take(b"".join(self._bodies), self._starts, self._times, self._append_times)
        self._bodies, self._bytes, self._starts, self._times, self._append_times = [], 0, [], [], []


def summarize(segment: LocalSegment, summarizer: SegmentSummarizer) -> Iterator[int]:
    """Take all records of a segment; yield the bytes read so far. Raises `Unfit`, OSError."""
    piece = _Piece(summarizer)
    position, end, window_bytes = 0, segment.size_bytes, WINDOW_BYTES
    block_bytes, block_end = -(-end // slot_bits_of(end)), 0
    while position < end:
        if position >= block_end:
            piece.flush()
            summarizer.begin_block(position)
            block_end = (position // block_bytes + 1) * block_bytes
        window_end = min(end, position + window_bytes)
        with segment.window(position, window_end) as window:
            block_limit = block_end - window.start
            reached = window.start + _take_batches(window.memory, position - window.start, window_end - window.start, block_limit, piece)
        if reached == position:
            if window_end == end:
                raise Unfit(f"no whole batch at byte {position}")
            window_bytes *= 2
            continue
        position, window_bytes = reached, WINDOW_BYTES
        yield position
    piece.flush()


def _take_batches(memory: memoryview, position: int, limit: int, block_end: int, piece: _Piece) -> int:
    """Take the whole batches of a window that begin before the end of a block; return where they
    end. Raises `Unfit`."""
    while position < block_end and position + RECORDS_AT <= limit:
        fields = BATCH_HEADER.unpack_from(memory, position)
        _, length, _, magic, _, attributes, _, base_ms, max_ms, _, _, _, count = fields
        end = position + length + LOG_OVERHEAD
        if magic != MAGIC or length + LOG_OVERHEAD < RECORDS_AT:
            raise Unfit(f"no batch at byte {position} of a window")
        if end > limit:
            break
        problem = stored_batch_problem(memory, position, limit)
        if problem is not None:
            raise Unfit(problem)
        if attributes & (CONTROL_FLAG | TRANSACTIONAL_FLAG):
            piece.note_transaction()
        if not attributes & CONTROL_FLAG and count > 0:
            stored = memory[position + RECORDS_AT : end]
            codec = Codec(attributes & CODEC_MASK)
            try:
                body = bytes(decompress(codec, stored, opened_batch_limit(len(stored))) if codec else stored)
            except (CorruptBatch, ValueError, MemoryError) as error:
                raise Unfit(str(error) or "a batch needs too much memory") from error
            piece.add(body, count, base_ms, max_ms if attributes & LOG_APPEND_TIME_FLAG else -1)
        position = end
    return position


def pages_for(segment_bytes: int, share_percent: int) -> int:
    """Return the largest power of two of pages that stays in the share, beside a header's."""
    pages = min(segment_bytes * share_percent // 100, FILTER_BYTES_MAX) // PAGE_BYTES - 1
    return 1 << max(pages, 1).bit_length() - 1


class PartitionSummaries:
    """The summaries of one partition's directory."""

    def __init__(self, directory: str, topic_id: TopicId, share_percent: int, random: bytes) -> None:
        """Raises OSError, and `Unfit` if the directory belongs to another topic."""
        self._directory = PinnedDirectory(directory)
        self._share_percent = share_percent
        self._random = random
        try:
            if read_topic_id(self._directory.path) != topic_id:
                raise Unfit(f"{directory} belongs to another topic now")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._directory.close()

    def has_space(self) -> bool:
        """Return False if the disk is nearly full. Raises OSError."""
        space = file_io.space(self._directory.path)
        return space.free_bytes * FREE_SHARE_MIN >= space.total_bytes

    def remove_orphans(self) -> None:
        """Remove summaries whose segment is gone, and what an earlier run left."""
        names = set(file_io.listdir(self._directory.path))
        for name in names:
            base, dot, suffix = name.partition(".")
            is_orphan = suffix == SUMMARY_SUFFIX[1:] and f"{base}{LOG_SUFFIX}" not in names
            if dot and (is_orphan or name.endswith(f"{SUMMARY_SUFFIX}.tmp")):
                file_io.unlink_in(self._directory.fd, name)

    def has(self, base_offset: Offset, checks_pages: bool) -> bool:
        """Return whether a segment needs no summary, or has one. Raises OSError."""
        figures = file_io.stat(self._path(base_offset, LOG_SUFFIX))
        if figures.st_size < SEGMENT_BYTES_MIN:
            return True
        try:
            fd = file_io.open_path(self._path(base_offset, SUMMARY_SUFFIX), file_io.READ_ONLY)
        except FileNotFoundError:
            return False
        try:
            found = read_header(fd)
            if found is None or found[0].identity != SegmentIdentity.of(figures):
                return False
            return not checks_pages or all(_is_whole(fd, found[1] + number * PAGE_BYTES) for number in range(found[0].pages))
        except (ValueError, TypeError):
            return False
        finally:
            file_io.close(fd)

    def make(self, base_offset: Offset) -> Iterator[int]:
        """Make the summary of a segment; yield the bytes read so far, then those written. Raises
        OSError."""
        path = self._path(base_offset, LOG_SUFFIX)
        with closing(LocalSegment(file_io.open_path(path, file_io.READ_ONLY), path, False)) as segment:
            identity = SegmentIdentity.of(segment.figures)
            pages = pages_for(identity.size_bytes, self._share_percent)
            summarizer = SegmentSummarizer(pages, slot_bits_of(identity.size_bytes), self._random)
            content = b""
            try:
                yield from summarize(segment, summarizer)
                figures = summarizer.figures()
                pages, content = summarizer.filter.encode() if figures.has_words else (0, b"")
                header = SummaryHeader(identity, *figures[:4], pages, figures.fields)
            except (Unfit, MemoryError, ValueError, IndexError) as problem:  # of any records: the other segments go on
                header, content = SummaryHeader(identity, problem=str(problem) or "it needs too much memory"), b""
            budget = identity.size_bytes * self._share_percent // 100
            for name in sorted(header.fields, key=lambda each: -len(orjson.dumps(header.fields[each]))):
                if len(header.encode()) + len(content) > budget:
                    header = header._replace(fields=header.fields | {name: None})
            yield self._write(base_offset, header.encode() + content, identity)

    def _write(self, base_offset: Offset, content: bytes, identity: SegmentIdentity) -> int:
        """Write a summary, unless its segment has changed."""
        path = self._path(base_offset, SUMMARY_SUFFIX)
        fd = file_io.open_path(f"{path}.tmp", file_io.CREATE_EMPTY)
        try:
            file_io.write_all(fd, (content,), 0, len(content))
            file_io.sync_data(fd)  # so that a power cut leaves no summary instead of a torn one
        finally:
            file_io.close(fd)
        try:
            is_same = SegmentIdentity.of(file_io.stat(self._path(base_offset, LOG_SUFFIX))) == identity
        except FileNotFoundError:
            is_same = False
        if not is_same:
            file_io.unlink_if_there(f"{path}.tmp")
            return 0
        file_io.rename(f"{path}.tmp", path)
        return len(content)

    def _path(self, base_offset: Offset, suffix: str) -> str:
        return f"{self._directory.path}/{segment_name(base_offset, suffix)}"


def _is_whole(fd: int, position: int) -> bool:
    page = file_io.pread_all(fd, position, PAGE_BYTES)
    return len(page) == PAGE_BYTES and crc32c(page[:PAGE_FILTER_BYTES]) == int.from_bytes(page[PAGE_FILTER_BYTES:], "little")


def run_job(job: dict[str, Any], report: Callable[[dict[str, Any]], None], clock: Clock, pause: Callable[[float], None]) -> None:
    """Make the missing summaries of the partitions in `job`, the newest segments first. `pause`
    waits for some seconds."""
    rate, started_ms, total_bytes = job["bytes_per_second"], clock.monotonic_ms(), 0
    for wanted in job["partitions"]:
        try:
            partition = PartitionSummaries(wanted["directory"], TopicId(bytes.fromhex(wanted["topic_id"])), job["share_percent"], os.urandom(VALUE_BYTES_MAX))
        except (FileNotFoundError, Unfit):
            continue  # the topic was deleted
        except (OSError, ValueError) as error:
            report({"problem": f"{wanted['directory']}: {str(error).lower()}"})
            continue
        with closing(partition):
            try:
                partition.remove_orphans()
            except OSError as error:
                report({"problem": f"{wanted['directory']}: {(error.strerror or str(error)).lower()}"})
                continue
            for base_offset in sorted(map(Offset, wanted["bases"]), reverse=True):
                try:
                    if partition.has(base_offset, wanted["checks_pages"]):
                        continue
                    if not partition.has_space():
                        return
                    read_bytes = written_bytes = 0
                    for figure in partition.make(base_offset):
                        read_bytes, written_bytes = max(read_bytes, written_bytes), figure
                        if rate and (ahead_ms := (total_bytes + figure) * 1_000 // rate - (clock.monotonic_ms() - started_ms)) > 0:
                            pause(ahead_ms / 1_000)
                    total_bytes += read_bytes
                    report({"read_bytes": read_bytes, "written_bytes": written_bytes})
                except FileNotFoundError:
                    continue  # retention was faster
                except OSError as error:
                    report({"problem": f"{wanted['directory']}/{segment_name(base_offset, LOG_SUFFIX)}: {(error.strerror or str(error)).lower()}"})


def main() -> int:
    if not bind_to_parent():
        return 1
    name_process(f"summarizer@{sys.argv[1]}" if len(sys.argv) > 1 else "summarizer")
    take_idle_priority()
    limit_memory(MEMORY_BYTES)
    job = orjson.loads(os.pread(0, os.fstat(0).st_size, 0))

    def report(said: dict[str, Any]) -> None:
        os.write(1, orjson.dumps(said) + b"\n")

    never = threading.Event()
    run_job(job, report, SystemClock(), lambda seconds: (never.wait(seconds), None)[1])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
