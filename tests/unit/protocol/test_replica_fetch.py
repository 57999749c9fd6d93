"""A follower's fetch and its response, against kio's codec of Kafka's own schemas."""

from __future__ import annotations

import datetime
import uuid
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.errors import ProtocolViolation
from appliance.base.model import TopicId
from appliance.ipc.descriptors import (
    DESCRIPTOR,
    Progress,
    ReplicaAppend,
    TruncateOrder,
    Truncation,
    progress_descriptor,
    progress_of,
    replica_append_descriptor,
    replica_append_of,
    truncate_descriptor,
    truncate_of,
)
from appliance.protocol.apis import ApiKey
from appliance.protocol.fetch import (
    DAMAGE_TAG,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResult,
    ForgottenPartition,
    decode_fetch,
    encode_fetch_response,
)
from appliance.protocol.leader_hints import CurrentLeader, NodeEndpoint
from appliance.protocol.replica_fetch import VERSION_MAX, VERSION_MIN, ReplicaFetch, decode_replica_fetch_response, encode_replica_fetch
from appliance.protocol.wire import write_tagged_fields
from lab import kio_adapter

ONE, OTHER = TopicId(b"1" * 16), TopicId(b"2" * 16)
VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)

WANTED = [
    FetchPartition("", ONE, 0, 7, 1 << 40, 6, 12, 1 << 20),
    FetchPartition("", ONE, 3, 0, 0, -1, 0, 1 << 20),
    FetchPartition("", OTHER, 1, 9, 5, 9, 5, 1 << 20),
]
FETCH = ReplicaFetch(2, 1 << 50, 500, 1, 10 << 20, 44, 3, WANTED, [ForgottenPartition("", OTHER, 8), ForgottenPartition("", OTHER, 9)])


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_follower_asks_is_what_kio_reads(version: int) -> None:
    asked = kio_adapter.decode_request(ApiKey.FETCH, version, encode_replica_fetch(FETCH))

    assert (asked.replica_state.replica_id, asked.replica_state.replica_epoch) == (2, 1 << 50)
    assert (asked.max_wait, asked.min_bytes, asked.max_bytes, asked.session_id, asked.session_epoch) == (
        datetime.timedelta(milliseconds=500), 1, 10 << 20, 44, 3,
    )  # fmt: skip
    found = [
        (each.partition, each.current_leader_epoch, each.fetch_offset, each.last_fetched_epoch, each.log_start_offset, each.partition_max_bytes)
        for topic in asked.topics
        for each in topic.partitions
    ]
    assert found == [wanted[2:8] for wanted in WANTED]
    assert [topic.topic_id.bytes for topic in asked.topics] == [ONE, OTHER]
    assert [(topic.topic_id.bytes, topic.partitions) for topic in asked.forgotten_topics_data] == [(OTHER, (8, 9))]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_leader_of_ours_reads_it_too(version: int) -> None:
    body = encode_replica_fetch(FETCH)
    request = decode_fetch(body, 0, len(body), version)
    assert (request.replica_id, request.replica_epoch, request.partitions, request.forgotten) == (2, 1 << 50, WANTED, FETCH.forgotten)


@pytest.mark.parametrize("version", VERSIONS)
def test_that_it_was_sent_damage_is_said_in_a_tag_which_others_pass_over(version: int) -> None:
    """kio knows its own tags only; how a tagged section is built it says with one that it has."""
    damaged = [*WANTED[:2], WANTED[2]._replace(damaged_offset=1 << 35)]
    plain, told = encode_replica_fetch(FETCH), encode_replica_fetch(FETCH._replace(partitions=damaged))
    tag = write_tagged_fields([(DAMAGE_TAG, (1 << 35).to_bytes(8, "big"))])
    at = next(index for index in range(len(plain)) if plain[index] != told[index])
    assert told == plain[:at] + tag + plain[at + 1 :] and plain[at] == 0
    request = decode_fetch(told, 0, len(told), version)
    assert (request.partitions, request.forgotten, request.replica_id) == (damaged, FETCH.forgotten, 2)
    for strange in (write_tagged_fields([(7, b"seven")]), write_tagged_fields([(DAMAGE_TAG, b"short")])):
        body = plain[:at] + strange + plain[at + 1 :]
        assert decode_fetch(body, 0, len(body), version).partitions == WANTED


def _responses() -> st.SearchStrategy[list[FetchPartitionResult]]:
    int64 = st.integers(-1, 2**63 - 1)
    one = st.builds(
        FetchPartitionResult,
        topic=st.just(""),
        topic_id=st.sampled_from((ONE, OTHER)),
        partition=st.integers(0, 1000),
        error_code=st.sampled_from((0, 1, 6, 74, 75)),
        high_watermark=int64,
        last_stable_offset=int64,
        log_start_offset=int64,
        records=st.binary(max_size=300),
        diverging_epoch=st.none() | st.builds(EpochEndOffset, st.integers(0, 99), st.integers(0, 2**50)),
        current_leader=st.none() | st.builds(CurrentLeader, st.integers(0, 9), st.integers(0, 99)),
    )
    return st.lists(one, max_size=8)


