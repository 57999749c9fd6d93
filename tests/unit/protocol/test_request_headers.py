"""The header before every request."""

from __future__ import annotations

import struct

import pytest

from appliance.base.errors import ProtocolViolation
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.framing import RequestHeader, parse_request_header


def header(api_key: int, version: int, client_id: bytes | None = b"rdkafka", tags: bytes = b"") -> bytes:
    length = -1 if client_id is None else len(client_id)
    return struct.pack(">hhih", api_key, version, 77, length) + (client_id or b"") + tags


def test_the_old_header_ends_behind_the_client_id() -> None:
    request = header(ApiKey.PRODUCE, 8) + b"body"
    assert parse_request_header(request, 0, len(request)) == RequestHeader(0, 8, 77, "rdkafka", len(request) - 4)


def test_the_flexible_header_ends_behind_its_tagged_fields() -> None:
    for tags in (b"\0", b"\1\7\2xy"):
        request = header(ApiKey.PRODUCE, 9, tags=tags) + b"body"
        assert parse_request_header(request, 0, len(request)).body_position == len(request) - 4


def test_every_served_version_is_accepted_and_its_neighbours_are_not() -> None:
    for api in SERVED_APIS.values():
        for version in range(api.version_min, api.version_max + 1):
            request = header(api.key, version, tags=b"\0" if api.is_flexible(version) else b"")
            assert parse_request_header(request, 0, len(request)).body_position == len(request)
        for version in (api.version_min - 1, api.version_max + 1):
            request = header(api.key, version, tags=b"\0")
            if api.key == ApiKey.API_VERSIONS:
                assert parse_request_header(request, 0, len(request)).api_version == version
                continue
            with pytest.raises(ProtocolViolation) as refused:
                parse_request_header(request, 0, len(request))
            assert refused.value.reason == "unsupported-version"


def test_an_unknown_api_is_a_violation_that_names_it() -> None:
    request = header(71, 0)
    with pytest.raises(ProtocolViolation, match=r"API 71 v0 of client 'rdkafka'") as refused:
        parse_request_header(request, 0, len(request))
    assert refused.value.reason == "unknown-api"


def test_a_null_client_id_is_empty_and_a_latin1_one_is_forgiven() -> None:
    for client_id, text in ((None, ""), (b"", ""), (b"caf\xe9", "caf\ufffd")):
        request = header(ApiKey.PRODUCE, 8, client_id)
        assert parse_request_header(request, 0, len(request)).client_id == text


def test_every_truncation_is_a_violation_in_an_arena_too() -> None:
    for request in (header(ApiKey.FETCH, 12, tags=b"\1\7\2xy"), header(ApiKey.FETCH, 12, tags=b"\0"), header(ApiKey.FETCH, 11)):
        arena = memoryview(bytearray(request + bytes(50)))
        for limit in range(len(request)):
            for buffer in (request[:limit], arena):
                with pytest.raises(ProtocolViolation):
                    parse_request_header(buffer, 0, limit)


def test_a_client_id_of_negative_length_is_a_violation() -> None:
    request = struct.pack(">hhih", ApiKey.PRODUCE, 8, 77, -2)
    with pytest.raises(ProtocolViolation):
        parse_request_header(request, 0, len(request))
