"""The bounds of connections: in total, and for each address.

Values only; owned by `SenderConnections`. Weak: all senders behind one translated address share its
limit, unless a trusted proxy reports their addresses.
"""

from __future__ import annotations

import resource
from collections import Counter as Tally

from appliance.base.logging import Logger

DESCRIPTORS_RESERVED = 256
"""For rings, journal, spool and other boxes: connections never take these."""


def connections_possible(wanted: int, log: Logger) -> int:
    """Return `wanted`, or less if the process may not open so many descriptors."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return wanted
    possible = max(allowed - DESCRIPTORS_RESERVED, allowed // 2)
    if possible < wanted:
        log.notice(f"accepts {possible} connections instead of {wanted} (max.connections): the process may open {allowed} descriptors (ulimit -Hn)")
    return min(wanted, possible)


class SenderLimits:
    """Counts the open connections."""

    def __init__(self, connections_max: int, per_address_max: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._per_address: Tally[str] = Tally()
        self._count = 0

    def acquire(self, address: str) -> bool:
        """Count one more connection if the limits allow it."""
        if self._count >= self._connections_max or self._per_address[address] >= self._per_address_max:
            return False
        self._count += 1
        self._per_address[address] += 1
        return True

    def release(self, address: str) -> None:
        self._count -= 1
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]

    def move(self, old: str, new: str) -> bool:
        """Count a connection for another address. False, and no change, if that address has reached
        its limit."""
        if old == new:
            return True
        if self._per_address[new] >= self._per_address_max:
            return False
        self.release(old)
        self._count += 1
        self._per_address[new] += 1
        return True
