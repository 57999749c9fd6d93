"""`check`: an assertion about our own state that `python -O` does not remove. Outside input is
rejected elsewhere."""

from __future__ import annotations

from appliance.base.errors import MillraceError


class InvariantViolation(MillraceError):
    """A defect of Millrace. The process ends and is restarted; no code catches this exception to
    continue."""


def check(condition: object, message: str) -> None:
    """Raise `InvariantViolation(message)` unless `condition` holds."""
    if not condition:
        raise InvariantViolation(message)
