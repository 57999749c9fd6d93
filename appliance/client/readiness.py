"""Which of some connections have something to read. Not with select(2), which knows no descriptor above 1,023: a client may live in a process with more."""

from __future__ import annotations

import select
from collections.abc import Iterable

from appliance.client.connection import ClientConnection


def await_readable(connections: Iterable[ClientConnection], timeout_ms: float) -> list[ClientConnection]:
    """Waits until one of them has, or is broken, at most so long. Level-triggered: what was not read is told again."""
    by_descriptor = {connection.fileno(): connection for connection in connections}
    poll = select.poll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(max(timeout_ms, 0))]
