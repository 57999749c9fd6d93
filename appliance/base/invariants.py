"""`check`: an assertion that `python -O` cannot remove, for our own state. Outside input is refused elsewhere, not checked here."""

from __future__ import annotations

from appliance.base.errors import MillraceError


class InvariantViolation(MillraceError):
    """We are wrong. The process dies loudly and is restarted (DESIGN §2); nobody catches this to go on."""


def check(condition: object, message: str) -> None:
    """Raise `InvariantViolation(message)` unless `condition` holds."""
    if not condition:
        raise InvariantViolation(message)
