"""Throttle the copying of replicas (KIP-73): one rate for all throttled replicas together. Pure;
times in monotonic ns.

Each copied piece closes the throttle for the time that the rate allows for it. So the mean is kept,
and no pause is longer than one piece takes. Replicas in sync are not throttled: that would slow
down acks=all. The follower's side limits what a box receives, the leader's what it sends. Weak: a
piece may be as large as a response, so a small rate comes in bursts.
"""

from __future__ import annotations

from typing import Final

from appliance.base.model import TopicId
from appliance.cluster.broker_configs import FOLLOWER_RATE, LEADER_RATE, replication_rate
from appliance.cluster.metadata_image import MetadataImage, TopicImage

FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
PIECE_MS: Final = 500
"""A piece should be no larger than the rate allows in this time."""
PIECE_BYTES_MIN: Final = 64 << 10


class ReplicationThrottle:
    """`bytes_per_second` None: no limit. `replicas`: the throttled ones here, by topic id and
    partition.
    """

    __slots__ = ("_is_follower", "_opens_ns", "bytes_per_second", "replicas")

    def __init__(self, is_follower: bool) -> None:
        self._is_follower = is_follower
        self.bytes_per_second: int | None = None
        self.replicas: frozenset[tuple[TopicId, int]] = frozenset()
        self._opens_ns = 0

    def set_image(self, image: MetadataImage, broker_id: int) -> None:
        """Apply the rate and the replicas of an image.

        A follower's replicas that are in sync are left out; for a leader it depends on the fetching
        follower.
        """
        rate = replication_rate(image.box_config, FOLLOWER_RATE if self._is_follower else LEADER_RATE)
        if rate != self.bytes_per_second:
            self._opens_ns = 0
        self.bytes_per_second = rate
        self.replicas = frozenset(
            (topic.topic_id, partition)
            for topic in image.topics.values()
            if rate is not None
            for partition in _listed(topic, FOLLOWER_REPLICAS if self._is_follower else LEADER_REPLICAS, broker_id)
            if not (self._is_follower and broker_id in topic.partitions[partition].isr)
        )

    def is_open(self, now_ns: int) -> bool:
        return now_ns >= self._opens_ns

    @property
    def opens_ns(self) -> int:
        """When the throttle opens; a time in the past means that it is open."""
        return self._opens_ns

    def record(self, size_bytes: int, now_ns: int) -> None:
        """Count so many copied bytes of throttled replicas."""
        if self.bytes_per_second is not None and size_bytes:
            self._opens_ns = max(now_ns, self._opens_ns) + size_bytes * 1_000_000_000 // max(1, self.bytes_per_second)

    def piece_bytes(self, most: int) -> int:
        """Return how many bytes of a throttled replica to request at once."""
        rate = self.bytes_per_second
        return most if rate is None else min(most, max(PIECE_BYTES_MIN, rate * PIECE_MS // 1000))


def _listed(topic: TopicImage, name: str, broker_id: int) -> set[int]:
    """Return the partitions of a topic whose replica on this broker is throttled."""
    text = topic.config.get(name, "")
    if text.strip() == "*":
        return set(range(len(topic.partitions)))
    pairs = (pair.strip().split(":") for pair in text.split(","))
    listed = {int(pair[0]) for pair in pairs if len(pair) == 2 and pair[0].isdigit() and pair[1] == str(broker_id)}
    return {partition for partition in listed if partition < len(topic.partitions)}
