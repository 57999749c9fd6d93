"""Work that may take longer than a turn: generators that yield after each step.

A step is about a millisecond: `SLICE_RECORDS` records, or a piece of decompressed content. Pure.
`listeners.sliced_work` runs them; a reader that cannot pause runs them to their end. A generator
that is closed before its end (GeneratorExit) abandons its ack group (`Intake.abandon`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

SLICE_RECORDS: Final = 64
"""Records that are parsed and stored in one step; they still fit in the processor's caches."""
PUT_RECORDS: Final = 4 * SLICE_RECORDS
"""Records that are stored in one step, after they were parsed."""
PARTS_A_STEP: Final = 4096
"""Parts of a message (lines, protobuf fields) that are found in one step."""
LINE_WINDOW_BYTES: Final = 262_144

Steps = Generator[None, None, None]
Result = TypeVar("Result")


def run_to_end(steps: Generator[None, None, Result]) -> Result:
    """Run all steps; return the result of the generator."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def split_lines(body: bytes) -> Generator[None, None, list[bytes]]:
    """Return the lines of a text in steps, with the carriage returns before their ends."""
    lines: list[bytes] = []
    start, size = 0, len(body)
    while size - start > LINE_WINDOW_BYTES:
        end = body.find(b"\n", start + LINE_WINDOW_BYTES)
        if end < 0:
            break
        lines += body[start:end].split(b"\n")
        start = end + 1
        yield
    lines += body[start:].split(b"\n")
    return lines
