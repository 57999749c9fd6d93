"""Produce as an ingest sends it: kio reads our requests, and we read kio's answers; in both versions."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.base.errors import ErrorCode, ProtocolViolation
from appliance.protocol.apis import ApiKey
from appliance.protocol.produce_client import VERSION_MAX, VERSION_MIN, PartitionBatch, ProducedPartition, decode_produce_response, encode_produce
from lab import kio_adapter

VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)


def answer(version: int, responses: list[dict[str, Any]]) -> bytes:
    return kio_adapter.encode(kio_adapter.build(kio_adapter.response_class(ApiKey.PRODUCE, version), {"responses": responses, "throttle_time": 0}))


@pytest.mark.parametrize("version", VERSIONS)
def test_kio_reads_our_request(version: int) -> None:
    body = encode_produce(-1, 5_000, [PartitionBatch("a", 0, b"first"), PartitionBatch("b", 7, b"second"), PartitionBatch("a", 1, b"third")])
    request = kio_adapter.decode_request(ApiKey.PRODUCE, version, body)
    assert (request.acks, int(request.timeout.total_seconds()), request.transactional_id) == (-1, 5, None)
    found = [(topic.name, each.index, each.records) for topic in request.topic_data for each in topic.partition_data]
    assert found == [("a", 0, b"first"), ("a", 1, b"third"), ("b", 7, b"second")]


@pytest.mark.parametrize("version", VERSIONS)
def test_we_read_kios_answer(version: int) -> None:
    failed = {"index": 1, "error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER, "base_offset": -1, "error_message": "it moved"}
    failed["record_errors"] = [{"batch_index": 3, "batch_index_error_message": "why"}]
    responses = [{"name": "a", "partition_responses": [{"index": 0, "error_code": ErrorCode.NONE, "base_offset": 42, "record_errors": []}, failed]}]
    responses.append({"name": "b", "partition_responses": [{"index": 7, "error_code": ErrorCode.NONE, "base_offset": 7, "record_errors": []}]})
    data = answer(version, responses)
    assert decode_produce_response(b"xx" + data, 2, len(data) + 2, version) == [
        ProducedPartition("a", 0, 0, 42),
        ProducedPartition("a", 1, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1),
        ProducedPartition("b", 7, 0, 7),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_that_ends_early_is_a_violation(version: int) -> None:
    data = answer(version, [{"name": "a", "partition_responses": [{"index": 0, "error_code": ErrorCode.NONE, "base_offset": 42, "record_errors": []}]}])
    for size_bytes in range(len(data)):
        with pytest.raises(ProtocolViolation):
            decode_produce_response(data[:size_bytes], 0, size_bytes, version)
