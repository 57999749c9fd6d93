"""Which topics were searched, as a search notes it and a log-writer reads it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.base.layout import BoxLayout
from appliance.base.model import TopicId
from appliance.ipc.disk_reports import SEARCHED_MS, SearchedTopic, mark_searched, read_searched


def test_a_searched_topic_is_noted_once_until_a_summary_is_lacking(tmp_path: Path) -> None:
    layout = BoxLayout(str(tmp_path))
    (tmp_path / "net").mkdir()
    one, other = TopicId(bytes(16)), TopicId(bytes(15) + b"1")
    hour = 3_600_000
    assert read_searched(layout, 0) == {}
    mark_searched(layout, one, hour, False, False)
    mark_searched(layout, one, hour + 5, False, False)
    assert read_searched(layout, 0) == {one: SearchedTopic(hour, False)}
    mark_searched(layout, one, hour + 6, True, False)
    mark_searched(layout, one, hour + 7, True, True)
    assert read_searched(layout, 0) == {one: SearchedTopic(hour + 7, True)}
    mark_searched(layout, one, 3 * hour, False, False)
    assert read_searched(layout, 0) == {one: SearchedTopic(3 * hour, False)}
    mark_searched(layout, other, 3 * hour + SEARCHED_MS + 1, False, False)
    assert set(read_searched(layout, 0)) == {other}
    assert read_searched(layout, 3 * hour + SEARCHED_MS + 2) == {}


def test_two_searches_may_create_the_directory_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = BoxLayout(str(tmp_path))
    (tmp_path / "net").mkdir()
    mark_searched(layout, TopicId(bytes(16)), 1, False, False)
    monkeypatch.setattr(os.path, "isdir", lambda _path: False)
    mark_searched(layout, TopicId(bytes(15) + b"1"), 1, False, False)
    assert len(read_searched(layout, 0)) == 2
