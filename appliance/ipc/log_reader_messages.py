"""The requests of acceptors to a log-reader over a SEQPACKET socket: one datagram per request and
answer (with a descriptor for OPEN).

A log-reader holds no client socket and no lock, so a hung disk blocks only the log-reader; each
request has a deadline at its sender. Weak: answers name segments by base offset as of the sender's
segment-list generation. Retention may have deleted one since; the descriptor stays usable and a new
request shows it. Compaction may have replaced one; the inode number shows that.

The answer to ABORTED: aborted transactions as (producer id, first offset, offset of the marker).

A few are in the answer itself. More are in a file in memory, whose descriptor comes with the
answer, so that neither side waits for a disk. The receiver owns the descriptor. Weak: a range with
thousands of them is copied three times.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from struct import Struct
from typing import Any, NamedTuple

from appliance.base.model import Offset, Position, ProducerId

OPEN = 1
"""Open the segment with base offset `value_a`; the answer has its descriptor and, in `a`, its size
in bytes."""
LOOKUP = 2
"""Find the batch with offset `value_a`, below offset `value_b`; with `ahead_bytes`, also where the
next reads of that size start."""
TIME = 3
"""Find the first record with a timestamp of at least `value_a` and an offset below `value_b`."""
MAX_TIMESTAMP = 4
"""Find the record with the largest timestamp and an offset below `value_b`."""
SEGMENTS = 5
"""List segments by base offset, descending, from the newest one last modified at or before wall
time `value_a` (ms)."""
EPOCH_END = 6
"""Return the end of leader epoch `value_a`; `value_b` is the log end, where the latest one ends."""
EPOCH_AT = 7
"""Return the leader epoch of the record at offset `value_a`."""
READ = 8
"""Read bytes of the segment with base offset `value_a`, from position `value_b` on, into the
log-reader's arena, as `extent` says."""
RELEASE = 9
"""The arena slots in `released` are free again: one entry per part of an answer to READ. `value_a`
is the incarnation of the log-reader. No answer."""
ABORTED = 10
"""Return the aborted transactions with records in the batches from offset `value_a` to the end of
`span`, all below offset `value_b`."""
CHECK = 11
"""A damaged batch was found at offset `value_a`: let the scrubber check it now. No answer."""

_QUESTION = Struct("<BQIQqq")
_ANSWER = Struct("<BQhqqqqq")
_OFFSET = Struct("<q")
_EXTENT = Struct("<qqQB")
_SPAN = Struct("<qq")
MAX_MESSAGE_BYTES = 1024
OFFSETS_MAX = 100
"""Largest number of offsets in an answer to SEGMENTS, so that it fits in a message."""
assert _ANSWER.size + OFFSETS_MAX * _OFFSET.size <= MAX_MESSAGE_BYTES


WHOLE_BATCHES = 1
"""End at the end of a batch, and return the offset that follows."""
FIRST_WHATEVER = 2
"""Return the first batch whole, even if it is longer than `size_bytes`."""
IS_ACTIVE = 4
"""The segment still grows."""


class Extent(NamedTuple):
    """The bytes that READ requests: at most `size_bytes`, none from position `limit` on. `inode`
    identifies the file that the sender has open."""

    size_bytes: int
    limit: int
    inode: int
    flags: int


class Span(NamedTuple):
    """The end of the bytes that ABORTED covers."""

    segment_base_offset: Offset
    end_position: Position


class ReadAnswer(NamedTuple):
    """The answer to READ, packed into `offsets`. `next_offset` follows the last batch (-1: not
    requested or not known).

    Parts are (slot, position in the arena, bytes), in order. `first_batch_bytes` > 0 without parts:
    the first batch does not fit.
    """

    incarnation: int
    next_offset: Offset
    first_batch_bytes: int
    parts: tuple[tuple[int, int, int], ...]

    @property
    def size_bytes(self) -> int:
        return sum(part[2] for part in self.parts)

    def packed(self) -> tuple[int, ...]:
        """Return the fields as integers."""
        return (*self[:3], *(number for part in self.parts for number in part))

    @classmethod
    def unpacked(cls, numbers: tuple[int, ...]) -> ReadAnswer:
        """Inverse of `packed`."""
        return cls._make((*numbers[:3], tuple((numbers[at], numbers[at + 1], numbers[at + 2]) for at in range(3, len(numbers), 3))))


class Question(NamedTuple):
    """One request. `topic` and `partition` name the directory; `segment_list_generation` shows
    whether a cached list is current. `kind` says what `value_a` and `value_b` are."""

    kind: int
    token: int
    partition: int
    segment_list_generation: int
    value_a: Any
    value_b: Any
    topic: str
    extent: Extent | None = None
    """READ only."""
    released: tuple[int, ...] = ()
    """RELEASE only."""
    span: Span | None = None
    """ABORTED only."""
    ahead_bytes: int = 0
    """LOOKUP only."""


