"""Parses the times of syslog senders: RFC 3339 (RFC 5424, rsyslog, loggen) and BSD style (RFC 3164,
Cisco, NX-OS).

Owned by one `SyslogParser`. Everything up to the whole second is cached by its text (senders repeat
it thousands of times), so a date is computed once a second, not once a message. The clock is an
argument. A BSD time has no year, so it gets the latest year that places it at most 31 days after
its arrival (in December, a January date means the next year).

Weak: a BSD time has no zone; the zone is a setting for all senders, and in the hour that daylight
saving repeats the first one is assumed.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

_Value = TypeVar("_Value")

CACHE_ENTRIES_MAX = 4096
BSD_TIME_SIZE = len(b"Oct 11 22:14:15")
_SECOND_SIZE = len(b"2024-10-11T22:14:15")
_FUTURE_DAYS_MAX = 31
_DAY_MS: Final = 86_400_000
_LETTER_T: Final = 0x54
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()

_MONTHS = {name: index + 1 for index, name in enumerate((b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"))}
_SECOND = re.compile(rb"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)\Z")
_FRACTION_AND_ZONE = re.compile(rb"(?:[.,](\d{1,9}))?(?:([Zz])|([+-])(\d\d):?(\d\d))?\Z")
_BSD = re.compile(
    rb"(?:((?:19|20)\d\d) )?([A-Z][a-z]{2}) {1,2}(\d{1,2})(?: ((?:19|20)\d\d))? (\d\d):(\d\d):(\d\d)"
    rb"(?:[.,](\d{1,9}))?(?: (UTC|GMT)(?=[ :]|\Z))?(?: ((?:19|20)\d\d)(?= |:(?: |\Z)|\Z))?"
)


class Instant(NamedTuple):
    """A sender's time: `time_ms` since the epoch, `text` in RFC 3339 (the sender's own if it is,
    otherwise UTC).
    """

    time_ms: int
    text: bytes


@lru_cache(maxsize=256)
def _second_text(seconds: int) -> bytes:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S").rjust(_SECOND_SIZE, "0").encode()


def rfc3339_text(time_ms: int) -> bytes:
    """`2024-10-11T22:14:15.003Z`"""
    seconds, milliseconds = divmod(time_ms, 1000)
    return _second_text(seconds) + b".%03dZ" % milliseconds


class TimestampReader:
    """The parsers of both styles with their caches; `time_zone` is the zone of times that name
    none.
    """

    def __init__(self, time_zone: tzinfo = UTC) -> None:
        self._time_zone = time_zone
        self._seconds_utc: dict[bytes, int] = {}
        self._seconds_local: dict[bytes, int] = {}
        self._zones: dict[bytes, int] = {b"Z": 0, b"+00:00": 0}
        self._bsd: dict[bytes, Instant] = {}
        self._without_zone: dict[bytes, Instant] = {}
        self._arrival_day = -1

    @property
    def largest_cache_count(self) -> int:
        """The number of entries of the largest cache."""
        return max(len(self._seconds_utc), len(self._seconds_local), len(self._zones), len(self._bsd), len(self._without_zone))

    def read_rfc3339(self, text: bytes) -> Instant | None:
        """RFC 3339 with any number of fraction digits; also with a space instead of T, and without
        a zone. None if it is not a time.
        """
        if len(text) == _SECOND_SIZE and (instant := self._without_zone.get(text)):
            return instant
        second_ms = self._seconds_utc.get(text[:_SECOND_SIZE])
        if second_ms is not None:
            # The two forms of nearly every sender: the fraction follows the second, and the zone was seen before.
            zone_size = 1 if text[-1] == 0x5A else 6
            zone_ms = self._zones.get(text[-zone_size:])
            fraction = text[_SECOND_SIZE:-zone_size]
            if zone_ms is not None:
                if not fraction:
                    return Instant(second_ms - zone_ms, text)
                if fraction[0] == 0x2E and 4 <= len(fraction) <= 10 and fraction[1:].isdigit():
                    return Instant(second_ms + int(fraction[1:4]) - zone_ms, text)
        return self._read_rfc3339_slowly(text)

    def read_seen_ms(self, text: bytes) -> int | None:
        """Return the milliseconds of a time whose second and zone were seen before and whose text
        is kept; None for any other. The fast path.
        """
        second_ms = self._seconds_utc.get(text[:_SECOND_SIZE])
        if second_ms is None:
            return None
        zone_size = 1 if text[-1] == 0x5A else 6
        zone_ms = self._zones.get(text[-zone_size:])
        if zone_ms is None:
            return None
        fraction = text[_SECOND_SIZE:-zone_size]
        if not fraction:
            return second_ms - zone_ms
        if fraction[0] == 0x2E and 4 <= len(fraction) <= 10 and fraction[1:].isdigit():
            return second_ms + int(fraction[1:4]) - zone_ms
        return None

    def _read_rfc3339_slowly(self, text: bytes) -> Instant | None:
        suffix = _FRACTION_AND_ZONE.match(text, _SECOND_SIZE)
        if suffix is None:
            return None
        fraction, utc, sign, hours, minutes = suffix.groups()
        milliseconds = int((fraction + b"00")[:3]) if fraction else 0
        if not utc and not sign:
            second_ms = self._second_ms(text[:_SECOND_SIZE], self._seconds_local, self._time_zone)
            if second_ms is None or second_ms < 0:
                return None
            instant = Instant(second_ms + milliseconds, rfc3339_text(second_ms + milliseconds))
            if not fraction:
                _remember(self._without_zone, text, instant)
            return instant
        second_ms = self._second_ms(text[:_SECOND_SIZE], self._seconds_utc, UTC)
        zone_ms = 0 if utc else (int(hours) * 60 + int(minutes)) * (-60_000 if sign == b"-" else 60_000)
        if second_ms is None or abs(zone_ms) >= _DAY_MS:
            return None
        if sign and len(self._zones) < CACHE_ENTRIES_MAX and text[-3:-2] == b":":
            self._zones[text[-6:]] = zone_ms
        well_formed = text[10:11] == b"T" and (utc == b"Z" or text[-3:-2] == b":") and text[_SECOND_SIZE : _SECOND_SIZE + 1] != b","
        time_ms = second_ms + milliseconds - zone_ms
        return Instant(time_ms, text if well_formed else rfc3339_text(time_ms)) if time_ms >= 0 else None

    def _second_ms(self, text: bytes, cache: dict[bytes, int], zone: tzinfo) -> int | None:
        second_ms = cache.get(text)
        if second_ms is None and (match := _SECOND.match(text)):
            year, month, day, hour, minute, second = map(int, match.groups())
            second_ms = epoch_ms(year, month, day, hour, minute, second, zone)
            # A cached second is never before the epoch in any zone, so the sender's text is kept without a check.
            if second_ms is not None and second_ms >= _DAY_MS and (text[10] == _LETTER_T or cache is self._seconds_local):
                _remember(cache, text, second_ms)
        return second_ms

    def read_bsd(self, text: bytes, arrival_ms: int) -> Instant | None:
        """Parse exactly the 15 bytes of RFC 3164 (`Oct 11 22:14:15`); None for anything else."""
        if arrival_ms // _DAY_MS != self._arrival_day:
            self._bsd.clear()  # the year of a month may have changed
            self._arrival_day = arrival_ms // _DAY_MS
        instant = self._bsd.get(text)
        if instant is None and (found := self.find_bsd(text, 0, arrival_ms)) and found[1] == BSD_TIME_SIZE == len(text):
            instant = found[0]
            _remember(self._bsd, text, instant)
        return instant

    def find_bsd(self, text: bytes, position: int, arrival_ms: int) -> tuple[Instant, int] | None:
        """Return a BSD time at `position` in any form (year before, inside or after, fraction of a
        second, day not padded, UTC), and where it ends.
        """
        match = _BSD.match(text, position)
        if match is None:
            return None
        year_before, month_name, day, year_amid, hour, minute, second, fraction, utc, year_behind = match.groups()
        month = _MONTHS.get(month_name.lower())
        year = year_before or year_amid or year_behind
        if month is None:
            return None
        fields = (month, int(day), int(hour), int(minute), int(second))
        zone = UTC if utc else self._time_zone
        second_ms = epoch_ms(int(year), *fields, zone) if year else _guess_year(fields, zone, arrival_ms)
        if second_ms is None or second_ms < 0:
            return None
        time_ms = second_ms + (int((fraction + b"00")[:3]) if fraction else 0)
        return Instant(time_ms, rfc3339_text(time_ms)), match.end()


def _guess_year(fields: tuple[int, int, int, int, int], zone: tzinfo, arrival_ms: int) -> int | None:
    arrival_day = arrival_ms // _DAY_MS
    limit_ms = (arrival_day + 1 + _FUTURE_DAYS_MAX) * _DAY_MS
    next_year = date.fromordinal(_EPOCH_ORDINAL + arrival_day).year + 1
    for year in range(next_year, next_year - 10, -1):  # far enough to include a 29 February
        second_ms = epoch_ms(year, *fields, zone)
        if second_ms is not None and second_ms < limit_ms:
            return second_ms
    return None


def epoch_ms(year: int, month: int, day: int, hour: int, minute: int, second: int, zone: tzinfo) -> int | None:
    """Return milliseconds since the epoch, None for a day that does not exist. A leap second (60)
    counts as the first second of the next minute.
    """
    leap = second == 60
    try:
        moment = datetime(year, month, day, hour, minute, 59 if leap else second, tzinfo=zone)
        return (int(moment.timestamp()) + leap) * 1000
    except (ValueError, OverflowError):
        return None


def _remember(cache: dict[bytes, _Value], text: bytes, value: _Value) -> None:
    if len(cache) >= CACHE_ENTRIES_MAX:
        cache.clear()
    cache[text] = value
