"""Principals and origins of requests (`appliance/security/principals.py`)."""

from __future__ import annotations

import struct

import pytest

from appliance.security.principals import ANONYMOUS, BY_TOKEN, OF_BOX, UNAUTHENTICATED, Principal, RequestOrigin


def test_a_principal_is_written_as_kafka_writes_it() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert Principal.from_text("User:CN=a,O=b:c") == Principal("User", "CN=a,O=b:c")


@pytest.mark.parametrize("text", ["", "alice", ":alice", "User:"])
def test_a_text_without_type_or_name_is_no_principal(text: str) -> None:
    with pytest.raises(ValueError, match="User:NAME"):
        Principal.from_text(text)


@pytest.mark.parametrize("origin", [UNAUTHENTICATED, OF_BOX, RequestOrigin(Principal("User", "Åsa"), "CLIENTS", BY_TOKEN)])
def test_an_origin_survives_its_encoding(origin: RequestOrigin) -> None:
    assert RequestOrigin.unpack(origin.pack()) == origin


def test_only_the_box_itself_and_local_administration_are_privileged() -> None:
    assert OF_BOX.is_privileged
    assert not UNAUTHENTICATED.is_privileged


@pytest.mark.parametrize("packed", [b"", UNAUTHENTICATED.pack()[:-1], UNAUTHENTICATED.pack() + b"x"])
def test_cut_bytes_are_no_origin(packed: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        RequestOrigin.unpack(packed)
