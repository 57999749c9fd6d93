"""Requests as librdkafka sent them (`tests/golden/capture.py` makes them again)."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.framing import FrameSplitter, parse_request_header
from appliance.protocol.topic_apis import CreatableTopic, TopicConfig
from tests.unit.protocol.sample_requests import DECODERS

FRAMES = sorted((Path(__file__).parent / "librdkafka").glob("*.hex"))
CODEC_BITS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ATTRIBUTES_OFFSET = 21
"""Of a record batch; its low three bits are the codec."""


CAPTURED = {
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.FIND_COORDINATOR,
    ApiKey.API_VERSIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
}
"""What `capture.py` makes librdkafka ask for."""


def test_frames_of_every_api_were_captured_in_more_than_one_version() -> None:
    names = {tuple(path.stem.split("-")[1:3]) for path in FRAMES}
    for api in (SERVED_APIS[key] for key in CAPTURED):
        assert len([version for name, version in names if name == api.name]) >= 2, api.name


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_a_request_of_librdkafka_is_understood(path: Path) -> None:
    _scenario, name, version, *codec = path.stem.split("-")
    (request,) = FrameSplitter(1 << 20).feed(bytes.fromhex(path.read_text()))
    header = parse_request_header(request, 0, len(request))
    assert (SERVED_APIS[header.api_key].name, f"v{header.api_version}", header.client_id) == (name, version, "golden")

    body = DECODERS[ApiKey(header.api_key)](memoryview(request), header.body_position, len(request), header.api_version)

    match header.api_key:
        case ApiKey.PRODUCE:
            (part,) = body.partitions
            assert (body.acks, part.topic, part.partition) == (-1, "golden", 0)
            batch = request[part.records_position : part.records_position + part.records_size]
            assert int.from_bytes(batch[8:12]) == len(batch) - 12
            # librdkafka does not use zstd before Produce 7.
            expected = "none" if codec == ["zstd"] and header.api_version < 7 else codec[0]
            assert batch[ATTRIBUTES_OFFSET + 1] & 7 == CODEC_BITS[expected]
        case ApiKey.FETCH:
            (part,) = body.partitions
            assert (part.partition, part.fetch_offset, body.replica_id) == (0, 0, -1)
            assert (part.topic, part.topic_id) == (("", bytes(range(16))) if header.api_version >= 13 else ("golden", bytes(16)))
        case ApiKey.LIST_OFFSETS:
            assert [(topic.topic, len(topic.partitions)) for topic in body.topics] == [("golden", 1)]
        case ApiKey.METADATA:
            assert body.topics is None or {topic.name for topic in body.topics} <= {"golden"}
        case ApiKey.FIND_COORDINATOR:
            assert body.keys == ("golden",)
        case ApiKey.API_VERSIONS:
            assert body.client_software_name == ("confluent-kafka-python" if header.api_version >= 3 else "")
        case ApiKey.CREATE_TOPICS:
            assert body.topics == (CreatableTopic("made", 2, 1, (), (TopicConfig("retention.ms", "1000"),)),)
        case ApiKey.DELETE_TOPICS:
            assert [topic.name for topic in body.topics] == ["made"]
