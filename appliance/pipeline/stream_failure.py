"""What of Spark's long tale of a failure the user must hear: the sentence of the error that began it. Pure.

Spark wraps what a Python data source or a job raised into a text with traces of both languages. Weak spot: it is found by what such lines look like.
"""

from __future__ import annotations

import re

_OURS = re.compile(
    r"^(?:\w+\.)*(?:SourceProblem|OffsetsLost|CorruptBatchFound|StreamProblem|ConcurrentStream|RequestRefused|ClientFailed): (.+)$", re.MULTILINE
)
_PYTHON = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Failed|Problem): .+)$", re.MULTILINE)
CHARACTERS_MAX = 600


def failure_text(error: BaseException) -> str:
    """One line, or a few."""
    text = str(error)
    for pattern in (_OURS, _PYTHON):
        if found := pattern.findall(text):
            return str(found[-1]).strip()[:CHARACTERS_MAX]
    return text.strip().split("\n\nJVM stacktrace", 1)[0].split("\n\tat ", 1)[0][:CHARACTERS_MAX]
