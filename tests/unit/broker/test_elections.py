"""ElectLeaders, and the reassignments of partitions to brokers, over an image whose partitions have one replica."""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.broker.handlers.elections import elect_leaders
from appliance.broker.handlers.reassignments import list_reassignments, reassign_partitions
from appliance.metadata.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from appliance.protocol.alter_partition_reassignments import AlterPartitionReassignmentsRequest, PartitionToReassign, TopicToReassign
from appliance.protocol.elect_leaders import PREFERRED, UNCLEAN, ElectLeadersRequest, TopicToElectFor
from appliance.protocol.list_partition_reassignments import ListPartitionReassignmentsRequest, TopicToList

_LED = PartitionImage(1, 3, (1,), (1,), "d0")
_OFFLINE = PartitionImage(-1, 4, (1,), (1,), "d1")
_IMAGE = MetadataImage(1, "cluster", 1, {1: BrokerImage(1, "one", 9092)}, {"disks": TopicImage("disks", TopicId(bytes(range(16))), (_LED, _OFFLINE), {})})


@pytest.mark.parametrize(
    ("election_type", "offline"), [(PREFERRED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE), (UNCLEAN, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
)
def test_no_election_is_needed_where_somebody_leads_and_none_possible_where_nobody_can(election_type: int, offline: ErrorCode) -> None:
    asked = (TopicToElectFor("disks", (0, 1, 2, -1)), TopicToElectFor("nothing", (0,)))
    answer = elect_leaders(_IMAGE, ElectLeadersRequest(election_type, asked))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [(topic.topic, [(one.partition_id, one.error_code) for one in topic.partitions]) for topic in answer.results] == [
        ("disks", [(0, ErrorCode.ELECTION_NOT_NEEDED), (1, offline), (2, unknown), (-1, unknown)]),
        ("nothing", [(0, unknown)]),
    ]


def test_asked_about_all_partitions_only_those_are_named_that_need_a_leader() -> None:
    answer = elect_leaders(_IMAGE, ElectLeadersRequest(PREFERRED, None))
    assert [(topic.topic, [one.partition_id for one in topic.partitions]) for topic in answer.results] == [("disks", [1])]


def test_an_election_of_an_unknown_type_is_refused() -> None:
    assert elect_leaders(_IMAGE, ElectLeadersRequest(2, None)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("partition", "replicas", "code"),
    [
        (0, (1,), ErrorCode.NONE),
        (0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (0, (), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, (1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, (2,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (7, (1,), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_only_what_changes_nothing_can_be_reassigned(partition: int, replicas: tuple[int, ...] | None, code: ErrorCode) -> None:
    request = AlterPartitionReassignmentsRequest(topics=(TopicToReassign("disks", (PartitionToReassign(partition, replicas),)),))
    (topic,) = reassign_partitions(_IMAGE, request).responses
    assert [(one.partition_index, one.error_code, one.error_message is None) for one in topic.partitions] == [(partition, code, code == ErrorCode.NONE)]


def test_partitions_do_not_go_to_a_second_broker() -> None:
    image = MetadataImage(1, "cluster", 1, {1: BrokerImage(1, "one", 9092), 2: BrokerImage(2, "two", 9092)}, _IMAGE.topics)
    request = AlterPartitionReassignmentsRequest(topics=(TopicToReassign("disks", (PartitionToReassign(0, (2,)),)),))
    assert reassign_partitions(image, request).responses[0].partitions[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_no_reassignment_is_ever_under_way() -> None:
    for topics in (None, (TopicToList("disks", (0,)),)):
        answer = list_reassignments(_IMAGE, ListPartitionReassignmentsRequest(topics=topics))
        assert (answer.error_code, answer.topics) == (ErrorCode.NONE, ())
