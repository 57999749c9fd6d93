"""What the start of a box needs of the tables of senders: their sockets and their problems.

Plain values. The parser is above this package, so the entry points pass it as a function
(`ReadSenders`). Weak: whether certificates match their keys is checked in a short-lived child
(`certificate_check`), to keep OpenSSL out of the supervisor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from appliance.base.settings import SenderSocket
from appliance.runtime.run_options import ResolvedOptions


class SenderTable(NamedTuple):
    """`problems` are FILE: TABLE: what happened; what to do."""

    tables: dict[str, Any] = {}  # noqa: RUF012  never changed
    sockets: tuple[SenderSocket, ...] = ()
    problems: tuple[str, ...] = ()
    certificate_check: Callable[[], list[str]] | None = None


ReadSenders = Callable[[ResolvedOptions], SenderTable]


def no_senders(_options: ResolvedOptions) -> SenderTable:
    """Return what a box without tables of senders has."""
    return SenderTable()
