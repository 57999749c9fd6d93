"""Exit codes, and the exception that carries one. 0: done. 1: tried and failed. 2: asked wrongly, nothing was tried."""

from __future__ import annotations

from appliance.base.errors import ConfigurationProblems, ErrorCode, MillraceError, RequestRefused

EXIT_FAILED = 1
EXIT_USAGE = 2

EXIT_CODES_HELP = "Exit codes: 0 done; 1 tried and failed; 2 wrong usage or no box found, nothing was tried."


class UsageProblem(MillraceError):
    """What was asked cannot be meant; the text says what to write instead."""


class PartlyDone(MillraceError):
    """Some of what was asked is done, the rest was tried and failed; the text says which."""


_ASKED_WRONGLY = frozenset({ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_CONFIG})


def exit_code(error: MillraceError) -> int:
    if isinstance(error, UsageProblem | ConfigurationProblems):
        return EXIT_USAGE
    if isinstance(error, RequestRefused) and error.code in _ASKED_WRONGLY:
        return EXIT_USAGE
    return EXIT_FAILED
