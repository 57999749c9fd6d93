"""Points in time as people write them, and as the results show them.

Pure: the present time is an argument. A time without a zone is local time.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_AGE = re.compile(r"(\d{1,9})(ms|s|m|h|d|w)\Z")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}(:\d{2})?\Z")
_MILLISECONDS = re.compile(r"\d{12,15}\Z")


def moment_text(wall_ms: int) -> str:
    """Return a point in time with the local zone, as commands repeat what they understood: `2026-11-21T14:03:00+01:00`."""
    try:
        return datetime.fromtimestamp(wall_ms / 1_000).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # in or before year 1, or after 9999
        return f"{wall_ms} ms since 1970"


def parse_moment(text: str, now_ms: int) -> int:
    """Return milliseconds since 1970: `2h` before now, the last `14:03` before now, the beginning of
    `today` or `yesterday`, an ISO 8601 time or date, or milliseconds themselves (12 digits or more).
    Raises ValueError.
    """
    text = text.strip()
    if text == "now":
        return now_ms
    if age := _AGE.match(text):
        return max(0, now_ms - int(age[1]) * _UNIT_MS[age[2]])
    if _MILLISECONDS.match(text):
        return int(text)
    try:
        if text in ("today", "yesterday"):
            midnight = datetime.fromtimestamp(now_ms / 1_000).replace(hour=0, minute=0, second=0, microsecond=0)
            return max(0, int((midnight - timedelta(days=text == "yesterday")).timestamp() * 1_000))
        if _TIME_OF_DAY.match(text):
            return _last_time_of_day(text, now_ms)
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1_000))
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{text!r} is no time; write an age such as 15m, 2h or 7d, yesterday, or a time such as 14:03 or 2026-11-21T14:03"
            " (local time unless it names a zone)"
        ) from error


def _last_time_of_day(text: str, now_ms: int) -> int:
    """Return when the local clock showed `14:03` last."""
    now = datetime.fromtimestamp(now_ms / 1_000)
    hours, minutes, seconds = [*map(int, text.split(":")), 0][:3]
    moment = now.replace(hour=hours, minute=minutes, second=seconds, microsecond=0)
    return max(0, int((moment if moment <= now else moment - timedelta(days=1)).timestamp() * 1_000))
