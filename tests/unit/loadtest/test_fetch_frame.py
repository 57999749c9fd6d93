"""The Fetch requests that benchmarks send, and the places they look at in replies, are what Kafka's own schemas say (kio as oracle)."""

from __future__ import annotations

import struct
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11.response import FetchableTopicResponse, FetchResponse, PartitionData
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import Records, i32, i32Timedelta, i64

from lab.kio_adapter import decode_request, encode_response_frame
from loadtest.generators.fetch_frame import API_KEY_FETCH, API_VERSION, CLIENT_ID, build_fetch_frame, fetch_layout

HEADER_BYTES = 4 + 2 + 2 + 4 + 2 + len(CLIENT_ID)
RECORDS = b"records as they are"


def test_a_frame_requests_one_partition_and_the_given_size_at_most() -> None:
    frame = build_fetch_frame("bench", 3, 8 << 20, 4711)
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    request = decode_request(API_KEY_FETCH, API_VERSION, frame[HEADER_BYTES:])
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert (topic.topic, partition.partition, partition.fetch_offset) == ("bench", 3, 4711)
    assert request.max_bytes == partition.partition_max_bytes == 8 << 20


def test_the_offset_stands_where_the_fetcher_writes_the_next_one() -> None:
    frame = bytearray(build_fetch_frame("bench", 3, 8 << 20, 4711))
    struct.pack_into(">q", frame, fetch_layout("bench").offset_at, 1 << 40)
    request = decode_request(API_KEY_FETCH, API_VERSION, bytes(frame)[HEADER_BYTES:])
    assert request.topics[0].partitions[0].fetch_offset == 1 << 40


def test_error_high_watermark_and_records_stand_where_the_fetcher_looks_for_them() -> None:
    partition = PartitionData(
        partition_index=i32(3),
        error_code=ErrorCode.offset_out_of_range,
        high_watermark=i64(77),
        last_stable_offset=i64(77),
        log_start_offset=i64(0),
        aborted_transactions=(),
        preferred_read_replica=BrokerId(-1),
        records=Records(RECORDS),
    )
    topic = FetchableTopicResponse(topic=TopicName("bench"), partitions=(partition,))
    response = FetchResponse(throttle_time=i32Timedelta.parse(timedelta(0)), error_code=ErrorCode.none, session_id=i32(0), responses=(topic,))
    frame = encode_response_frame(1, response)
    layout = fetch_layout("bench")
    assert struct.unpack_from(">hq", frame, layout.error_at) == (ErrorCode.offset_out_of_range, 77)
    assert struct.unpack_from(">i", frame, layout.records_at - 4)[0] == len(RECORDS)
    assert frame[layout.records_at :] == RECORDS
