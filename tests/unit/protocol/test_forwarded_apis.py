"""Error responses to forwarded requests (`protocol/forwarded_apis.py`): one for each API and version, which kio reads."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.ipc.request_frames import pack_kafka_request
from appliance.protocol.apis import ApiKey
from appliance.protocol.forwarded_apis import COORDINATED_APIS, error_answer
from lab import kio_adapter
from services.acceptor.handlers.coordinated import COORDINATED_KEYS
from tests.unit.protocol.sample_requests import Sample, samples

SAMPLES = [sample for sample in samples() if sample.api_key in COORDINATED_KEYS]


def test_an_acceptor_hands_on_what_the_coordinator_answers() -> None:
    assert COORDINATED_KEYS == COORDINATED_APIS.keys()


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_answer_says_that_the_coordinator_is_not_there(sample: Sample) -> None:
    key, version = sample.api_key, sample.version
    answer = error_answer(pack_kafka_request(key, version, "client", "::1", sample.body), ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert answer is not None
    if kio_adapter.serves(key, version):
        expected = ErrorCode.SHARE_SESSION_NOT_FOUND if key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE) else ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert _codes(kio_adapter.decode_response(key, version, answer)) == {expected}


def test_what_cannot_be_read_has_no_answer() -> None:
    assert error_answer(pack_kafka_request(12, 4, "client", "::1", b"\x05g"), ErrorCode.COORDINATOR_NOT_AVAILABLE) is None


def _codes(value: Any) -> set[int]:
    """Error codes anywhere in an answer, but for those that say "none" beside others."""
    if isinstance(value, tuple):
        return {code for element in value for code in _codes(element)}
    if not dataclasses.is_dataclass(value):
        return set()
    found = {int(getattr(value, field.name)) for field in dataclasses.fields(value) if field.name.endswith("error_code")}
    return (found | {code for field in dataclasses.fields(value) for code in _codes(getattr(value, field.name))}) - {0}
