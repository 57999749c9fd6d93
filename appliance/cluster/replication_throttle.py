"""How fast throttled replicas are copied (KIP-73): a rate over all of them together, and who they are. Pure; times in monotonic ns.

Every piece that was copied closes the throttle for the time that the rate allows for it, so the mean is kept and a pause is never longer than one piece takes.
Replicas that are in sync are not throttled: who serves acks=all must not be slowed by who catches up. The follower's side bounds what a box receives, the
leader's what it sends. Weak spot: a piece may be as large as an answer, so a small rate comes in bursts.
"""

from __future__ import annotations

from typing import Final

from appliance.base.model import TopicId
from appliance.cluster.dynamic_broker_configs import FOLLOWER_RATE, LEADER_RATE, replication_rate
from appliance.cluster.metadata_image import MetadataImage, TopicImage

FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
PIECE_MS: Final = 500
"""A piece should be no more than the rate allows for so long."""
PIECE_BYTES_MIN: Final = 64 << 10


class ReplicationThrottle:
    """`bytes_per_second` None: no limit. `replicas`: what is throttled here, by topic id and partition."""

    __slots__ = ("_is_follower", "_opens_ns", "bytes_per_second", "replicas")

    def __init__(self, is_follower: bool) -> None:
        self._is_follower = is_follower
        self.bytes_per_second: int | None = None
        self.replicas: frozenset[tuple[TopicId, int]] = frozenset()
        self._opens_ns = 0

    def set_image(self, image: MetadataImage, broker_id: int) -> None:
        """Take rate and replicas as they are set now. A follower's that are in sync are left out; a leader must look who asks."""
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
        """When it is open again; in the past: it is."""
        return self._opens_ns

    def record(self, size_bytes: int, now_ns: int) -> None:
        """So much of throttled replicas was copied."""
        if self.bytes_per_second is not None and size_bytes:
            self._opens_ns = max(now_ns, self._opens_ns) + size_bytes * 1_000_000_000 // max(1, self.bytes_per_second)

    def piece_bytes(self, most: int) -> int:
        """How much of a throttled replica to ask for at once."""
        rate = self.bytes_per_second
        return most if rate is None else min(most, max(PIECE_BYTES_MIN, rate * PIECE_MS // 1000))


def _listed(topic: TopicImage, name: str, broker_id: int) -> set[int]:
    """The partitions of a topic whose replica on this broker is throttled."""
    text = topic.config.get(name, "")
    if text.strip() == "*":
        return set(range(len(topic.partitions)))
    pairs = (pair.strip().split(":") for pair in text.split(","))
    listed = {int(pair[0]) for pair in pairs if len(pair) == 2 and pair[0].isdigit() and pair[1] == str(broker_id)}
    return {partition for partition in listed if partition < len(topic.partitions)}
