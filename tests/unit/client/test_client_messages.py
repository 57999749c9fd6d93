from __future__ import annotations

import struct
from typing import Any

import pytest

from appliance.base.errors import ProtocolViolation
from appliance.base.model import TopicId
from appliance.client import messages
from appliance.client.messages import ClientApi, ClientFetchRequest, PartitionToFetch, TopicToFetch, decode_response, encode_request
from appliance.protocol.transaction_apis import InitProducerIdRequest
from lab import kio_adapter
from tests.unit.client.fake_kafka_broker import encode_response, snake_case

TOPIC = {"name": "numbers"}
APIS = [api for api in vars(messages).values() if isinstance(api, ClientApi)]


@pytest.mark.parametrize(
    ("api", "version"),
    [(api, version) for api in (messages.FETCH, messages.FETCH_BY_ID, messages.INIT_PRODUCER_ID) for version in range(api.version_min, api.version_max + 1)],
)
def test_a_request_frame_is_read_by_kio_with_its_header(api: ClientApi[Any, Any], version: int) -> None:
    wanted = TopicToFetch("numbers", TopicId(b"0123456789abcdef"), (PartitionToFetch(3, fetch_offset=70),))
    body = InitProducerIdRequest("numbers") if api is messages.INIT_PRODUCER_ID else ClientFetchRequest(max_wait_ms=500, topics=(wanted,))
    frame = encode_request(api, version, 7, "me", body)
    size, key, sent_version, correlation_id, client_length = struct.unpack_from(">ihhih", frame)
    assert (size, key, sent_version, correlation_id, client_length) == (len(frame) - 4, api.key, version, 7, 2)
    position = 14 + client_length + (1 if api.is_flexible(version) else 0)
    request = kio_adapter.decode_request(api.key, version, frame[position:])
    assert kio_adapter.encode(request) == frame[position:]
    if api is messages.FETCH_BY_ID:
        assert (request.topics[0].topic_id.bytes, request.topics[0].partitions[0].fetch_offset) == (b"0123456789abcdef", 70)


@pytest.mark.parametrize("api", APIS, ids=lambda api: snake_case(api.name))
def test_kio_knows_every_version_and_agrees_where_messages_become_flexible(api: ClientApi[Any, Any]) -> None:
    for version in range(api.version_min, api.version_max + 1):
        assert kio_adapter.request_class(api.key, version).__flexible__ == api.is_flexible(version), version


def test_a_response_that_ends_too_early_is_a_protocol_violation() -> None:
    whole = encode_response(messages.DELETE_TOPICS, 5, 7, {"throttle_time": 0, "responses": [{**TOPIC, "error_code": 0, "error_message": None}]})[4:]
    assert decode_response(messages.DELETE_TOPICS, 5, whole).topics[0].name == "numbers"
    for end in range(4, len(whole)):
        with pytest.raises(ProtocolViolation):
            decode_response(messages.DELETE_TOPICS, 5, whole[:end])


@pytest.mark.parametrize(("version", "head"), [(1, b""), (9, b"\0" + bytes(4))], ids=["plain", "flexible"])
def test_a_response_that_claims_more_than_it_has_does_not_end_the_process(version: int, head: bytes) -> None:
    """An array of so many elements is refused before memory is reserved."""
    claim = b"\xff\xff\xff\xff\x0f" if version == 9 else b"\x7f\xff\xff\xff"
    with pytest.raises(ProtocolViolation, match="too long"):
        decode_response(messages.METADATA, version, bytes(4) + head + claim)


def test_tagged_fields_of_a_response_header_are_skipped() -> None:
    plain = encode_response(messages.DELETE_TOPICS, 5, 7, {"throttle_time": 0, "responses": []})[4:]
    tagged = plain[:4] + b"\x01\x05\x02hi" + plain[5:]
    assert decode_response(messages.DELETE_TOPICS, 5, tagged) == decode_response(messages.DELETE_TOPICS, 5, plain)
    with pytest.raises(ProtocolViolation):
        decode_response(messages.DELETE_TOPICS, 5, plain[:4] + b"\x01\x05\x7f")
