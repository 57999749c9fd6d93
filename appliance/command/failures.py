"""Exit codes, the exceptions that carry them, and the run of a command tree: errors become lines on stderr and a code.

0: done. 1: tried and failed. 2: wrong usage, nothing was tried.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from appliance.base.errors import ConfigurationProblems, ErrorCode, MillraceError, RequestRefused
from appliance.base.invariants import InvariantViolation
from appliance.command.output import say


def run_app(app: Callable[[], object]) -> None:
    """Run a command tree; what it raises becomes lines on stderr and an exit code."""
    try:
        app()
    except InvariantViolation:
        raise
    except GaveUp as reason:
        say(f"millrace: {reason}")
        sys.exit(EXIT_FAILED)
    except MillraceError as error:
        for line in (error.message if isinstance(error, RequestRefused) else str(error)).splitlines():
            say(f"millrace: {line}")
        sys.exit(exit_code(error))


EXIT_FAILED = 1
EXIT_USAGE = 2

EXIT_CODES_HELP = "Exit codes: 0 done; 1 tried and failed; 2 wrong usage or no box found, nothing was tried."


class UsageProblem(MillraceError):
    """What was asked cannot be meant; the text says what to write instead."""


class GaveUp(BaseException):
    """The time of --timeout is over: no handler of failures may take it for one, and go on."""


class PartlyDone(MillraceError):
    """Some of what was asked is done, the rest was tried and failed; the text says which."""


_ASKED_WRONGLY = frozenset({ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_CONFIG})


def exit_code(error: MillraceError) -> int:
    if isinstance(error, UsageProblem | ConfigurationProblems):
        return EXIT_USAGE
    if isinstance(error, RequestRefused) and error.code in _ASKED_WRONGLY:
        return EXIT_USAGE
    return EXIT_FAILED
