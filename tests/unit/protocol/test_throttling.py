"""Throttle times in responses that are encoded already."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.fetch import encode_fetch_response
from appliance.protocol.leader_hints import CurrentLeader, NodeEndpoint
from appliance.protocol.produce import ProduceResult, encode_produce_response
from appliance.protocol.schema import Message
from appliance.protocol.throttling import with_throttle_time
from tests.properties.test_protocol_codecs import SCHEMA_MESSAGES
from tests.unit.protocol.sample_requests import filled

RESPONSES = [(message, version) for message, is_request, versions in SCHEMA_MESSAGES if not is_request for version in versions]
BY_HAND = {ApiKey.API_VERSIONS, ApiKey.PRODUCE, ApiKey.FETCH}


@pytest.mark.parametrize(("message", "version"), [pytest.param(*each, id=f"{each[0].name}-v{each[1]}") for each in RESPONSES if each[0].api.key not in BY_HAND])
def test_an_encoded_response_gets_its_throttle_time_where_its_version_has_one(message: Message[Any], version: int) -> None:
    """The same bytes as if it had been encoded with it."""
    body: Any = message.widened(version, filled(message.shape(version), version))
    has_time = "throttle_time_ms" in body._fields
    expected = message.encode_response(version, 7, body._replace(throttle_time_ms=1_234) if has_time else body)
    assert with_throttle_time(message.api.key, version, message.encode_response(version, 7, body), 1_234) == expected


@pytest.mark.parametrize("version", range(SERVED_APIS[ApiKey.PRODUCE].version_max + 1))
def test_a_produce_response_gets_its_throttle_time(version: int) -> None:
    results = [ProduceResult("t", 0, base_offset=3)]
    encoded = encode_produce_response(version, 7, results)
    assert with_throttle_time(ApiKey.PRODUCE, version, encoded, 1_234) == encode_produce_response(version, 7, results, 1_234)


def test_a_produce_response_that_names_leaders_stays_as_it_is() -> None:
    results = [ProduceResult("t", 0, 6, current_leader=CurrentLeader(2, 3))]
    for rack in (None, "rack"):
        encoded = encode_produce_response(10, 7, results, 0, [NodeEndpoint(2, "host", 9092, rack)])
        assert with_throttle_time(ApiKey.PRODUCE, 10, encoded, 1_234) == encoded


@pytest.mark.parametrize("version", range(SERVED_APIS[ApiKey.FETCH].version_max + 1))
def test_a_fetch_response_gets_its_throttle_time(version: int) -> None:
    first, *rest = encode_fetch_response(version, 7, 0, 5, [])
    assert [with_throttle_time(ApiKey.FETCH, version, first, 1_234), *rest] == encode_fetch_response(version, 7, 0, 5, [], 1_234)
