"""Counters, settings and shared resources of the replica-fetcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.base.settings import Box
from appliance.ipc.frames import Registry
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters

if TYPE_CHECKING:
    from appliance.security.tls_contexts import PeerContext


class ReplicaSettings(NamedTuple):
    """Kafka's settings of a replica's fetches."""

    partition_bytes_max: int
    answer_bytes_max: int
    wait_ms_max: int
    bytes_min: int
    backoff_ms: int
    socket_timeout_ms: int


def replica_settings(box: Box, arena_bytes: int) -> ReplicaSettings:
    """Read the settings.

    A response takes at most a quarter of the arena, so that one leader's does not block all others.
    """
    return ReplicaSettings(
        box.integer("replica.fetch.max.bytes"),
        min(box.integer("replica.fetch.response.max.bytes"), arena_bytes // 4),
        box.integer("replica.fetch.wait.max.ms"),
        box.integer("replica.fetch.min.bytes"),
        box.integer("replica.fetch.backoff.ms"),
        box.integer("replica.socket.timeout.ms"),
    )


class FetcherResources(NamedTuple):
    """What all connections to leaders share. `own_id`: this box's broker id."""

    own_id: int
    settings: ReplicaSettings
    arena: Arena
    registry: Registry
    clock: Clock
    counters: ReplicaCounters
    log: Logger
    tls: PeerContext | None = None


class ReplicaCounters:
    """The counters of all fetchers."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.fetches = counters.counter("replica_fetcher.fetches")
        self.fetched_bytes = counters.counter("replica_fetcher.fetched_bytes")
        self.appends = counters.counter("replica_fetcher.appends")
        self.truncations = counters.counter("replica_fetcher.truncations")
        self.restarts = counters.counter("replica_fetcher.restarts")
        self.corrupt_batches = counters.counter("replica_fetcher.corrupt_batches")
        self.sessions = counters.counter("replica_fetcher.sessions")
        self.lost_fetches = counters.counter("replica_fetcher.lost_fetches")
        self.repairs_left = counters.counter("replica_fetcher.repairs_left")
        self.hastened = counters.counter("replica_fetcher.hastened")
        self.partitions = counters.gauge("replica_fetcher.partitions")
        self.stalled = counters.gauge("replica_fetcher.stalled_partitions")

    def on_error(self, error: int) -> None:
        """Count an error of a leader or of the own log-writer."""
        try:
            name = ErrorCode(error).name
        except ValueError:
            name = "other"
        self._counters.counter(f'replica_fetcher.errors{{error="{name}"}}').add()