@given(results=_responses(), version=st.sampled_from(VERSIONS), hinted=st.booleans())
def test_what_kio_writes_is_what_a_follower_reads(results: list[FetchPartitionResult], version: int, hinted: bool) -> None:
    response = kio_adapter.response_class(ApiKey.FETCH, version)
    module = __import__(response.__module__, fromlist=["x"])
    by_topic: dict[TopicId, list[object]] = defaultdict(list)
    for each in results:
        more = {}
        if each.diverging_epoch is not None:
            more["diverging_epoch"] = module.EpochEndOffset(epoch=each.diverging_epoch[0], end_offset=each.diverging_epoch[1])
        if each.current_leader is not None:
            more["current_leader"] = module.LeaderIdAndEpoch(leader_id=each.current_leader[0], leader_epoch=each.current_leader[1])
        by_topic[each.topic_id].append(
            module.PartitionData(
                partition_index=each.partition,
                error_code=module.ErrorCode(each.error_code),
                high_watermark=each.high_watermark,
                last_stable_offset=each.last_stable_offset,
                log_start_offset=each.log_start_offset,
                aborted_transactions=None if each.partition % 2 else (module.AbortedTransaction(producer_id=1, first_offset=2),) * (each.partition % 3),
                records=each.records,
                **more,
            )
        )
    endpoints = (module.NodeEndpoint(node_id=3, host="h", port=1, rack="r"),) if hinted and version >= 16 else ()
    extra = {"node_endpoints": endpoints} if version >= 16 else {}
    body = kio_adapter.encode(
        response(
            throttle_time=datetime.timedelta(milliseconds=5),
            error_code=module.ErrorCode(0),
            session_id=9,
            responses=tuple(module.FetchableTopicResponse(topic_id=uuid.UUID(bytes=key), partitions=tuple(parts)) for key, parts in by_topic.items()),
            **extra,
        )
    )
    buffer = memoryview(b"before" + body + b"behind")
    told = decode_replica_fetch_response(buffer, 6, 6 + len(body), version)
    assert told[:3] == (5, 0, 9)
    expected = [each for key in by_topic for each in results if each.topic_id == key]
    assert [(each.topic_id, *each[1:5], bytes(buffer[each[5] : each[5] + each[6]]), *each[7:]) for each in told.partitions] == [
        (each.topic_id, each.partition, each.error_code, each.high_watermark, each.log_start_offset, each.records, each.diverging_epoch, each.current_leader)
        for each in expected
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_of_ours_that_is_cut_off_or_lies_is_no_answer(version: int) -> None:
    results = [
        FetchPartitionResult("", ONE, 1, 0, 10, 10, 0, b"r" * 200, diverging_epoch=EpochEndOffset(3, 4)),
        FetchPartitionResult("", OTHER, 2, 6, current_leader=CurrentLeader(1, 2)),
    ]
    frame = b"".join(bytes(piece) for piece in encode_fetch_response(version, 1, 0, 0, results, 0, [NodeEndpoint(1, "h", 9092)]))  # type: ignore[arg-type]
    head = 4 + 4 + 1
    assert [each.partition for each in decode_replica_fetch_response(frame, head, len(frame), version).partitions] == [1, 2]
    for end in range(head, len(frame)):
        with pytest.raises(ProtocolViolation):
            decode_replica_fetch_response(frame, head, end, version)
        with pytest.raises(ProtocolViolation):
            decode_replica_fetch_response(frame[:end], head, end, version)


INT63 = st.integers(0, 2**63 - 1)


@given(progress=st.builds(Progress, st.integers(0, 2**31 - 1), INT63, INT63, INT63, INT63), told=st.builds(ReplicaAppend, INT63, INT63))
def test_the_numbers_of_replication_pass_through_a_ring_entry(progress: Progress, told: ReplicaAppend) -> None:
    assert progress_of(DESCRIPTOR.unpack(DESCRIPTOR.pack(*progress_descriptor(1, 2, 3, progress)))) == progress
    assert replica_append_of(DESCRIPTOR.unpack(DESCRIPTOR.pack(*replica_append_descriptor(1, 2, 3, 4, 5, told)))) == told


@given(kind=st.sampled_from(Truncation), leader_epoch=st.integers(-1, 2**31 - 1), offset=st.integers(-1, 2**63 - 1))
def test_an_order_to_truncate_passes_through_a_ring_entry(kind: Truncation, leader_epoch: int, offset: int) -> None:
    order = TruncateOrder(kind, leader_epoch, offset)
    assert truncate_of(DESCRIPTOR.unpack(DESCRIPTOR.pack(*truncate_descriptor(1, 2, 3, order)))) == order


def test_what_a_follower_does_not_say_is_not_made_up() -> None:
    entry = DESCRIPTOR.unpack(DESCRIPTOR.pack(*progress_descriptor(1, 2, 3, Progress(2, 0, 0, -1, -1))))
    assert progress_of(entry) == Progress(2, 0, 0, 0, 0)
