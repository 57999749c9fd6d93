"""The boxes of a cluster and what they hold, and orders to give partitions to others: for the commands that change a cluster.

Owned by one thread, as the `ClusterClient` it asks with. Weak spot: a box that does not answer is shown without its disks; what it holds is then known
only from those that hold the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import BrokerId
from appliance.client.admin import ADMIN_TIMEOUT_MS, altered_configs, describe_configs
from appliance.client.cluster import ClusterClient, TopicMetadata
from appliance.client.coordinator import by_topic
from appliance.client.errors import ClientFailed, refused
from appliance.client.messages import (
    ALTER_PARTITION_REASSIGNMENTS,
    DESCRIBE_CLUSTER,
    DESCRIBE_LOG_DIRS,
    ELECT_LEADERS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_PARTITION_REASSIGNMENTS,
    UNREGISTER_BROKER,
    Answered,
    Asked,
    ClientApi,
)
from appliance.cluster.broker_configs import CLOSED, closed_brokers
from appliance.protocol.cluster_apis import DescribeClusterRequest, UnregisterBrokerRequest
from appliance.protocol.config_apis import ConfigSource, ResourceToDescribe, ResourceType
from appliance.protocol.log_dir_apis import DescribeLogDirsRequest, LogDirTopicToDescribe
from appliance.protocol.reassignment_apis import (
    PREFERRED,
    UNCLEAN,
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    PartitionToReassign,
    TopicToElectFor,
    TopicToReassign,
)

Partition = tuple[str, int]
PARTITIONS_PER_REQUEST = 500
_AGAIN = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.BROKER_NOT_AVAILABLE})
"""No controller at this moment: it is asked again."""


class DiskSize(NamedTuple):
    """A disk of a box; the sizes are -1 where the box does not tell."""

    path: str
    error: ErrorCode
    total_bytes: int
    usable_bytes: int


class BoxContents(NamedTuple):
    """The disks that a box reported. `sizes`: partition → bytes of its log there; `paths`: → the path
    of its disk."""

    disks: tuple[DiskSize, ...]
    sizes: dict[Partition, int]
    paths: dict[Partition, str] = {}  # noqa: RUF012  never changed


class BoxDescription(NamedTuple):
    """A registered box; `contents` None: it does not answer."""

    broker_id: int
    address: str
    rack: str | None
    is_controller: bool
    contents: BoxContents | None


class Ongoing(NamedTuple):
    """A partition on its way: target and old replicas together, those that come, those that go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.removing)


def describe_boxes(cluster: ClusterClient) -> list[BoxDescription]:
    """All that are registered, by id."""
    cluster.metadata([])
    body = ask_controller(cluster, DESCRIBE_CLUSTER, DescribeClusterRequest(), "describe the cluster")
    boxes = []
    for broker in sorted(body.brokers):
        broker_id = broker.broker_id
        try:
            contents: BoxContents | None = contents_of(cluster, broker_id)
        except (ClientFailed, RequestRefused):
            contents = None
        boxes.append(BoxDescription(broker_id, f"{broker.host}:{broker.port}", broker.rack or None, broker_id == body.controller_id, contents))
    return boxes


def contents_of(cluster: ClusterClient, broker_id: int, topic: TopicMetadata | None = None, timeout_ms: int | None = None) -> BoxContents:
    """Return what lies on a box's disks, or only what lies there of `topic`. `timeout_ms` None: that of the client."""
    only = None if topic is None else (LogDirTopicToDescribe(topic.name, tuple(each.partition for each in topic.partitions)),)
    body = cluster.ask_broker(BrokerId(broker_id), DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(only), timeout_ms)
    disks, sizes, paths = [], {}, {}
    for result in body.results:
        disks.append(DiskSize(result.log_dir, ErrorCode(result.error_code), result.total_bytes, result.usable_bytes))
        for found in result.topics:
            for partition in found.partitions:
                if not partition.is_future_key:
                    sizes[(found.name, partition.partition_index)] = partition.partition_size
                    paths[(found.name, partition.partition_index)] = result.log_dir
    return BoxContents(tuple(disks), sizes, paths)


# --- reassignments -----------------------------------------------------------------------------------------------------


def reassign(cluster: ClusterClient, targets: Mapping[Partition, Sequence[int] | None]) -> dict[Partition, RequestRefused]:
    """Order partitions to other boxes; None calls off what is under way. Returns when the orders are written; what was refused, and why."""
    refusals: dict[Partition, RequestRefused] = {}
    ordered = sorted(targets)
    for start in range(0, len(ordered), PARTITIONS_PER_REQUEST):
        parts = []
        for name, number in ordered[start : start + PARTITIONS_PER_REQUEST]:
            target = targets[(name, number)]
            parts.append((name, PartitionToReassign(number, None if target is None else tuple(target))))
        request = AlterPartitionReassignmentsRequest(ADMIN_TIMEOUT_MS, tuple(TopicToReassign(*topic) for topic in by_topic(parts)))
        body = ask_controller(cluster, ALTER_PARTITION_REASSIGNMENTS, request, "reassign partitions")
        for topic in body.responses:
            for answer in topic.partitions:
                if answer.error_code != ErrorCode.NONE:
                    partition = topic.name, answer.partition_index
                    refusals[partition] = refused(answer.error_code, f"reassign {partition[0]}-{partition[1]}", answer.error_message)
    return refusals


