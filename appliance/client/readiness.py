"""Which of some connections have something to read. Not with select(2), which knows no descriptor above 1,023: a client may live in a process with more."""

from __future__ import annotations

import select
from collections.abc import Iterable

from appliance.client.connection import ClientConnection


def await_readable(connections: Iterable[ClientConnection], timeout_ms: float) -> list[ClientConnection]:
    """Return the connections with something to read, or broken; wait for the first one up to `timeout_ms`.

    Level-triggered: what was not read is reported again. poll(2), because select(2) takes no descriptor above 1,023."""
    by_descriptor = {connection.fileno(): connection for connection in connections}
    poll = select.poll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(max(timeout_ms, 0))]
