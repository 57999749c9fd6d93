"""New, silent and back: decided minute by minute, however the minutes come in micro-batches."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.pipeline.stream_job import BACK, NEW, SILENT, HostEvent, Roster, load_job, plan_roster

EMPTY = Roster({})


def test_a_host_is_new_once() -> None:
    roster, events = plan_roster(EMPTY, {"a": [10, 11]}, 5)
    assert events == [HostEvent(10, "a", NEW, 10)]
    _, again = plan_roster(roster, {"a": [12]}, 5)
    assert again == []


def test_a_host_is_silent_after_so_many_minutes_of_others_and_back_when_it_sends_again() -> None:
    roster, _ = plan_roster(EMPTY, {"a": [10], "b": [10]}, 5)
    roster, events = plan_roster(roster, {"b": [11, 12, 13, 14]}, 5)
    assert events == []
    roster, events = plan_roster(roster, {"b": [15, 16]}, 5)
    assert events == [HostEvent(15, "a", SILENT, 10)]
    _, events = plan_roster(roster, {"a": [18], "b": [17, 18]}, 5)
    assert events == [HostEvent(18, "a", BACK, 10)]


def test_silence_within_one_micro_batch_is_seen_too() -> None:
    _, events = plan_roster(EMPTY, {"a": [1, 20]}, 5)
    assert events == [HostEvent(1, "a", NEW, 1), HostEvent(6, "a", SILENT, 1), HostEvent(20, "a", BACK, 1)]


def test_the_roster_survives_being_kept_as_state() -> None:
    roster, _ = plan_roster(EMPTY, {"a": [1, 20], "b": [3]}, 5)
    assert Roster.from_state(roster.to_state()) == roster
    assert Roster.from_state({}) == EMPTY


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=30), st.lists(st.integers(0, 40), max_size=4), st.integers(1, 6))
def test_where_micro_batches_end_changes_nothing(sent: list[tuple[str, int]], cuts: list[int], silent_minutes: int) -> None:
    def minutes(first: int, end: int) -> dict[str, list[int]]:
        return {
            host: [minute for name, minute in sent if name == host and first <= minute < end]
            for host in {name for name, minute in sent if first <= minute < end}
        }

    whole, expected = plan_roster(EMPTY, minutes(0, 100), silent_minutes)
    roster, events = EMPTY, []
    bounds = [0, *sorted(cuts), 100]
    for first, end in pairwise(bounds):
        roster, some = plan_roster(roster, minutes(first, end), silent_minutes)
        events += some
    assert roster == whole
    assert sorted(events) == expected


def test_a_file_of_the_current_directory_stands_for_no_module_that_is_imported_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_jobs_of_a_test.py").write_text("def count(rows):\n    return rows\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    assert load_job("own_jobs_of_a_test:count").name == "own_jobs_of_a_test:count"
    assert sys.path[-1] == str(tmp_path) and str(tmp_path) not in sys.path[:-1]
