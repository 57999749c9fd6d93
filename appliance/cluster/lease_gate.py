"""Refuse what a deposed leader must not do: without a valid lease, another leader may exist without
this box knowing it.

Only for partitions with replicas on other boxes; a sole replica continues without ZooKeeper.
Refused are produces without acks=all, which another leader would not have, and consumers' fetches,
which may return old data. acks=all continues: it is answered by the high watermark, which needs the
whole in-sync set. Followers are served. Owned by one acceptor. Weak: a batch that was accepted just
before the lease ended is acknowledged just after it.
"""

from __future__ import annotations

from appliance.base.clock import Clock
from appliance.cluster.metadata_cache import LocalReplica
from appliance.shm.counters import Counters
from appliance.shm.lease import LeaseReader


class LeaseGate:
    """The gate of one acceptor; without a `reader` it is always open."""

    def __init__(self, reader: LeaseReader | None, clock: Clock, counters: Counters) -> None:
        self._reader = reader
        self._clock = clock
        self._refused = counters.counter("acceptor.refused_without_lease")

    def is_shut(self, placement: LocalReplica) -> bool:
        """Whether consumers' fetches and produces without acks=all of this partition are refused
        now.
        """
        if len(placement.replicas) < 2 or self._reader is None or self._reader.holds(self._clock.boottime_ns()):
            return False
        self._refused.add()
        return True

    def look_for(self) -> None:
        """Once a second: map the lease if the controller has created it since."""
        if self._reader is not None:
            self._reader.look_for()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
