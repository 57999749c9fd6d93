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

_QUESTION = Struct("<BQIQqq")
_ANSWER = Struct("<BQhqqqqq")
MAX_MESSAGE_BYTES = 1024


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
    TIME, MAX_TIMESTAMP: a = offset (-1: none), b = timestamp. OPEN: a = size of the segment."""

    kind: int
    token: int
    error_code: int
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    e: int = 0


def pack_question(question: Question) -> bytes:
    return _QUESTION.pack(*question[:6]) + question.topic.encode()


def unpack_question(message: bytes) -> Question:
    return Question._make((*_QUESTION.unpack_from(message), message[_QUESTION.size :].decode()))


def pack_answer(answer: Answer) -> bytes:
    return _ANSWER.pack(*answer)


def unpack_answer(message: bytes) -> Answer:
    return Answer._make(_ANSWER.unpack(message))
