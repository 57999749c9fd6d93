"""A record before it is routed: what the parsers of all protocols but syslog's make of one message of a sender.

Values only. Routes look at `host` … `fields`; what is stored is `value`. Syslog messages go to the intake as their bytes (`Intake.take_syslog`) and never
become one of these, unless routes ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class IngestRecord(NamedTuple):
    """`value` is a JSON document, or what the sender wrote where the listener says `raw=yes`."""

    value: bytes
    time_ms: int | None = None
    """The sender's; the record's timestamp if it lies between ten years back and one day ahead."""
    host: str | None = None
    app: str | None = None
    tag: str | None = None
    severity: int | None = None
    """0-7"""
    facility: int | None = None
    """0-23"""
    labels: Mapping[str, Any] | None = None
    fields: Mapping[str, Any] | None = None
    """What `field.X` in routes and keys looks into."""
    is_cut: bool = False
    """Its end is missing: header `truncated`."""
