"""The interface between a datagram socket and the protocol that is spoken there.

The socket's owner keeps the ack groups of its senders; a handler keeps what its protocol must
remember between datagrams (chunks of GELF). Weak: a handler serves all senders of its listener, so
what it keeps must be bounded for all of them together.
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
        """Take what one sender (`group.source`) sent in one burst, in order, none empty. The group
        is never closed, because datagrams have no answers."""

    def tick(self, now_ms: int) -> None:
        """Called once a second with `Intake.monotonic_ms`: drop what does not continue."""


MakeDatagramHandler = Callable[["Listener", "Intake"], DatagramHandler]
"""One factory for each protocol."""
