"""`millrace quota`: whose quotas are meant, and what is refused before a broker is asked. With a box: `tests/system/test_command.py`."""

from __future__ import annotations

import pytest

from appliance.command.failures import UsageProblem
from appliance.command.quota import entity_of, quota_of, words_of


def test_an_entity_is_a_user_a_client_id_both_or_an_address_and_a_star_is_the_default() -> None:
    assert entity_of("alice", None, None) == {"user": "alice"}
    assert entity_of("alice", "*", None) == {"user": "alice", "client-id": None}
    assert entity_of(None, None, "*") == {"ip": None} and entity_of(None, None, None) == {}
    assert words_of(entity_of("alice", "*", None)) == "user alice, each client id"
    with pytest.raises(UsageProblem, match="say whose"):
        entity_of(None, None, None, is_required=True)
    with pytest.raises(UsageProblem, match="--address goes with neither"):
        entity_of("alice", None, "10.0.0.1")


@pytest.mark.parametrize(
    ("text", "is_address", "value"),
    [
        ("producer_byte_rate=10MiB", False, 10 << 20),
        ("consumer_byte_rate = 1000", False, 1_000),
        ("request_percentage=12.5", False, 12.5),
        ("controller_mutation_rate=0.5", False, 0.5),
        ("connection_creation_rate=20", True, 20),
    ],
)
def test_a_value_is_a_number_above_zero(text: str, is_address: bool, value: float) -> None:
    assert quota_of(text, is_address) == (text.partition("=")[0].strip(), value)


@pytest.mark.parametrize(
    ("text", "is_address"),
    [
        ("producer_byte_rate", False),
        ("producer_byte_rate=", False),
        ("producer_byte_rate=-1", False),
        ("producer_byte_rat=1", False),
        ("connection_creation_rate=1", False),
        ("producer_byte_rate=1", True),
        ("connection_creation_rate=1.5", True),
        ("request_percentage=0", False),
        ("request_percentage=nan", False),
        ("request_percentage=inf", False),
    ],
)
def test_what_is_no_quota_of_the_entity_is_refused(text: str, is_address: bool) -> None:
    with pytest.raises(UsageProblem):
        quota_of(text, is_address)
