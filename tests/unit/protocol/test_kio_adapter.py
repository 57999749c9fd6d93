"""kio, and what stands between it and strangers."""

from __future__ import annotations

import datetime
from contextlib import suppress
from typing import Any

import pytest

from appliance.base.errors import ProtocolViolation
from lab import kio_adapter
from lab.kio_bounds import check_bounds
from lab.protocol_messages import kio_element, kio_message
from tests.unit.protocol.sample_requests import Sample, samples


def describe_configs(version: int) -> Any:
    request_class = kio_adapter.request_class(32, version)
    resource_class = kio_element(request_class, "resources")
    resources = (kio_message(resource_class, resource_type=2, resource_name="syslog", configuration_keys=("retention.ms",)),) * 2
    return kio_message(request_class, resources=resources)


@pytest.mark.parametrize("version", range(1, 5))
def test_a_request_survives_the_way_there_and_back(version: int) -> None:
    request = describe_configs(version)
    encoded = kio_adapter.encode(request)
    assert kio_adapter.decode_request(32, version, encoded) == request
    assert kio_adapter.decode_request(32, version, bytearray(encoded)) == request
    assert kio_adapter.decode_request(32, version, memoryview(bytearray(encoded))) == request
    for limit in range(len(encoded)):
        with pytest.raises(ProtocolViolation):
            kio_adapter.decode_request(32, version, encoded[:limit])


@pytest.mark.slow
def test_every_kind_of_field_in_every_schema_of_kio_is_known() -> None:
    from kio.schema.index import api_key_map, schema_name_map

    for api_key, name in api_key_map.items():
        for version in schema_name_map[name]:
            # A kind that kio_bounds does not know is a KeyError here.
            with suppress(ProtocolViolation):
                check_bounds(kio_adapter.request_class(api_key, version), b"")


@pytest.mark.parametrize("sample", [sample for sample in samples() if kio_adapter.serves(sample.api_key, sample.version)], ids=str)
def test_bounds_end_where_the_message_ends(sample: Sample) -> None:
    assert check_bounds(kio_adapter.request_class(sample.api_key, sample.version), sample.body + b"rest") == len(sample.body)


def test_a_tagged_field_and_a_nullable_struct_have_bounds_too() -> None:
    from kio.schema.describe_topic_partitions.v0.request import Cursor, DescribeTopicPartitionsRequest
    from kio.schema.types import TopicName
    from kio.static.primitive import i32

    for cursor in (None, Cursor(topic_name=TopicName("a"), partition_index=i32(3))):
        encoded = kio_adapter.encode(DescribeTopicPartitionsRequest(topics=(), cursor=cursor))
        assert check_bounds(DescribeTopicPartitionsRequest, encoded) == len(encoded)
        with pytest.raises(ProtocolViolation):
            check_bounds(DescribeTopicPartitionsRequest, encoded[:-1])
    fetch_class = kio_adapter.request_class(1, 16)
    plain = kio_adapter.encode(fetch_class(max_wait=datetime.timedelta(0), min_bytes=1, topics=(), forgotten_topics_data=()))
    cluster_id = b"\1\0\4\4abc"
    assert check_bounds(fetch_class, plain[:-1] + cluster_id) == len(plain) + 6
    with pytest.raises(ProtocolViolation):
        check_bounds(fetch_class, plain[:-1] + b"\1\0\4\5abc")


def test_a_response_frame_has_the_header_of_its_version() -> None:
    from kio.schema.errors import ErrorCode

    response_class = kio_adapter.response_class(18, 3)
    api_versions = response_class(error_code=ErrorCode.none, api_keys=(), throttle_time=datetime.timedelta(0))
    assert kio_adapter.encode_response_frame(7, api_versions)[4:10] == b"\0\0\0\7\0\0"
    delete_class = kio_adapter.response_class(20, 4)
    assert kio_adapter.encode_response_frame(7, delete_class(throttle_time=datetime.timedelta(0), responses=())) == b"\0\0\0\x0b\0\0\0\7\0\0\0\0\0\1\0"


def test_what_has_no_schema_is_a_violation_that_names_it() -> None:
    assert not kio_adapter.serves(19, 1)
    with pytest.raises(ProtocolViolation, match="API 19 v1 has no schema"):
        kio_adapter.decode_request(19, 1, b"")
    with pytest.raises(ProtocolViolation, match="API 999 v0"):
        kio_adapter.decode_request(999, 0, b"")
