"""ApiVersions, the first thing a client asks."""

from __future__ import annotations

import struct

from appliance.base.errors import ErrorCode
from appliance.protocol.api_versions import (
    ApiVersionsRequest,
    api_versions_problem,
    encode_api_versions_response,
    encode_unsupported_version,
)
from appliance.protocol.apis import CODED_APIS, NOT_YET_SERVED, SERVED_APIS, ApiKey
from lab import kio_adapter


def test_every_version_lists_every_api_behind_the_old_header() -> None:
    for version in range(5):
        response = encode_api_versions_response(version, 5)
        assert struct.unpack_from(">ii", response) == (len(response) - 4, 5)
        body = kio_adapter.decode_response(ApiKey.API_VERSIONS, version, response[8:])
        assert body.error_code == 0
        assert [(api.api_key, api.min_version, api.max_version) for api in body.api_keys] == [
            (api.key, api.version_min, api.version_max) for api in SERVED_APIS.values()
        ]


def test_an_unknown_version_is_answered_with_a_body_of_version_0_that_names_our_range() -> None:
    expected = struct.pack(">iihihhh", 4 + 2 + 4 + 6, 5, ErrorCode.UNSUPPORTED_VERSION, 1, 18, 0, 4)
    assert encode_unsupported_version(5) == expected


def test_a_malformed_client_name_is_refused_from_version_3_on() -> None:
    assert api_versions_problem(ApiVersionsRequest("librdkafka", "2.16.0-rc1"), 3) is None
    assert api_versions_problem(ApiVersionsRequest("", ""), 2) is None
    for name, version in (("", "1"), ("a b", "1"), ("a", "1-"), ("a", "-1"), ("a\n", "1")):
        assert api_versions_problem(ApiVersionsRequest(name, version), 3) == ErrorCode.INVALID_REQUEST
    refusal = encode_api_versions_response(3, 5, ErrorCode.INVALID_REQUEST)
    assert kio_adapter.decode_response(ApiKey.API_VERSIONS, 3, refusal[8:]).api_keys == ()


def test_telemetry_is_not_advertised() -> None:
    assert not {71, 72} & set(SERVED_APIS)


def test_apis_without_a_handler_are_not_advertised() -> None:
    assert set(SERVED_APIS) == set(CODED_APIS) - NOT_YET_SERVED
    assert NOT_YET_SERVED <= set(CODED_APIS)
    for version in range(5):
        advertised = kio_adapter.decode_response(ApiKey.API_VERSIONS, version, encode_api_versions_response(version, 5)[8:])
        assert not {api.api_key for api in advertised.api_keys} & NOT_YET_SERVED
