"""AlterPartitionReassignments and ListPartitionReassignments of a box whose partitions stay on the brokers that have them.

Pure. Kafka's order of checks: only what changes nothing can be granted, and nothing is ever under way. Weak spot: with several boxes these are orders
to the controller.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode
from appliance.metadata.metadata_image import MetadataImage
from appliance.protocol.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    PartitionToReassign,
    ReassignedPartition,
    ReassignedTopic,
)
from appliance.protocol.list_partition_reassignments import ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse


def reassign_partitions(image: MetadataImage, request: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
    """Each partition by itself."""
    topics = (ReassignedTopic(topic.name, tuple(_reassign(image, topic.name, wanted) for wanted in topic.partitions)) for topic in request.topics)
    return AlterPartitionReassignmentsResponse(responses=tuple(topics))


def list_reassignments(image: MetadataImage, request: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse:
    """Partitions that are not under way are left out, those that are not there, too."""
    return ListPartitionReassignmentsResponse()


def _reassign(image: MetadataImage, name: str, wanted: PartitionToReassign) -> ReassignedPartition:
    code, message = _problem(image, name, wanted) or (ErrorCode.NONE, None)
    return ReassignedPartition(wanted.partition_index, code, message)


def _problem(image: MetadataImage, name: str, wanted: PartitionToReassign) -> tuple[ErrorCode, str] | None:
    topic = image.topics.get(name)
    if topic is None or not 0 <= wanted.partition_index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist."
    if wanted.replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{name}-{wanted.partition_index} is not on its way anywhere."
    if not wanted.replicas:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The list of replicas is empty."
    if len(set(wanted.replicas)) < len(wanted.replicas):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The list of replicas has a broker twice: {_listed(wanted.replicas)}."
    if unknown := [broker_id for broker_id in wanted.replicas if broker_id not in image.brokers]:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Unknown broker(s) in the list of replicas: {_listed(unknown)}."
    if set(wanted.replicas) != set(topic.partitions[wanted.partition_index].replicas):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions cannot move to other brokers yet."
    return None


def _listed(broker_ids: tuple[int, ...] | list[int]) -> str:
    return ", ".join(str(broker_id) for broker_id in broker_ids)
