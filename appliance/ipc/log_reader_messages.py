"""What acceptors ask a log-reader over a SEQPACKET socket, one datagram a question, one an answer (with a descriptor for OPEN).

A log-reader holds no client socket and no lock, so a hung disk can take it and nothing else; every question has a deadline at the asker.
Weak spot: answers name segments by their base offset as of the asker's segment-list generation; retention may have deleted one since,
which the descriptor survives and a new question tells.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

OPEN = 1
"""Open the segment whose base offset is `value_a`; the answer carries its descriptor and, in `a`, its size in bytes."""
LOOKUP = 2
"""Find the batch that holds offset `value_a`, below offset `value_b`."""
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

_QUESTION = Struct("<BQIQqq")
_ANSWER = Struct("<BQhqqqqq")
_OFFSET = Struct("<q")
MAX_MESSAGE_BYTES = 1024
OFFSETS_MAX = 100
"""Offsets in one answer to SEGMENTS, so that it fits a message."""
assert _ANSWER.size + OFFSETS_MAX * _OFFSET.size <= MAX_MESSAGE_BYTES


class Question(NamedTuple):
    """One question; `topic` and `partition` name the directory, `segment_list_generation` tells whether a cached list is still good."""

    kind: int
    token: int
    partition: int
    segment_list_generation: int
    value_a: int
    value_b: int
    topic: str


class Answer(NamedTuple):
    """LOOKUP: a = segment base offset, b = position, c = size of that batch, d = size of the segment, e = base offset of that batch.
    TIME, MAX_TIMESTAMP: a = offset (-1: none), b = timestamp, c = leader epoch of the record. OPEN: a = size of the segment.
    SEGMENTS: offsets. EPOCH_END: a = largest known epoch that is not above it, b = where that ends (-1, -1: cannot be said). EPOCH_AT: a = the epoch or -1."""

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
    return _QUESTION.pack(*question[:6]) + question.topic.encode()


def unpack_question(message: bytes) -> Question:
    return Question._make((*_QUESTION.unpack_from(message), message[_QUESTION.size :].decode()))


def pack_answer(answer: Answer) -> bytes:
    head = _ANSWER.pack(*answer[:-1])
    return head + b"".join(map(_OFFSET.pack, answer.offsets)) if answer.offsets else head


def unpack_answer(message: bytes) -> Answer:
    if len(message) == _ANSWER.size:
        return Answer._make((*_ANSWER.unpack(message), ()))
    offsets = tuple(offset for (offset,) in _OFFSET.iter_unpack(message[_ANSWER.size :]))
    return Answer._make((*_ANSWER.unpack_from(message), offsets))
