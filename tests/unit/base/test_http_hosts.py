"""Which Host headers name a box, and which requests come from pages of other sites."""

from __future__ import annotations

import socket

import pytest

from appliance.base.http_hosts import HOST_BYTES_MAX, box_names, is_allowed_origin, is_cross_site, is_known_host, is_navigation
from appliance.base.settings import Box

NAMES = frozenset({"localhost", "logs.example.com"})


@pytest.mark.parametrize(
    "host",
    [b"", b"localhost", b"localhost:8081", b"Logs.Example.COM", b"logs.example.com.", b"192.0.2.7:80", b"192.0.2.7", b"[::1]", b"[2001:db8::1]:8081", b"::1"],
)
def test_addresses_names_of_the_box_and_a_missing_host_are_known(host: bytes) -> None:
    assert is_known_host(host, NAMES)


@pytest.mark.parametrize(
    "host",
    [b"evil.example", b"logs.example.com.evil.example", b"logs.example.com:80:80", b"127.1", b"2130706433", b"0x7f.0.0.1", b"[evil]", b"[::1", b"@localhost",
     b"localhost, evil.example", b"\xff\xfe", b"\0", b"localhost" + b" " * HOST_BYTES_MAX],
)  # fmt: skip
def test_every_other_name_is_unknown(host: bytes) -> None:
    assert not is_known_host(host, NAMES)


def test_a_box_answers_to_its_settings_and_the_name_of_its_machine() -> None:
    settings: dict[str, str | int | bool] = {"http.allowed.hosts": "Logs.example.com, alias.example"}
    box = Box("b", 1, [], "/state", "box.example", "advertised.example", 1, 2, 3, settings=settings)
    host_name = socket.gethostname().lower()
    expected = {"localhost", "box.example", "advertised.example", "logs.example.com", "alias.example", host_name, host_name.partition(".")[0]}
    assert box_names(box) >= expected


def test_a_request_without_the_headers_of_browsers_comes_from_no_site() -> None:
    assert not is_cross_site({b"host": b"box"}, b"box")


@pytest.mark.parametrize(
    "headers",
    [
        {b"origin": b"http://evil.example"},
        {b"origin": b"http://box:81"},
        {b"origin": b"null"},
        {b"origin": b""},
        {b"sec-fetch-site": b"cross-site"},
        {b"sec-fetch-site": b"same-site"},
        {b"origin": b"http://box", b"sec-fetch-site": b"cross-site"},
    ],
)
def test_another_origin_or_site_is_recognised(headers: dict[bytes, bytes]) -> None:
    assert is_cross_site(headers, b"box")


@pytest.mark.parametrize("headers", [{b"origin": b"https://BOX"}, {b"sec-fetch-site": b"same-origin"}, {b"sec-fetch-site": b"none"}])
def test_a_page_of_the_box_and_an_address_that_was_typed_are_its_own(headers: dict[bytes, bytes]) -> None:
    assert not is_cross_site(headers, b"box")


def test_only_a_page_in_a_tab_is_a_navigation() -> None:
    assert is_navigation({b"sec-fetch-mode": b"navigate", b"sec-fetch-dest": b"document"})
    assert not is_navigation({b"sec-fetch-mode": b"navigate", b"sec-fetch-dest": b"iframe"})
    assert not is_navigation({b"sec-fetch-mode": b"no-cors", b"sec-fetch-dest": b"document"})
    assert not is_navigation({b"sec-fetch-mode": b"navigate", b"sec-fetch-dest": b"document", b"origin": b"null"}), "a form was sent"


def test_an_origin_is_allowed_as_a_whole_or_by_a_star() -> None:
    assert is_allowed_origin(b"https://App.example", ["https://app.example"])
    assert is_allowed_origin(b"null", ["*"])
    assert not is_allowed_origin(b"https://app.example.evil", ["https://app.example"])
    assert not is_allowed_origin(b"https://app.example", [])
