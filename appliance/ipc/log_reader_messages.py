"""What acceptors ask a log-reader over a SEQPACKET socket, one datagram a question, one an answer (with a descriptor for OPEN).

A log-reader holds no client socket and no lock, so a hung disk can take it and nothing else; every question has a deadline at the asker.
Weak spot: answers name segments by their base offset as of the asker's segment-list generation; retention may have deleted one since,
which the descriptor survives and a new question tells. Compaction may have replaced one, which the number of its file tells.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

OPEN = 1
"""Open the segment whose base offset is `value_a`; the answer carries its descriptor and, in `a`, its size in bytes."""
LOOKUP = 2
"""Find the batch that holds offset `value_a`, below offset `value_b`; and, if `ahead_bytes` is given, where the next reads of so many bytes will begin."""
TIME = 3
"""Find the first record whose timestamp is at least `value_a` and whose offset is below `value_b`."""
MAX_TIMESTAMP = 4
"""Find the record with the largest timestamp whose offset is below `value_b`."""
SEGMENTS = 5
"""List segments by their base offsets, descending, from the newest one last modified at or before wall time `value_a` (ms) on."""
EPOCH_END = 6
"""Where does leader epoch `value_a` end? `value_b` is the log end, where the latest one does."""
EPOCH_AT = 7
"""Which leader epoch does the record at offset `value_a` have?"""
READ = 8
"""Bring bytes of the segment whose base offset is `value_a`, from position `value_b` on, into the log-reader's arena; `extent` says which and how many."""
RELEASE = 9
"""The arena's slots in `released` were sent: one entry for each part of an answer to READ. `value_a` is the life of the log-reader. No answer."""
ABORTED = 10
"""Which aborted transactions have records among the batches from offset `value_a` to the end of `span`, all below offset `value_b`?"""
CHECK = 11
"""Somebody was sent, or read, a damaged batch at offset `value_a`: let the scrubber look at that place now. No answer."""

_QUESTION = Struct("<BQIQqq")
_ANSWER = Struct("<BQhqqqqq")
_OFFSET = Struct("<q")
_EXTENT = Struct("<qqQB")
_SPAN = Struct("<qq")
MAX_MESSAGE_BYTES = 1024
OFFSETS_MAX = 100
"""Offsets in one answer to SEGMENTS, so that it fits a message."""
assert _ANSWER.size + OFFSETS_MAX * _OFFSET.size <= MAX_MESSAGE_BYTES


WHOLE_BATCHES = 1
"""End behind a batch, and say which offset follows."""
FIRST_WHATEVER = 2
"""The first batch must go whole, even if it is longer than `size_bytes`."""
IS_ACTIVE = 4
"""The segment still grows."""


class Extent(NamedTuple):
    """Which bytes READ wants: at most `size_bytes`, none from position `limit` on; `inode` is that of the file that the asker has open."""

    size_bytes: int
    limit: int
    inode: int
    flags: int


class Span(NamedTuple):
    """Where the bytes end that ABORTED asks about."""

    segment_base_offset: int
    end_position: int


class ReadAnswer(NamedTuple):
    """What the answer to READ says, in `offsets`. `next_offset` follows the last batch (-1: not asked for, or not known); `first_batch_bytes` > 0 and
    no parts: the first batch does not fit. Parts are (slot, position in the arena, bytes), in order."""

    incarnation: int
    next_offset: int
    first_batch_bytes: int
    parts: tuple[tuple[int, int, int], ...]

    @property
    def size_bytes(self) -> int:
        return sum(part[2] for part in self.parts)

    def packed(self) -> tuple[int, ...]:
        return (*self[:3], *(number for part in self.parts for number in part))

    @classmethod
    def unpacked(cls, numbers: tuple[int, ...]) -> ReadAnswer:
        return cls._make((*numbers[:3], tuple((numbers[at], numbers[at + 1], numbers[at + 2]) for at in range(3, len(numbers), 3))))


class Question(NamedTuple):
    """One question; `topic` and `partition` name the directory, `segment_list_generation` tells whether a cached list is still good."""

    kind: int
    token: int
    partition: int
    segment_list_generation: int
    value_a: int
    value_b: int
    topic: str
    extent: Extent | None = None
    """READ alone"""
    released: tuple[int, ...] = ()
    """RELEASE alone"""
    span: Span | None = None
    """ABORTED alone"""
    ahead_bytes: int = 0
    """LOOKUP alone"""


class Answer(NamedTuple):
    """LOOKUP: a = segment base offset, b = position, c = size of that batch, d = the file that it is in (inode number: compaction puts another one under
    the same name), e = base offset of that batch; offsets = three numbers for each read ahead: the offset that it will ask for, position and size of its
    first batch.
    TIME, MAX_TIMESTAMP: a = offset (-1: none), b = timestamp, c = leader epoch of the record. OPEN: a = size of the segment, b = which file.
    SEGMENTS: offsets. EPOCH_END: a = largest known epoch that is not above it, b = where that ends (-1, -1: cannot be said). EPOCH_AT: a = the epoch or -1.
    ABORTED: a = the offset up to which it holds, b = how many there are (`aborted_answer.py`)."""

    kind: int
    token: int
    error_code: int
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    e: int = 0
    offsets: tuple[int, ...] = ()


def pack_question(question: Question) -> bytes:
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
    head = _ANSWER.pack(*answer[:-1])
    return head + b"".join(map(_OFFSET.pack, answer.offsets)) if answer.offsets else head


def unpack_answer(message: bytes) -> Answer:
    if len(message) == _ANSWER.size:
        return Answer._make((*_ANSWER.unpack(message), ()))
    offsets = tuple(offset for (offset,) in _OFFSET.iter_unpack(message[_ANSWER.size :]))
    return Answer._make((*_ANSWER.unpack_from(message), offsets))
