"""What a start needs to know of the ingest table: its text, its sockets, and what is wrong with it.

Values only. Who parses it stands above this package (`ingest`), so it is handed to who starts a box as a function, `ReadSenders`. Weak: whether
certificates and keys fit each other is asked in a throw-away child (`certificate_check`), because OpenSSL must not stay in who lives as long as the box.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from appliance.base.settings import SenderSocket
from appliance.runtime.run_options import ResolvedOptions


class SenderTable(NamedTuple):
    """`problems` are FILE:LINE: what, what to do."""

    text: str = ""
    sockets: tuple[SenderSocket, ...] = ()
    problems: tuple[str, ...] = ()
    certificate_check: Callable[[], list[str]] | None = None


ReadSenders = Callable[[ResolvedOptions], SenderTable]


def no_senders(_options: ResolvedOptions) -> SenderTable:
    """For a box whose settings name no table."""
    return SenderTable()
