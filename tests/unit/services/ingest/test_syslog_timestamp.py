"""Times as senders write them, against what `datetime` says they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from services.ingest.protocols.syslog.syslog_timestamp import CACHE_ENTRIES_MAX, TimestampReader, rfc3339_text


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    "text",
    [
        "2024-10-11T22:14:15Z",
        "2024-10-11T22:14:15.003Z",
        "2024-10-11T22:14:15.003123+02:00",
        "2024-10-11T22:14:15-07:30",
        "2024-02-29T00:00:00.999999+00:00",
    ],
)
def test_rfc3339_times_are_read_twice_alike_and_keep_their_text(text: str) -> None:
    reader = TimestampReader()
    first, second = reader.read_rfc3339(text.encode()), reader.read_rfc3339(text.encode())
    assert first == second == (ms(text), text.encode())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2024-10-11t22:14:15Z", "2024-10-11T22:14:15.000Z"),
        ("2024-10-11 22:14:15.5+02:00", "2024-10-11T20:14:15.500Z"),
        ("1924-10-11T22:14:15Z", None),
        ("1969-12-31T23:59:59.5Z", None),
        ("1970-01-01T00:30:00+02:00", None),
        ("1970-01-02T00:30:00+02:00", "1970-01-02T00:30:00+02:00"),
    ],
)
def test_other_times_are_read_twice_alike_too(text: str, found: str | None) -> None:
    reader = TimestampReader()
    for _ in range(2):
        instant = reader.read_rfc3339(text.encode())
        assert (instant and instant.text.decode()) == found


def test_a_cached_second_serves_another_zone_and_fraction() -> None:
    reader = TimestampReader()
    reader.read_rfc3339(b"2024-10-11T22:14:15.003+02:00")
    for text in ("2024-10-11T22:14:15.5+02:00", "2024-10-11T22:14:15.123456789-05:00", "2024-10-11T22:14:15Z", "2024-10-11T22:14:15.25Z"):
        instant = reader.read_rfc3339(text.encode())
        assert instant is not None and instant.time_ms == ms(text), text


@pytest.mark.parametrize("text", ["2024-10-11 22:14:15.003Z", "2024-10-11t22:14:15,003z", "2024-10-11T22:14:15.003+0000"])
def test_sloppy_iso_times_are_read_and_written_properly(text: str) -> None:
    assert TimestampReader().read_rfc3339(text.encode()) == (ms("2024-10-11T22:14:15.003Z"), b"2024-10-11T22:14:15.003Z")


def test_an_iso_time_without_zone_is_in_the_zone_of_the_setting() -> None:
    reader = TimestampReader(ZoneInfo("Europe/Berlin"))
    for _ in range(2):
        assert reader.read_rfc3339(b"2024-10-11T22:14:15") == (ms("2024-10-11T20:14:15Z"), b"2024-10-11T20:14:15.000Z")
    assert reader.read_rfc3339(b"2024-10-11T22:14:15Z") == (ms("2024-10-11T22:14:15Z"), b"2024-10-11T22:14:15Z")


def test_a_leap_second_is_a_time() -> None:
    instant = TimestampReader().read_rfc3339(b"2016-12-31T23:59:60Z")
    assert instant is not None and instant.time_ms == ms("2017-01-01T00:00:00Z")


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"-", b"Z", b"yesterday", b"2024-13-11T22:14:15Z", b"2024-02-30T22:14:15Z"),
        *(b"2024-10-11T25:14:15Z", b"2024-10-11T22:14:15X", b"2024-10-11T22:14:15.Z"),
    ],
)
def test_what_is_no_time_is_refused(text: bytes) -> None:
    reader = TimestampReader()
    reader.read_rfc3339(b"2024-10-11T22:14:15Z")
    assert reader.read_rfc3339(text) is None


@pytest.mark.parametrize(
    ("arrival", "text", "expected"),
    [
        ("2025-01-01T00:00:10Z", "Dec 31 23:59:59", "2024-12-31T23:59:59Z"),
        ("2024-12-31T23:59:50Z", "Jan  1 00:00:01", "2025-01-01T00:00:01Z"),
        ("2024-10-11T22:14:20Z", "Oct 11 22:14:15", "2024-10-11T22:14:15Z"),
        ("2024-10-11T22:14:20Z", "Oct 14 22:14:15", "2024-10-14T22:14:15Z"),
        ("2024-10-11T22:14:20Z", "Dec  1 00:00:00", "2023-12-01T00:00:00Z"),
        ("2025-03-01T00:00:00Z", "Feb 29 12:00:00", "2024-02-29T12:00:00Z"),
        ("2103-03-01T00:00:00Z", "Feb 29 12:00:00", "2096-02-29T12:00:00Z"),
    ],
)
def test_the_year_of_a_bsd_time_is_guessed_from_its_arrival(arrival: str, text: str, expected: str) -> None:
    instant = TimestampReader().read_bsd(text.encode(), ms(arrival))
    assert instant is not None and instant.time_ms == ms(expected)


def test_the_guess_is_made_again_on_another_day_of_arrival() -> None:
    reader = TimestampReader()
    first = reader.read_bsd(b"Dec 31 23:59:59", ms("2024-12-31T23:59:59Z"))
    second = reader.read_bsd(b"Dec 31 23:59:59", ms("2026-01-01T00:00:00Z"))
    assert first is not None and second is not None
    assert second.time_ms - first.time_ms == 365 * 86_400_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"Oct 11 22:14:15", "2024-10-11T22:14:15Z"),
        (b"Oct  1 22:14:15", "2024-10-01T22:14:15Z"),
        (b"Oct 1 22:14:15", "2024-10-01T22:14:15Z"),
        (b"Oct 11 2021 22:14:15", "2021-10-11T22:14:15Z"),
        (b"2021 Oct 11 22:14:15", "2021-10-11T22:14:15Z"),
        (b"Oct 11 22:14:15 2021", "2021-10-11T22:14:15Z"),
        (b"Oct 11 22:14:15.250", "2024-10-11T22:14:15.250Z"),
        (b"Oct 11 22:14:15.250 UTC", "2024-10-11T22:14:15.250Z"),
    ],
)
def test_bsd_times_come_in_many_forms(text: bytes, expected: str) -> None:
    found = TimestampReader().find_bsd(b"<13>" + text + b" host", 4, ms("2024-10-12T00:00:00Z"))
    assert found is not None
    assert (found[0].time_ms, found[1]) == (ms(expected), 4 + len(text))


def test_bsd_times_are_in_the_zone_of_the_setting_unless_they_say_utc() -> None:
    reader = TimestampReader(timezone(timedelta(hours=2)))
    local = reader.find_bsd(b"Oct 11 22:14:15", 0, ms("2024-10-12T00:00:00Z"))
    utc = reader.find_bsd(b"Oct 11 22:14:15 UTC", 0, ms("2024-10-12T00:00:00Z"))
    assert local is not None and utc is not None
    assert utc[0].time_ms - local[0].time_ms == 2 * 3600 * 1000


@pytest.mark.parametrize("text", [b"", b"Okt 11 22:14:15", b"Feb 30 22:14:15", b"Oct 11 22:61:15", b"Oct 11 22:14", b"Oct 1 22:14:155"])
def test_what_is_no_bsd_time_is_refused(text: bytes) -> None:
    assert TimestampReader().read_bsd(text[:15], ms("2024-10-12T00:00:00Z")) is None


def test_caches_are_bounded() -> None:
    reader = TimestampReader()
    start = datetime(2024, 1, 1, tzinfo=UTC)
    for number in range(CACHE_ENTRIES_MAX + 10):
        moment = start + timedelta(seconds=number)
        reader.read_rfc3339(moment.strftime("%Y-%m-%dT%H:%M:%SZ").encode())
        reader.read_bsd(moment.strftime("%b %e %H:%M:%S").encode(), ms("2024-02-01T00:00:00Z"))
    assert 0 < reader.largest_cache_count <= CACHE_ENTRIES_MAX


def test_rendered_times_are_rfc3339() -> None:
    assert rfc3339_text(ms("2024-10-11T22:14:15.007Z")) == b"2024-10-11T22:14:15.007Z"
