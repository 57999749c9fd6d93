"""What a leader does when the lease of its box has ended: another leader may exist without this box
knowing it.

Only for partitions with replicas on other boxes; a sole replica needs no lease. Nothing is refused
that is safe without one:

* acks=all is answered by the high watermark, which needs the whole in-sync set. acks=1 is answered
  the same way while there is no lease, because a replaced leader would truncate what only it has.
* Records below the high watermark are on every member of the in-sync set and are never taken back,
  so consumers read them. A replaced leader serves an old end of the log, which is why this ends
  after `read.without.zookeeper.max.ms`.

Followers are served. Owned by one process. Weak: a batch that was accepted just before the lease
ended is acknowledged just after it.
"""

from __future__ import annotations

from appliance.base.clock import Clock
from appliance.cluster.metadata_cache import LocalReplica
from appliance.shm.counters import Counters
from appliance.shm.lease import LeaseReader


class LeaseGate:
    """The gate of one process.

    `reads_ms`: how long consumers are served after the end of the lease.
    """

    def __init__(self, reader: LeaseReader, clock: Clock, counters: Counters, reads_ms: int = 0) -> None:
        self._reader = reader
        self._clock = clock
        self._reads_ns = reads_ms * 1_000_000
        self._refused = counters.counter("acceptor.refused_without_lease")

    def has_ended(self) -> bool:
        """Whether there is no valid lease now."""
        return not self._reader.holds(self._clock.boottime_ns())

    def may_be_replaced(self, placement: LocalReplica) -> bool:
        """Whether another box may lead the partition without this one knowing it."""
        return len(placement.replicas) > 1 and self.has_ended()

    def refuses_consumers(self, placement: LocalReplica) -> bool:
        """Whether the lease ended too long ago to serve consumers of this partition."""
        if len(placement.replicas) < 2 or self._reader.holds(self._clock.boottime_ns() - self._reads_ns):
            return False
        self._refused.add()
        return True

    def look_for(self) -> None:
        """Once a second: map the lease if the controller has created it since."""
        self._reader.look_for()

    def close(self) -> None:
        self._reader.close()
