"""The headers of proxies, as HAProxy and loggen write them."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.senders.listener import ProxyMode
from services.ingest.listeners.proxy_header import NO_HEADER, V2_START, BadProxyHeader, Networks, ProxyHeader, read_proxy_header

V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 40312 514\r\n"
V2_IPV4 = V2_START + b"\x21\x11\x00\x0c" + bytes([192, 0, 2, 7, 198, 51, 100, 1]) + (40312).to_bytes(2, "big") + (514).to_bytes(2, "big")
V2_IPV6 = (
    V2_START
    + b"\x21\x21\x00\x27"
    + socket.inet_pton(socket.AF_INET6, "2001:db8::7")
    + socket.inet_pton(socket.AF_INET6, "2001:db8::1")
    + b"\x9d\x78\x02\x02"
    + b"\x04\x00\x00"
)
"""With an extension of three bytes behind the addresses."""


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (V1, ProxyHeader(len(V1), "192.0.2.7", 40312)),
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 40312 514\n", ProxyHeader(len(V1) - 1, "192.0.2.7", 40312)),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 40312 514\r\n", ProxyHeader(46, "2001:db8::7", 40312)),
        (b"PROXY UNKNOWN\r\n", ProxyHeader(15)),
        (b"PROXY UNKNOWN ff::1 ff::2 1 2\r\n", ProxyHeader(31)),
        (V2_IPV4, ProxyHeader(28, "192.0.2.7", 40312)),
        (V2_IPV6, ProxyHeader(55, "2001:db8::7", 40312)),
        (V2_START + b"\x20\x00\x00\x00", ProxyHeader(16)),  # LOCAL: the proxy's own check
        (V2_START + b"\x21\x31\x00\x02xx", ProxyHeader(18)),  # a Unix socket
        (b"<13>one\n", NO_HEADER),
        (b"\x16\x03\x01", NO_HEADER),
        (b"\r\n<13>one", NO_HEADER),
    ],
)
def test_a_header_is_read_in_both_versions_and_what_is_none_is_left_alone(data: bytes, expected: ProxyHeader) -> None:
    assert read_proxy_header(data + (b"rest" if expected.size_bytes else b""), ProxyMode.YES) == expected


@pytest.mark.parametrize("whole", [V1, V2_IPV4, V2_IPV6], ids=["v1", "v2-ipv4", "v2-ipv6"])
def test_a_header_that_comes_byte_by_byte_is_waited_for(whole: bytes) -> None:
    for size_bytes in range(len(whole)):
        assert read_proxy_header(whole[:size_bytes], ProxyMode.YES) is None
    assert read_proxy_header(whole, ProxyMode.YES) == read_proxy_header(whole + b"<13>x", ProxyMode.YES)


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY \r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 40312\r\n",
        b"PROXY TCP4 2001:db8::7 198.51.100.1 40312 514\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 99999 514\r\n",
        b"PROXY TCP4 " + b"x" * 200,
        V2_START + b"\x31\x11\x00\x0c" + bytes(12),  # version 3
        V2_START + b"\x22\x11\x00\x0c" + bytes(12),  # a command that is not known
        V2_START + b"\x21\x11\x00\x04" + bytes(4),  # too short for its family
        V2_START + b"\x21\x11\xff\xff",  # 64 KiB of extensions
    ],
)
def test_a_broken_header_is_refused(data: bytes) -> None:
    with pytest.raises(BadProxyHeader):
        read_proxy_header(data, ProxyMode.YES)


def test_a_mode_takes_only_its_own_version_and_required_takes_nothing_less() -> None:
    assert read_proxy_header(V2_IPV4, ProxyMode.V1) == NO_HEADER
    assert read_proxy_header(V1, ProxyMode.V2) == NO_HEADER
    assert read_proxy_header(V1, ProxyMode.REQUIRED) == read_proxy_header(V1, ProxyMode.V1)
    with pytest.raises(BadProxyHeader, match="requires"):
        read_proxy_header(b"<13>one\n", ProxyMode.REQUIRED)


@given(
    st.binary(max_size=120)
    | st.builds(lambda tail: V2_START + tail, st.binary(max_size=80))
    | st.builds(lambda tail: b"PROXY " + tail, st.binary(max_size=110))
)
def test_no_bytes_do_worse_than_being_refused(data: bytes) -> None:
    try:
        header = read_proxy_header(data, ProxyMode.YES)
    except BadProxyHeader:
        return
    assert header is None or header.size_bytes <= len(data)


def test_networks_hold_their_addresses_and_no_others() -> None:
    networks = Networks(("192.0.2.0/24", "198.51.100.7", "2001:db8::/32"))
    for address in ("192.0.2.1", "::ffff:192.0.2.255", "198.51.100.7", "2001:db8:ffff::1"):
        assert networks.holds(address)
    for address in ("192.0.3.1", "198.51.100.8", "2001:db9::1", "::1"):
        assert not networks.holds(address)
    assert networks and not Networks(())


@pytest.mark.parametrize("text", ["", "example.com", "192.0.2.0/33", "192.0.2.0/x", "192.0.2.0/"])
def test_what_is_no_network_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="no"):
        Networks((text,))
