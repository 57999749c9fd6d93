"""What the user of `millrace stream` must hear: the text says what, where, and what to do. Values only."""

from __future__ import annotations

from appliance.base.errors import MillraceError


class StreamProblem(MillraceError):
    """The job cannot run, or not so."""


class ConcurrentStream(StreamProblem):
    """Another stream is at work in the same directory; `holder_lives` unless only its JVM is left, which will end."""

    def __init__(self, message: str, holder_lives: bool = True) -> None:
        super().__init__(message)
        self.holder_lives = holder_lives


class JobFailed(StreamProblem):
    """The query ended with an error; the text has it."""
