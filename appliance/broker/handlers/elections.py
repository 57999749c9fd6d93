"""ElectLeaders where every partition has one replica: nobody else could lead it, so no election is needed, or none is possible.

Pure. Kafka's order of checks. Weak spot: with several replicas an election is an order to the controller.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode
from appliance.metadata.metadata_image import MetadataImage
from appliance.protocol.elect_leaders import PREFERRED, UNCLEAN, ElectedPartition, ElectedTopic, ElectLeadersRequest, ElectLeadersResponse, TopicToElectFor


def elect_leaders(image: MetadataImage, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Asked about all partitions (None), Kafka leaves out those that need no election."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        return ElectLeadersResponse(0, ErrorCode.INVALID_REQUEST)
    if request.topic_partitions is not None:
        return ElectLeadersResponse(results=tuple(_elect(image, asked, request.election_type) for asked in request.topic_partitions))
    every = (TopicToElectFor(topic.name, tuple(range(len(topic.partitions)))) for topic in image.topics.values())
    failed = []
    for asked in every:
        partitions = tuple(one for one in _elect(image, asked, request.election_type).partitions if one.error_code != ErrorCode.ELECTION_NOT_NEEDED)
        if partitions:
            failed.append(ElectedTopic(asked.topic, partitions))
    return ElectLeadersResponse(results=tuple(failed))


def _elect(image: MetadataImage, asked: TopicToElectFor, election_type: int) -> ElectedTopic:
    return ElectedTopic(asked.topic, tuple(_result(image, asked.topic, partition, election_type) for partition in asked.partitions))


def _result(image: MetadataImage, name: str, partition: int, election_type: int) -> ElectedPartition:
    topic = image.topics.get(name)
    if topic is None or not 0 <= partition < len(topic.partitions):
        return ElectedPartition(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    found = topic.partitions[partition]
    preferred = found.replicas[0]
    if found.leader == preferred or (election_type == UNCLEAN and found.leader in image.brokers):
        return ElectedPartition(partition, ErrorCode.ELECTION_NOT_NEEDED, f"Broker {found.leader} leads {name}-{partition} already.")
    if election_type == PREFERRED:
        return ElectedPartition(partition, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"Broker {preferred} cannot lead {name}-{partition}.")
    return ElectedPartition(partition, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"No replica of {name}-{partition} can lead it.")
