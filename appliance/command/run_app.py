"""Runs a command tree: what it raises becomes lines on stderr and an exit code."""

from __future__ import annotations

import sys

import typer

from appliance.base.errors import MillraceError, RequestRefused
from appliance.base.invariants import InvariantViolation
from appliance.command.failures import exit_code
from appliance.command.output import say


def run_app(app: typer.Typer) -> None:
    """Run a command tree; what it raises becomes lines on stderr and an exit code."""
    try:
        app()
    except InvariantViolation:
        raise
    except MillraceError as error:
        for line in (error.message if isinstance(error, RequestRefused) else str(error)).splitlines():
            say(f"millrace: {line}")
        sys.exit(exit_code(error))
