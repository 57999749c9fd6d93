"""Let every log forget producers that have been silent for too long (`producer.id.expiration.ms`).

A sweep starts every ten minutes, as in Kafka, and handles a bounded number of partitions a turn. Weak
spot: a partition with tens of thousands of producers is handled in one go (about 10 ms for each ten
thousand).
"""

from __future__ import annotations

from appliance.base.clock import Clock
from services.log_writer.replicas.replica import Replica
from services.log_writer.replicas.replicas_of_disk import Replicas

SWEEP_NS = 600_000_000_000
PARTITIONS_A_TURN = 200


class ProducerUpkeep:
    """Of one disk; `turn` is called every second or so."""

    def __init__(self, partitions: Replicas, clock: Clock) -> None:
        self._partitions = partitions
        self._clock = clock
        self._next_sweep_ns = clock.monotonic_ns() + SWEEP_NS
        self._waiting: list[Replica] = []

    def turn(self, now_ns: int) -> None:
        if not self._waiting and now_ns >= self._next_sweep_ns:
            self._next_sweep_ns = now_ns + SWEEP_NS
            self._waiting = list(self._partitions.by_row.values())
        if self._waiting:
            now_ms = self._clock.wall_ms()
            for hosted in self._waiting[:PARTITIONS_A_TURN]:
                hosted.log.expire_producers(now_ms)
            del self._waiting[:PARTITIONS_A_TURN]
