"""`IngestRecord`: a parsed record before it is routed, of all protocols except syslog.

Values only. Routes read `host` … `fields`; `value` is stored. Syslog messages go to the router as
bytes (`Intake.take_syslog`) and become a record only if routes read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class IngestRecord(NamedTuple):
    """`value` is a JSON document, or what the sender wrote if the listener has `raw=yes`."""

    value: bytes
    time_ms: int | None = None
    """The sender's time; the record's timestamp if it is between ten years back and one day ahead.
    """
    host: str | None = None
    app: str | None = None
    tag: str | None = None
    severity: int | None = None
    """0-7"""
    facility: int | None = None
    """0-23"""
    labels: Mapping[str, Any] | None = None
    fields: Mapping[str, Any] | None = None
    """Read by `field.X` in routes and keys."""
    is_cut: bool = False
    """Its end is missing: header `truncated`."""