class Answer(NamedTuple):
    """The answer to a request; the fields depend on its kind.

    LOOKUP: a = segment base offset, b = position, c = size of that batch, d = inode number of its file
      (compaction replaces the file under the same name), e = base offset of that batch; offsets = three
      numbers per read ahead: the offset that it starts at, position and size of its first batch.
    TIME, MAX_TIMESTAMP: a = offset (-1: none), b = timestamp, c = leader epoch of the record.
    OPEN: a = size of the segment in bytes, b = inode number.
    SEGMENTS: offsets.
    EPOCH_END: a = largest known epoch that is not above it, b = its end (-1, -1: unknown).
    EPOCH_AT: a = the epoch or -1.
    ABORTED: a = the offset up to which it holds, b = the number of transactions (`aborted_answer`).
    """

    kind: int
    token: int
    error_code: int
    a: Any = 0
    b: Any = 0
    c: Any = 0
    d: int = 0
    e: Any = 0
    offsets: tuple[Any, ...] = ()


def pack_question(question: Question) -> bytes:
    """Encode a request as one datagram."""
    head = _QUESTION.pack(*question[:6])
    if question.kind == LOOKUP:
        head += _OFFSET.pack(question.ahead_bytes)
    elif question.extent is not None:
        head += _EXTENT.pack(*question.extent)
    elif question.span is not None:
        head += _SPAN.pack(*question.span)
    elif question.released:
        return head + b"".join(map(_OFFSET.pack, question.released))
    return head + question.topic.encode()


def unpack_question(message: bytes) -> Question:
    """Inverse of `pack_question`. Raises struct.error for a malformed datagram."""
    head, rest = _QUESTION.unpack_from(message), message[_QUESTION.size :]
    if head[0] == LOOKUP:
        return Question._make((*head, rest[_OFFSET.size :].decode(), None, (), None, *_OFFSET.unpack_from(rest)))
    if head[0] == READ:
        return Question._make((*head, rest[_EXTENT.size :].decode(), Extent._make(_EXTENT.unpack_from(rest)), (), None, 0))
    if head[0] == ABORTED:
        return Question._make((*head, rest[_SPAN.size :].decode(), None, (), Span._make(_SPAN.unpack_from(rest)), 0))
    if head[0] == RELEASE:
        return Question._make((*head, "", None, tuple(slot for (slot,) in _OFFSET.iter_unpack(rest)), None, 0))
    return Question._make((*head, rest.decode(), None, (), None, 0))


def pack_answer(answer: Answer) -> bytes:
    """Encode an answer as one datagram."""
    head = _ANSWER.pack(*answer[:-1])
    return head + b"".join(map(_OFFSET.pack, answer.offsets)) if answer.offsets else head


def unpack_answer(message: bytes) -> Answer:
    """Inverse of `pack_answer`."""
    if len(message) == _ANSWER.size:
        return Answer._make((*_ANSWER.unpack(message), ()))
    offsets = tuple(offset for (offset,) in _OFFSET.iter_unpack(message[_ANSWER.size :]))
    return Answer._make((*_ANSWER.unpack_from(message), offsets))


_ENTRY = Struct("<qqq")
IN_ANSWER_MAX = OFFSETS_MAX // 3


def aborted_answer(token: int, end_offset: Offset, transactions: Sequence[tuple[ProducerId, Offset, Offset]]) -> tuple[Answer, int]:
    """Return the answer, and the descriptor to send with it and close (-1: none). Raises OSError if
    no descriptor is free."""
    count = len(transactions)
    if count <= IN_ANSWER_MAX:
        return Answer(ABORTED, token, 0, end_offset, count, offsets=tuple(number for each in transactions for number in each)), -1
    descriptor = os.memfd_create("aborted-transactions", os.MFD_CLOEXEC)
    try:
        content = memoryview(b"".join(_ENTRY.pack(*each) for each in transactions))
        while content:
            content = content[os.write(descriptor, content) :]
    except BaseException:
        os.close(descriptor)
        raise
    return Answer(ABORTED, token, 0, end_offset, count), descriptor


def read_aborted(answer: Answer, descriptor: int) -> list[tuple[ProducerId, Offset, Offset]]:
    """Return the transactions of an answer; the descriptor stays open."""
    if descriptor < 0:
        numbers = answer.offsets
        return [(numbers[at], numbers[at + 1], numbers[at + 2]) for at in range(0, len(numbers), 3)]
    content = os.pread(descriptor, answer.b * _ENTRY.size, 0)
    return [(producer_id, first_offset, last_offset) for producer_id, first_offset, last_offset in _ENTRY.iter_unpack(content)]
