"""What a leader no longer does when it may have been deposed without knowing: its box has not been heard by ZooKeeper for a session's time.

Only partitions that are assigned to other boxes too: a sole replica goes on without ZooKeeper. Refused are produces without acks=all, which another leader
would not have, and reads of consumers, which may be old. acks=all goes on: it is answered by the high watermark, which needs the whole in-sync set. Followers
are served. Owned by one acceptor. Weak spot: a batch that was taken a moment before the lease ended is acknowledged a moment after.
"""

from __future__ import annotations

from appliance.base.clock import Clock
from appliance.cluster.metadata_cache import LocalReplica
from appliance.shm.counters import Counters
from appliance.shm.lease import LeaseReader


class LeaseGate:
    """Of one acceptor; without a `reader` it is always open."""

    def __init__(self, reader: LeaseReader | None, clock: Clock, counters: Counters) -> None:
        self._reader = reader
        self._clock = clock
        self._refused = counters.counter("acceptor.refused_without_lease")

    def is_shut(self, placement: LocalReplica) -> bool:
        """Whether a leader's consumers and unreplicated writes of this partition are refused now."""
        if len(placement.replicas) < 2 or self._reader is None or self._reader.holds(self._clock.boottime_ns()):
            return False
        self._refused.add()
        return True

    def look_for(self) -> None:
        """Once a second: the controller may have made its word since."""
        if self._reader is not None:
            self._reader.look_for()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
