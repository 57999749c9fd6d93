"""The frames that benchmarks replay, and the replies they expect, are what Kafka's own schemas say (kio as oracle)."""

from __future__ import annotations

import struct

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.produce.v9.response import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from appliance.records.batch import read_batch_header
from lab.kio_adapter import decode_request, encode_response_frame
from loadtest.generators.produce_frame import API_VERSION, CLIENT_ID, build_produce_frame, reply_layout

HEADER_BYTES = 4 + 2 + 2 + 4 + 2 + len(CLIENT_ID) + 1


@pytest.mark.parametrize("frame_bytes", [180, 300, 1000, 17_000])
def test_a_frame_has_exactly_the_size_that_was_asked_for(frame_bytes: int) -> None:
    frame = build_produce_frame("bench", 3, frame_bytes)
    assert len(frame) == frame_bytes
    assert struct.unpack_from(">i", frame)[0] == frame_bytes - 4


def test_a_frame_is_a_request_with_one_record_for_one_partition() -> None:
    request = decode_request(0, API_VERSION, build_produce_frame("bench", 3, 300, acks=-1)[HEADER_BYTES:])
    assert request.acks == -1
    (topic,) = request.topic_data
    (partition,) = topic.partition_data
    assert (topic.name, partition.index) == ("bench", 3)
    assert read_batch_header(bytes(partition.records)).records_count == 1


def test_a_size_below_that_of_an_empty_request_is_refused() -> None:
    with pytest.raises(ValueError, match="no request"):
        build_produce_frame("bench", 0, 60)


def test_the_reply_that_is_expected_is_the_one_that_the_schema_gives() -> None:
    partition = PartitionProduceResponse(index=i32(3), error_code=ErrorCode.not_leader_or_follower, base_offset=i64(7), record_errors=())
    response = ProduceResponse(responses=(TopicProduceResponse(name=TopicName("bench"), partition_responses=(partition,)),))
    frame = encode_response_frame(1, response)
    layout = reply_layout("bench")
    assert len(frame) == layout.size_bytes
    assert struct.unpack_from(">h", frame, layout.error_at)[0] == ErrorCode.not_leader_or_follower
