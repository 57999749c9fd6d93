"""The summary of a sealed segment: what its records cannot contain, so that a search skips it, or
parts of it.

`N.summary` lies beside `N.log`. A page with a header (JSON, padded to whole pages) has the identity
of the segment, where its blocks begin (8 to 64 of about the same size, of whole batches) with their
first and last time, and all values of `FIELDS`, if they are few. Behind it are the Bloom filters
of the blocks over the words of the values and of the names of fields, in slices: a slot has a bit
for each block. So a look-up reads one page for all blocks. Pages have a CRC-32C of their own, by
which a torn one is noticed. Numbers are little-endian.

A word is a run of ASCII letters, digits and `_`, without case, of at most `TOKEN_BYTES_MAX`. What
is not ASCII separates words, also where Python's `\\w` joins them: the words of a query are split in
the same way, and only those of its words are looked up whose both ends are known to be ends. JSON's
escapes are read both ways (`\\ntimeout` holds `ntimeout` and `timeout`); a segment in which ASCII
letters are escaped as `\\u0065` has no filter that counts.

A summary counts only for the file that it was made of: inode, size and time of the last change
(`st_ctime`, which no process can set). A missing, torn or foreign one rules nothing out. Pure but
for reading. Weak: within a page of the filter, unlike words may fall on the same bits, so a segment
may be read for nothing, never skipped wrongly.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_, or_
from typing import Any, NamedTuple

import orjson

from appliance.records.crc32c import crc32c
from appliance.senders.record_query import ANY_FIELD, And, Compare, Contains, Equals, Node, Not, Or, Regex, names_of
from appliance.storage import file_io
from services.search.matching import Document, compile_node
from services.search.prefilter import is_number, regex_texts

MAGIC = b"MRSUM002"
PREFIX = struct.Struct("<8sII")
"""Magic, bytes of the header behind it, and their CRC-32C."""
PAGE_BYTES = 4096
PAGE_FILTER_BYTES = PAGE_BYTES - 4
"""Before the checksum of the page."""
HASHES = 4
SLOT_BITS = ((16 << 20, 8), (64 << 20, 16), (256 << 20, 32))
"""A segment below this size has so many blocks at most, and bits in a slot; a larger one has
`BLOCKS_MAX`."""
BLOCKS_MAX = 64
TOKEN_BYTES_MAX = 128
FIELDS = ("host", "app", "severity")
VALUES_MAX = 1_000
VALUES_BYTES_MAX = 32 << 10
SEGMENT_BYTES_MIN = 1 << 20
"""A smaller segment has no summary: it is read faster than one is looked up."""
HEADER_BYTES_MAX = 1 << 20

WORD_BYTES = 8
"""Hashed at a time."""
MASK = (1 << 64) - 1
BASE = 0x9E3779B97F4A7C15
MIX_1, MIX_2, MIX_3 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93
_RUN = re.compile("[0-9A-Za-z_]+")


class SegmentIdentity(NamedTuple):
    """What a change of a segment's file changes."""

    inode: int
    size_bytes: int
    changed_ns: int

    @classmethod
    def of(cls, figures: os.stat_result) -> SegmentIdentity:
        return cls(figures.st_ino, figures.st_size, figures.st_ctime_ns)


class SummaryHeader(NamedTuple):
    """The header. `problem`: why the segment has no summary that counts; it is not tried again."""

    identity: SegmentIdentity
    blocks: Sequence[Sequence[int]] = ()
    """Of each: position, first time, last time."""
    records: int = 0
    has_transactions: bool = False
    has_words: bool = False
    pages: int = 0
    fields: dict[str, list[Any] | None] = {}  # noqa: RUF012
    problem: str | None = None

    def encode(self) -> bytes:
        """Return whole pages."""
        document = orjson.dumps(self._asdict() | {"identity": list(self.identity)})
        content = PREFIX.pack(MAGIC, len(document), crc32c(document)) + document
        return content + bytes(-len(content) % PAGE_BYTES)

    @classmethod
    def decode(cls, content: bytes) -> SummaryHeader | None:
        """Return None for anything but a whole header."""
        if len(content) < PREFIX.size:
            return None
        magic, size_bytes, checksum = PREFIX.unpack_from(content)
        document = content[PREFIX.size : PREFIX.size + size_bytes]
        if magic != MAGIC or len(document) < size_bytes or crc32c(document) != checksum:
            return None
        fields = orjson.loads(document)
        return cls(**fields)._replace(identity=SegmentIdentity(*fields["identity"]))


