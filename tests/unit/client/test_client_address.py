from __future__ import annotations

import pytest

from appliance.client.address import Address, parse_addresses


def test_addresses_are_separated_by_commas_and_the_default_port_is_9092() -> None:
    assert parse_addresses("a:1, b ,[::1]:3,[::1]") == [Address("a", 1), Address("b", 9092), Address("::1", 3), Address("::1", 9092)]


@pytest.mark.parametrize("text", ["", ",", ":9092", "a:0", "a:65536", "a:x", "::1:9092", "[::1:9092", "[::1]9092", "unix:kafka.sock"])
def test_what_is_no_address_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST|port|begins with /"):
        parse_addresses(text)


def test_an_address_prints_as_it_is_written() -> None:
    for text in ("a:1", "[::1]:3", "unix:/run/millrace/box/net/kafka.sock"):
        assert str(parse_addresses(text)[0]) == text
