"""Errors of Spark jobs, `millrace load` and `millrace stream`: which option, topic or offset, what is wrong, what to do.

Exceptions and values only. Tasks raise `OffsetsLost` and `CorruptBatchFound`; everything else is raised on the driver.
Weak spot: Spark prints the text below a traceback of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from appliance.base.errors import MillraceError


class LoadProblem(MillraceError):
    """The load is impossible, or its options are wrong."""


class ConcurrentLoader(LoadProblem):
    """Another loader works in the same place; the result contains nothing of this one."""


class DamagedTable(LoadProblem):
    """The metadata of a destination contradicts its contents."""


class StreamProblem(MillraceError):
    """The job cannot run, or its options are wrong."""


class ConcurrentStream(StreamProblem):
    """Another stream works in the same directory. `holder_lives` is false if only its JVM is left, which will end."""

    def __init__(self, message: str, holder_lives: bool = True) -> None:
        super().__init__(message)
        self.holder_lives = holder_lives


class JobFailed(StreamProblem):
    """The query ended with an error; the text has it."""


DATA_LOSS_HINT = (
    'either retention deleted them before they were read, or the topic was deleted or trimmed; set the option "failOnDataLoss" to "false" to go on without them'
)
CORRUPT_HINT = 'set the option "millrace.skipCorruptBatches" to "true" to go on behind it'


class SourceProblem(MillraceError):
    """The job's options are wrong, or the cluster does not have what they name."""


class DataLoss(NamedTuple):
    """Offsets start <= offset < end that should have been read and no longer exist."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end - 1} of {self.topic}-{self.partition} cannot be read any more: {self.reason}"


class CorruptRange(NamedTuple):
    """A damaged stored batch; reading can continue at `end`."""

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
    """Records may have been lost, and `failOnDataLoss` is true."""

    def __init__(self, loss: DataLoss) -> None:
        super().__init__(f"{loss} ({DATA_LOSS_HINT})")
        self.loss = loss

    def __reduce__(self) -> tuple[type[OffsetsLost], tuple[DataLoss]]:
        return OffsetsLost, (self.loss,)


class CorruptBatchFound(SourceProblem):
    """A batch is damaged, and `millrace.skipCorruptBatches` is false."""

    def __init__(self, corrupt: CorruptRange) -> None:
        super().__init__(f"{corrupt} ({CORRUPT_HINT})")
        self.corrupt = corrupt

    def __reduce__(self) -> tuple[type[CorruptBatchFound], tuple[CorruptRange]]:
        return CorruptBatchFound, (self.corrupt,)