def ongoing_reassignments(cluster: ClusterClient) -> dict[Partition, Ongoing]:
    """Everything that is on its way."""
    body = ask_controller(cluster, LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest(ADMIN_TIMEOUT_MS), "list reassignments")
    return {
        (topic.name, each.partition_index): Ongoing(each.replicas, each.adding_replicas, each.removing_replicas)
        for topic in body.topics
        for each in topic.partitions
    }


# --- elections ---------------------------------------------------------------------------------------------------------


def elect_leaders(cluster: ClusterClient, partitions: Iterable[Partition], is_unclean: bool) -> dict[Partition, RequestRefused | None]:
    """Elect a leader for each; why not, or None: it is elected."""
    asked = tuple(TopicToElectFor(*topic) for topic in by_topic(partitions))
    body = ask_controller(cluster, ELECT_LEADERS, ElectLeadersRequest(UNCLEAN if is_unclean else PREFERRED, asked, ADMIN_TIMEOUT_MS), "elect leaders")
    results: dict[Partition, RequestRefused | None] = {}
    for topic in body.results:
        for answer in topic.partitions:
            partition = topic.topic, answer.partition_id
            code = answer.error_code
            results[partition] = refused(code, f"elect a leader of {partition[0]}-{partition[1]}", answer.error_message) if code else None
    return results


def unregister_box(cluster: ClusterClient, broker_id: int) -> None:
    """Have what is recorded of a box forgotten. It must be stopped, and hold nothing."""
    ask_controller(cluster, UNREGISTER_BROKER, UnregisterBrokerRequest(broker_id), f"remove box {broker_id}")


def ask_controller(cluster: ClusterClient, api: ClientApi[Asked, Answered], request: Asked, doing: str) -> Answered:
    """The answer of the cluster's controller, asked again while that moves or restarts. Raises RequestRefused for an error that is for all."""
    backoff = cluster.backoff()
    while True:
        try:
            body: Any = cluster.ask_controller(api, request, timeout_ms=ADMIN_TIMEOUT_MS + 5_000)
            if body.error_code != ErrorCode.NONE:
                raise refused(body.error_code, doing, getattr(body, "error_message", None))
            answered: Answered = body
            return answered
        except RequestRefused as error:
            if error.code not in _AGAIN:
                raise
            backoff.pause_or_raise(error)


# --- settings of a box -------------------------------------------------------------------------------------------------

ALL_BOXES = ""
"""Where a broker id stands: what is set for all of them."""


def box_settings(cluster: ClusterClient, broker_id: int, name: str | None = None) -> dict[str, str]:
    """Return the dynamic settings of a box, or of all boxes (`ALL_BOXES` as `name`), as that box reports them."""
    resource = ResourceToDescribe(ResourceType.BROKER, str(broker_id) if name is None else name)
    configs = describe_configs(cluster, BrokerId(broker_id), resource, f"read the settings of box {broker_id}")
    source = ConfigSource.DYNAMIC_BROKER if name is None else ConfigSource.DYNAMIC_DEFAULT_BROKER
    return {config.name: config.value or "" for config in configs if config.config_source == source}


def alter_box_settings(cluster: ClusterClient, broker_id: int, values: Mapping[str, str], unset: Iterable[str], name: str | None = None) -> None:
    """Set and unset what can be set on a box while it runs, or for all of them (`ALL_BOXES` as `name`); the box itself takes it."""
    request = altered_configs(ResourceType.BROKER, str(broker_id) if name is None else name, values, unset)
    for result in cluster.ask_broker(BrokerId(broker_id), INCREMENTAL_ALTER_CONFIGS, request).responses:
        if result.error_code != ErrorCode.NONE:
            raise refused(result.error_code, f"alter the settings of box {broker_id}", result.error_message)


def closed_boxes(cluster: ClusterClient, asked: int) -> frozenset[int]:
    """Return the boxes that get no new replicas, as box `asked` reports them; none if its release does not know the setting."""
    return closed_brokers(box_settings(cluster, asked, ALL_BOXES))


def close_boxes(cluster: ClusterClient, asked: int, closed: Collection[int]) -> None:
    """These boxes and no others get no new replicas from now on; box `asked` takes it."""
    ids = ",".join(str(broker_id) for broker_id in sorted(closed))
    alter_box_settings(cluster, asked, {CLOSED: ids} if ids else {}, () if ids else (CLOSED,), ALL_BOXES)
