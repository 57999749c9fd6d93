"""Datagrams of one listener: the seam between the room that reads the socket and the protocol that is spoken there.

The room owns the socket and its senders' units; a handler owns what it must remember between datagrams (chunks of GELF). Weak: a handler serves all
senders of its listener, so whatever it keeps has to be bounded for all of them together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from appliance.senders.listener import Listener
    from services.ingest.records.ack_group import AckGroup
    from services.ingest.records.intake import Intake


class DatagramHandler(Protocol):
    """One protocol on one UDP listener. It never raises for bad input."""

    def received(self, group: AckGroup, datagrams: list[bytes]) -> None:
        """What one sender (`group.source`) sent in one burst, in order, none empty. The unit is never sealed: nobody is answered."""

    def tick(self, now_ms: int) -> None:
        """Once a second, `Intake.monotonic_ms`: what began and does not go on is given up."""


MakeDatagramHandler = Callable[["Listener", "Intake"], DatagramHandler]
"""One factory for each protocol."""
