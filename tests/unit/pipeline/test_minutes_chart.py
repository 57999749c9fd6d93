"""Errors per minute as a picture."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

from appliance.pipeline.minutes_chart import COLOURS, HEIGHT, REST, draw_errors

NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
SVG = "{http://www.w3.org/2000/svg}"


def row(minute: int, host: str, errors: int) -> dict[str, object]:
    return {"minute": NOON + timedelta(minutes=minute), "host": host, "errors": errors}


def bars(picture: str) -> list[tuple[str, float]]:
    """Colour and height of every part of a bar."""
    found = ElementTree.fromstring(picture).findall(f"{SVG}rect")
    return [(rect.attrib["fill"], float(rect.attrib["height"])) for rect in found if rect.attrib["fill"] in COLOURS and rect.attrib["height"] != "10"]


def test_a_bar_is_as_high_as_the_errors_of_its_minute_split_by_host() -> None:
    picture = draw_errors([row(0, "web1", 10), row(0, "web<2>", 30), row(3, "web1", 15), row(3, "web<2>", 0)])
    assert bars(picture) == [(COLOURS[0], HEIGHT * 0.75), (COLOURS[1], HEIGHT * 0.25), (COLOURS[1], HEIGHT * 0.375)]
    texts = [text.text for text in ElementTree.fromstring(picture).findall(f"{SVG}text")]
    assert texts[:3] == ["errors per minute", "web<2>", "web1"]
    assert [text for text in texts if text and ":" in text] == ["12:00", "12:01", "12:02", "12:03"]


def test_hosts_beyond_the_colours_are_drawn_together() -> None:
    picture = draw_errors([row(0, f"host{number}", 100 - number) for number in range(len(COLOURS) + 3)])
    assert len(bars(picture)) == len(COLOURS)
    assert f">{REST}<" in picture


def test_no_rows_and_no_errors_are_pictures_too() -> None:
    assert "no minutes yet" in draw_errors([])
    assert bars(draw_errors([row(0, "web1", 0)])) == []
