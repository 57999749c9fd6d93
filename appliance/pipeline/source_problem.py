"""What a user of `format("millrace")` must hear, in words: which option, topic or offset, what is wrong with it, and what to do.

Values and exceptions only. Raised on Spark's driver wherever the fault can be known there; a task raises the last two, for what it alone can see.
Weak spot: Spark shows the text behind a traceback of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from appliance.base.errors import MillraceError

DATA_LOSS_HINT = (
    'either retention deleted them before they were read, or the topic was deleted or trimmed; set the option "failOnDataLoss" to "false" to go on without them'
)
CORRUPT_HINT = 'set the option "millrace.skipCorruptBatches" to "true" to go on behind it'


class SourceProblem(MillraceError):
    """The job cannot be done as it was asked for."""


class DataLoss(NamedTuple):
    """Offsets start <= offset < end that should have been read and are not there any more."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end - 1} of {self.topic}-{self.partition} cannot be read any more: {self.reason}"


class CorruptRange(NamedTuple):
    """A stored batch that does not hold together; reading can go on at `end`."""

    topic: str
    partition: int
    offset: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"the batch at offset {self.offset} of {self.topic}-{self.partition} is corrupt: {self.reason}"


OnDataLoss = Callable[[DataLoss], None]
OnCorrupt = Callable[[CorruptRange], None]


class OffsetsLost(SourceProblem):
    """Some data may have been lost, and the reader was not told to bear it."""

    def __init__(self, loss: DataLoss) -> None:
        super().__init__(f"{loss} ({DATA_LOSS_HINT})")
        self.loss = loss

    def __reduce__(self) -> tuple[type[OffsetsLost], tuple[DataLoss]]:
        return OffsetsLost, (self.loss,)


class CorruptBatchFound(SourceProblem):
    """A damaged batch, and the reader was not told to leave it out."""

    def __init__(self, corrupt: CorruptRange) -> None:
        super().__init__(f"{corrupt} ({CORRUPT_HINT})")
        self.corrupt = corrupt

    def __reduce__(self) -> tuple[type[CorruptBatchFound], tuple[CorruptRange]]:
        return CorruptBatchFound, (self.corrupt,)
