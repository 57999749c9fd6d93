"""Requests of group members and transactional producers as four clients sent them (`tests/golden/capture_groups.py` makes them again): each is
understood, and encoded again to the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.protocol.apis import CODED_APIS, ApiKey
from appliance.protocol.framing import FrameSplitter
from appliance.protocol.group_offset_apis import OffsetFetchGroup
from appliance.protocol.topic_partitions import TopicPartitions
from tests.golden.capture_groups import ANSWERS, CLIENTS, GROUP, MEMBER, TRANSACTIONAL_ID
from tests.support.coded_header import parse_coded_header

FRAMES = sorted((Path(__file__).parent / "groups").glob("*/*.hex"))
EVERY_CLIENT = {
    "JoinGroup",
    "SyncGroup",
    "LeaveGroup",
    "OffsetCommit",
    "OffsetFetch",
    "InitProducerId",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "EndTxn",
}
APACHES = {"Heartbeat", "ListGroups", "DeleteGroups", "OffsetDelete", "ConsumerGroupHeartbeat", "ConsumerGroupDescribe"}
APACHES |= {"ListTransactions", "DescribeTransactions", "DescribeProducers"}
BY_TRANSACTION = {ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT}
BY_GROUP = {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_DELETE}
BY_GROUP |= {ApiKey.TXN_OFFSET_COMMIT, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.CONSUMER_GROUP_HEARTBEAT}
BY_GROUPS = {ApiKey.DELETE_GROUPS, ApiKey.CONSUMER_GROUP_DESCRIBE}


@pytest.mark.parametrize("client", CLIENTS)
def test_what_a_client_asks_of_coordinators_was_captured(client: str) -> None:
    names = {path.stem.split("-")[1] for path in FRAMES if path.parent.name == client}
    assert (EVERY_CLIENT | APACHES if client == "kafka-clients" else EVERY_CLIENT) <= names


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_request_is_understood_and_encoded_to_the_same_bytes(path: Path) -> None:
    _scenario, name, version = path.stem.split("-")
    (request,) = FrameSplitter(1 << 20).feed(bytes.fromhex(path.read_text()))
    header = parse_coded_header(request)
    assert (CODED_APIS[header.api_key].name, f"v{header.api_version}") == (name, version)

    message = ANSWERS[ApiKey(header.api_key)][0]
    body = message.decode(memoryview(request), header.body_position, len(request), header.api_version)
    assert message.encode(header.api_version, body) == request[header.body_position :]

    if header.api_key in BY_GROUP:
        assert body.group_id == GROUP
    if header.api_key in BY_GROUPS:
        assert body.group_ids == (GROUP,)
    if header.api_key in BY_TRANSACTION:
        assert body.transactional_id == TRANSACTIONAL_ID
    match header.api_key:
        case ApiKey.JOIN_GROUP:
            assert body.protocol_type == "consumer" and all(b"\0\6golden" in protocol.metadata for protocol in body.protocols)
            assert min(body.session_timeout_ms, body.rebalance_timeout_ms) > 0
        case ApiKey.SYNC_GROUP:
            assert (body.generation_id, body.member_id) == (1, MEMBER)
            assert [assignment.member_id for assignment in body.assignments] == [MEMBER] and b"\0\6golden" in body.assignments[0].assignment
        case ApiKey.HEARTBEAT:
            assert (body.generation_id, body.member_id) == (1, MEMBER)
        case ApiKey.LEAVE_GROUP:
            assert [member.member_id for member in body.members] == [MEMBER]
        case ApiKey.OFFSET_COMMIT:
            ((topic, (partition,)),) = body.topics
            # confluent-kafka sends the zero behind its C string, too.
            note = "note\0" if path.parent.name == "librdkafka" else "note"
            assert (topic, partition.partition, partition.offset, partition.metadata) == ("golden", 0, 1, note)
            assert (body.generation_id, body.member_id) == (1, MEMBER)
        case ApiKey.OFFSET_FETCH:
            (group,) = body.groups
            assert group._replace(member_epoch=-1, member_id=None) == OffsetFetchGroup(GROUP, topics=(TopicPartitions("golden", (0,)),))
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            (transaction,) = body.transactions
            assert transaction == (TRANSACTIONAL_ID, 4_000, 0, False, (TopicPartitions("golden", (0,)),))
        case ApiKey.TXN_OFFSET_COMMIT:
            assert [(topic, [(part.partition, part.offset) for part in partitions]) for topic, partitions in body.topics] == [("golden", [(0, 1)])]
        case ApiKey.END_TXN:
            assert (body.producer_id, body.producer_epoch, body.is_commit) == (4_000, 0, True)
        case ApiKey.CONSUMER_GROUP_HEARTBEAT:
            assert (body.member_epoch, body.subscribed_topic_names, body.topic_partitions) == (0, ("golden",), ())
