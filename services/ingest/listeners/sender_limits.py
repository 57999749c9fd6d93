"""How many connections senders may have: in total, and from each address. Values only; owned by the room of the connections.

Weak: an address is an address, so all senders behind one translated address share its limit, unless a believed proxy says who they are.
"""

from __future__ import annotations

import resource
from collections import Counter as Tally

from appliance.base.logging import Logger

DESCRIPTORS_RESERVED = 256
"""For rings, journal, spool and other boxes: senders never take these."""


def connections_possible(wanted: int, log: Logger) -> int:
    """As the setting says, or fewer where the process may not open so many descriptors."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return wanted
    possible = max(allowed - DESCRIPTORS_RESERVED, allowed // 2)
    if possible < wanted:
        log.notice(f"takes {possible} senders by streams, not the {wanted} of max.connections: it may open {allowed} descriptors (ulimit -Hn)")
    return min(wanted, possible)


class SenderLimits:
    """Counts who is there."""

    def __init__(self, connections_max: int, per_address_max: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._per_address: Tally[str] = Tally()
        self._count = 0

    def enter(self, address: str) -> bool:
        """Whether one more may come; it is counted then."""
        if self._count >= self._connections_max or self._per_address[address] >= self._per_address_max:
            return False
        self._count += 1
        self._per_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        self._count -= 1
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]

    def move(self, old: str, new: str) -> bool:
        """One that is there counts for another address from now on. False, and nothing changes, if that has its fill."""
        if old == new:
            return True
        if self._per_address[new] >= self._per_address_max:
            return False
        self.leave(old)
        self._count += 1
        self._per_address[new] += 1
        return True
