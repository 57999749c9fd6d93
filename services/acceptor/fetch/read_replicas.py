"""Which replica a consumer had best read from: one in its own rack, if it says where it is (KIP-392). Pure.

The names are those of Kafka's selectors. Which follower is most caught up is not known here: of several in the consumer's rack the first assigned one
is named, all of them in sync. Weak spot: the in-sync set is the image's, up to 200 ms old; who was sent to a replica that fell behind comes back.
"""

from __future__ import annotations

from typing import Final

from appliance.cluster.metadata_image import MetadataImage

RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
THE_LEADER: Final = -1


def nearest_replica(image: MetadataImage, topic: str, partition: int, own_id: int, rack: str) -> int:
    """A replica other than `own_id`, which leads, or `THE_LEADER`."""
    known = image.topics.get(topic)
    if not rack or known is None or partition >= len(known.partitions):
        return THE_LEADER
    brokers = image.brokers
    own = brokers.get(own_id)
    if own is not None and own.rack == rack:
        return THE_LEADER
    found = known.partitions[partition]
    for replica in found.replicas:
        broker = brokers.get(replica)
        if broker is not None and broker.rack == rack and replica in found.isr and replica != own_id:
            return replica
    return THE_LEADER
