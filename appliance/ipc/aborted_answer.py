"""The answer to ABORTED: aborted transactions as (producer id, first offset, offset of the marker).

A few are in the answer itself. More are in a file in memory, whose descriptor comes with the
answer, so that neither side waits for a disk. The receiver owns the descriptor. Weak: a range with
thousands of them is copied three times.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from struct import Struct

from appliance.ipc.log_reader_messages import ABORTED, OFFSETS_MAX, Answer

_ENTRY = Struct("<qqq")
IN_ANSWER_MAX = OFFSETS_MAX // 3


def aborted_answer(token: int, end_offset: int, transactions: Sequence[tuple[int, int, int]]) -> tuple[Answer, int]:
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


def read_aborted(answer: Answer, descriptor: int) -> list[tuple[int, int, int]]:
    """Return the transactions of an answer; the descriptor stays open."""
    if descriptor < 0:
        numbers = answer.offsets
        return [(numbers[at], numbers[at + 1], numbers[at + 2]) for at in range(0, len(numbers), 3)]
    content = os.pread(descriptor, answer.b * _ENTRY.size, 0)
    return [(producer_id, first_offset, last_offset) for producer_id, first_offset, last_offset in _ENTRY.iter_unpack(content)]
