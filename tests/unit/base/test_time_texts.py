"""Points in time as people write them."""

from __future__ import annotations

from datetime import datetime

import pytest

from appliance.base.time_texts import parse_moment

NOW = datetime(2026, 11, 21, 9, 30, 15)


def moment(*parts: int) -> int:
    return int(datetime(*parts).timestamp() * 1_000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("9:30", (2026, 11, 21, 9, 30)),
        ("09:30:15", (2026, 11, 21, 9, 30, 15)),
        ("09:30:16", (2026, 11, 20, 9, 30, 16)),
        ("14:03", (2026, 11, 20, 14, 3)),
        ("today", (2026, 11, 21)),
        ("yesterday", (2026, 11, 20)),
        ("2026-11-19T14:03", (2026, 11, 19, 14, 3)),
    ],
)
def test_a_time_of_day_is_the_last_one_before_now(text: str, parts: tuple[int, ...]) -> None:
    assert parse_moment(text, int(NOW.timestamp() * 1_000)) == moment(*parts)


@pytest.mark.parametrize("text", ["24:00", "9:60", "9", "tomorrow", "-1:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no time; write an age"):
        parse_moment(text, int(NOW.timestamp() * 1_000))