def header_pages_bytes(size_bytes: int) -> int:
    """Return the bytes of the pages that a header of `size_bytes` takes."""
    return -(-(PREFIX.size + size_bytes) // PAGE_BYTES) * PAGE_BYTES


def read_header(fd: int) -> tuple[SummaryHeader, int] | None:
    """Return the header and its bytes; None if it is not whole. Raises OSError."""
    prefix = file_io.pread_all(fd, 0, PREFIX.size)
    if len(prefix) < PREFIX.size:
        return None
    _, size_bytes, _ = PREFIX.unpack(prefix)
    if size_bytes > HEADER_BYTES_MAX:
        return None
    header = SummaryHeader.decode(file_io.pread_all(fd, 0, PREFIX.size + size_bytes))
    return None if header is None else (header, header_pages_bytes(size_bytes))


def slot_bits_of(segment_bytes: int) -> int:
    """Return the bits of a slot, and with it the number of blocks at most."""
    return next((slot_bits for size_bytes, slot_bits in SLOT_BITS if segment_bytes < size_bytes), BLOCKS_MAX)


def token_hash(token: bytes) -> int:
    """Return the hash of a word; `services.search.summarizer` computes the same for many."""
    folded = bytes(byte | 0x20 for byte in token)
    polynomial, power = 0, 1
    for start in range(0, len(folded), WORD_BYTES):
        polynomial = (polynomial + int.from_bytes(folded[start : start + WORD_BYTES], "little") * power) & MASK
        power = power * BASE & MASK
    mixed = polynomial ^ (len(token) * MIX_3 & MASK)
    mixed = (mixed ^ mixed >> 30) * MIX_1 & MASK
    mixed = (mixed ^ mixed >> 27) * MIX_2 & MASK
    return mixed ^ mixed >> 31


def slots_of(hashed: int, slot_bits: int) -> list[int]:
    """Return the slots of a word in its page."""
    slots = PAGE_FILTER_BYTES * 8 // slot_bits
    other = hashed * MIX_3 & MASK
    other ^= other >> 29
    return [(other >> 16 * number & 0xFFFF) * slots >> 16 for number in range(HASHES)]


class SegmentSummary:
    """An open summary of one segment. It owns `fd`. `is_broken`: a page was torn."""

    def __init__(self, fd: int, header: SummaryHeader, filter_at: int) -> None:
        self._fd = fd
        self.header = header
        self._filter_at = filter_at
        self._slot_bits = slot_bits_of(header.identity.size_bytes)
        self.is_broken = False
        self.all_blocks = (1 << len(header.blocks)) - 1
        """A set of blocks is a whole number with a bit for each."""

    @classmethod
    def open(cls, path: str, identity: SegmentIdentity) -> SegmentSummary | None:
        """Return the summary at `path` if it was made of this file."""
        try:
            fd = file_io.open_path(path, file_io.READ_ONLY)
        except OSError:
            return None
        found = None
        try:
            found = read_header(fd)
        except (OSError, ValueError, TypeError):
            pass
        if found is None or found[0].identity != identity:
            file_io.close(fd)
            return None
        return cls(fd, *found)

    def close(self) -> None:
        file_io.close(self._fd)

    def blocks_with(self, hashed: int) -> int:
        """Return the blocks of which a value may contain the word."""
        header = self.header
        if not header.has_words:
            return self.all_blocks
        try:
            page = file_io.pread_all(self._fd, self._filter_at + (hashed & header.pages - 1) * PAGE_BYTES, PAGE_BYTES)
        except OSError:
            page = b""
        if len(page) < PAGE_BYTES or crc32c(page[:PAGE_FILTER_BYTES]) != int.from_bytes(page[PAGE_FILTER_BYTES:], "little"):
            self.is_broken = True
            return self.all_blocks
        width = self._slot_bits // 8
        slots = [int.from_bytes(page[slot * width : (slot + 1) * width], "little") for slot in slots_of(hashed, self._slot_bits)]
        return reduce(and_, slots, self.all_blocks)


Possible = Callable[[SegmentSummary], int]
"""Returns the blocks of a segment that may have a record that fulfils a condition."""


class SegmentFilter:
    """The part of a query that segments are skipped by."""

    def __init__(self, node: Node, since_ms: int, until_ms: int) -> None:
        self._possible = possible_of(node)
        self._since_ms = since_ms
        self._until_ms = until_ms

    def ranges(self, summary: SegmentSummary) -> list[tuple[int, int]]:
        """Return the parts of the segment, as positions, outside of which no record fulfils query
        and time range. Each begins with a batch.

        A segment with transactions is read in any case: its markers decide about later segments.
        """
        header = summary.header
        size_bytes = header.identity.size_bytes
        if header.problem is not None or header.has_transactions:
            return [(0, size_bytes)]
        since_ms, until_ms = self._since_ms, self._until_ms
        blocks = sum(1 << number for number, (_, first_ms, last_ms) in enumerate(header.blocks) if first_ms < until_ms and last_ms >= since_ms)
        blocks = blocks and blocks & self._possible(summary)
        ends = [position for position, _, _ in header.blocks[1:]] + [size_bytes]
        found: list[tuple[int, int]] = []
        for number, ((start, _, _), end) in enumerate(zip(header.blocks, ends, strict=True)):
            if not blocks >> number & 1:
                continue
            if found and found[-1][1] == start:
                start = found.pop()[0]
            found.append((start, end))
        return found


def possible_of(node: Node) -> Possible:
    """Return the function that decides for one condition; what it cannot decide is possible."""
    match node:
        case And(parts):
            every = [possible_of(part) for part in parts]
            return lambda summary: reduce(lambda blocks, part: blocks and blocks & part(summary), every, summary.all_blocks)
        case Or(parts):
            some = [possible_of(part) for part in parts]
            return lambda summary: reduce(or_, (part(summary) for part in some), 0)
        case Not():
            return lambda summary: summary.all_blocks
        case Contains(field, pieces):
            return _condition(node, field, [words_of(pieces)])
        case Regex(field, pattern):
            return _condition(node, field, [words_of(("", text, "")) for text in regex_texts(pattern) or ("",)])
        case Equals(field, pieces, number):
            decides = not is_number("".join(pieces)) or number is not None
            return _condition(node, field, [words_of((text,)) for text in names_of(field, number)] + [words_of(pieces) if decides else []])
        case Compare(field):
            return _condition(node, field, [[]])


def words_of(pieces: tuple[str, ...]) -> list[int]:
    """Return hashes of the words that a text with these pieces contains whole: of the first piece
    the beginning is the end of a word, of the last one the end is."""
    found = []
    for number, piece in enumerate(pieces):
        for run in _RUN.finditer(piece):
            begins = run.start() > 0 or number == 0
            ends = run.end() < len(piece) or number == len(pieces) - 1
            if begins and ends and len(run.group()) <= TOKEN_BYTES_MAX:
                found.append(token_hash(run.group().encode()))
    return found


def _condition(node: Node, field: str, alternatives: list[list[int]]) -> Possible:
    """The names of the field, one of the alternatives, and one of its values have to be there."""
    names = words_of((field,)) if field != ANY_FIELD else []
    predicate = compile_node(node) if field in FIELDS else None

    def possible(summary: SegmentSummary) -> int:
        values = summary.header.fields.get(field) if predicate is not None and summary.header.has_words else None
        if predicate is not None and values is not None and not any(predicate(_with_field(field, value)) for value in values):
            return 0
        blocks = reduce(and_, map(summary.blocks_with, names), summary.all_blocks)
        return blocks and blocks & reduce(or_, (reduce(and_, map(summary.blocks_with, words), blocks) for words in alternatives), 0)

    return possible


def _with_field(field: str, value: Any) -> Document:
    document = Document(b"")
    document.fields = {field: value}
    return document
