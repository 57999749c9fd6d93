"""Requests as clients other than librdkafka sent them (`tests/golden/capture.py` makes them again): each is understood to the last byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.framing import FrameSplitter, parse_request_header
from appliance.protocol.topic_apis import TopicConfig
from appliance.records.batch import read_batch_header
from appliance.records.compression import Codec
from tests.unit.protocol.sample_requests import DECODERS

CLIENTS = ("kafka-python", "aiokafka", "platformatic", "kafka-clients", "kafkajs")
FRAMES = sorted(path for client in CLIENTS for path in (Path(__file__).parent / client).glob("*.hex"))
SOFTWARE = {"kafka-python": "kafka-python", "platformatic": "platformatic-kafka", "kafka-clients": "apache-kafka-java"}
"""As clients name themselves from ApiVersions 3 on; the others do not."""


@pytest.mark.parametrize("client", CLIENTS)
def test_what_a_client_sends_to_write_read_and_administer_was_captured(client: str) -> None:
    names = {path.stem.split("-")[1] for path in FRAMES if path.parent.name == client}
    wanted = {"ApiVersions", "Metadata", "Produce", "ListOffsets", "CreateTopics", "DeleteTopics"} | ({"Fetch"} if client != "kafkajs" else set())
    assert wanted <= names
    codecs = {path.stem.split("-")[3] for path in FRAMES if path.parent.name == client and "-Produce-" in path.stem}
    assert codecs == {codec.name.lower() for codec in Codec}


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_request_of_a_client_is_understood(path: Path) -> None:
    client = path.parent.name
    _scenario, name, version, *codec = path.stem.split("-")
    (request,) = FrameSplitter(1 << 20).feed(bytes.fromhex(path.read_text()))
    header = parse_request_header(request, 0, len(request))
    assert (SERVED_APIS[header.api_key].name, f"v{header.api_version}") == (name, version)

    body = DECODERS[ApiKey(header.api_key)](memoryview(request), header.body_position, len(request), header.api_version)

    match header.api_key:
        case ApiKey.PRODUCE:
            (part,) = body.partitions
            assert (body.acks, part.topic, part.partition) == (-1, "golden", 0)
            batch = read_batch_header(request, part.records_position)
            assert (batch.size_bytes, batch.codec, batch.records_count) == (part.records_size, Codec[codec[0].upper()], 10)
        case ApiKey.FETCH:
            (part,) = body.partitions
            assert (part.partition, part.fetch_offset, body.replica_id) == (0, 0, -1)
            assert (part.topic, part.topic_id) == (("", bytes(range(16))) if header.api_version >= 13 else ("golden", bytes(16)))
        case ApiKey.LIST_OFFSETS:
            assert [(topic.topic, len(topic.partitions)) for topic in body.topics] == [("golden", 1)]
        case ApiKey.METADATA:
            assert body.topics is None or {topic.name for topic in body.topics} <= {"golden"}
        case ApiKey.API_VERSIONS:
            assert body.client_software_name == (SOFTWARE[client] if header.api_version >= 3 else "")
        case ApiKey.CREATE_TOPICS:
            (topic,) = body.topics
            assert (topic.name, topic.num_partitions, topic.replication_factor, topic.configs) == ("made", 1, 1, (TopicConfig("retention.ms", "1000"),))
        case ApiKey.DELETE_TOPICS:
            assert [topic.name for topic in body.topics] == ["made"]
