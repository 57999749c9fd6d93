"""When a run of a table is due, what is remembered of it, and what the commands show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from appliance.base.model import LeaderEpoch, Offset, Position
from appliance.command import table as command
from appliance.command.finding import FoundBox
from appliance.shm.partition_table import ROLE_LEADER, Row
from lab.scratch_layout import scratch_layout
from services.tabler.table_rules import REPAIR_MS, MissingRange, TableOrder, TableResult, pending_bytes, plan_partition, retry_ms, rotated, table_order
from services.tabler.table_state import CHECK_MS, Remembered, TableMemory, TableState
from tests.unit.base.test_settings import make_box
from tests.unit.services.search.test_partition_scan import TOPIC_ID

ORDER = TableOrder("t", TOPIC_ID, "delta", "/srv/tables", 10_000, 1 << 20)
DONE = TableResult("table", 3, {0: 5}, rows=5, committed=True)


def row(end: int, position: int = 0, base: int = 0, log_start: int = 0, **more: Any) -> Row:
    return Row(
        TOPIC_ID, 0, 1, ROLE_LEADER, LeaderEpoch(0), Offset(log_start), Offset(end), Offset(end), Offset(end), 1, 1, 0,
        Offset(base), Position(position), Offset(base), Position(position), 1,
    )._replace(**more)  # fmt: skip


@pytest.fixture
def state() -> TableState:
    return TableState(ORDER, 1_000)


def test_a_run_is_due_at_once_then_by_time_or_by_bytes(state: TableState) -> None:
    assert not state.is_due(1_000), "this box leads nothing of it"
    state.set_rows({0: row(5, 100)}, 1_000)
    assert state.is_due(1_000)
    state.on_begun()
    state.on_result(DONE, 1_000, 7)
    state.set_rows({0: row(5, 100)}, 11_000)
    assert not state.is_due(11_000), "nothing is new"
    assert state.is_due(1_000 + CHECK_MS), "is the table still there?"
    state.set_rows({0: row(6, 100 + (1 << 20) - 1)}, 2_000)
    assert not state.is_due(10_999) and state.is_due(11_000)
    state.set_rows({0: row(7, 100 + (1 << 20))}, 2_000)
    assert state.is_due(2_000)
    state.on_result(DONE._replace(is_full=True), 3_000, 7)
    assert state.is_due(3_000), "there is more"


def test_failures_are_retried_later_and_later_and_a_success_ends_them(state: TableState) -> None:
    state.set_rows({0: row(5)}, 1_000)
    assert state.document()["failing"] == 0
    assert state.on_failure("no space", False, 1_000) and not state.on_failure("no space", False, 2_000), "said once"
    assert not state.is_due(3_999) and state.is_due(4_000)
    assert state.document()["state"] == "failing" and state.document()["lag"] == 5
    assert state.document()["failing"] == 1
    state.on_result(DONE, 5_000, 7)
    assert (state.document()["state"], state.document()["failures"], state.document()["lag"]) == ("ok", 2, 0)
    assert [retry_ms(count) for count in (1, 2, 3, 100)] == [1_000, 2_000, 4_000, 60_000]


def test_a_damaged_batch_has_time_to_be_repaired(state: TableState) -> None:
    damaged = DONE._replace(damaged=(MissingRange(0, 5, 6, "damaged batch"),))
    state.on_result(damaged, 1_000, 7)
    assert "waiting 10 minutes" in state.problem and not state.accepted_damage(999 + REPAIR_MS)
    state.on_result(damaged, 2_000, 7)
    assert state.accepted_damage(1_000 + REPAIR_MS) == {(0, 5)}
    state.on_result(DONE, 3_000, 7)
    assert not state.accepted_damage(1_000 + REPAIR_MS), "it was repaired"


def test_a_partition_goes_on_at_the_offset_of_the_table_up_to_the_last_stable_one() -> None:
    assert plan_partition(row(10, log_start=3), None, None) == (3, 10, None)
    assert plan_partition(row(10, log_start=3), 4, None) == (4, 10, None)
    assert plan_partition(row(10), 4, 8) == (8, 10, None), "up to there was nothing but aborted records"
    assert plan_partition(row(10, last_stable_offset=6), 4, None) == (4, 6, None)
    assert plan_partition(row(10, high_watermark=2), 4, None) == (4, 4, None), "a new leader does not know it yet"
    assert "log ends at 10" in (plan_partition(row(10), 11, None).problem or "")
    assert pending_bytes({0: (0, 10)}, {0: (0, 30)}) == 20 and pending_bytes({0: (0, 10)}, {0: (50, 5)}) is None
    assert [rotated([2, 0, 1], turn) for turn in range(3)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]


def test_configs_ask_for_a_table() -> None:
    configs = {"millrace.table.format": "delta", "millrace.table.location": "/srv/tables", "millrace.table.interval.ms": "10000"}
    assert table_order("t", TOPIC_ID, configs) == ORDER._replace(bytes_max=64 << 20) and ORDER.directory == "/srv/tables/t"
    assert table_order("t", TOPIC_ID, {**configs, "millrace.table.format": "none"}) is None


def test_which_table_was_there_is_remembered_until_the_topic_is_none(tmp_path: Path) -> None:
    memory = TableMemory(str(tmp_path))
    assert memory.read(ORDER) == Remembered() and memory.remembered() == set()
    memory.write(ORDER, Remembered("an id", {3: (7, 10)}))
    assert TableMemory(str(tmp_path)).read(ORDER) == ("an id", {3: (7, 10)}) and memory.remembered() == {TOPIC_ID}
    assert memory.read(ORDER._replace(location="/srv/others")) == Remembered(), "another directory gets another table"
    (tmp_path / "tables" / f"{TOPIC_ID}.json").write_text('{"directory":"/srv/tables/t","table_id":"of the release before"}')
    assert memory.read(ORDER) == ("of the release before", {})
    memory.forget(TOPIC_ID)
    assert memory.read(ORDER) == Remembered()


def test_the_commands_show_what_the_tabler_wrote(state: TableState, monkeypatch: pytest.MonkeyPatch) -> None:
    state.set_rows({0: row(9)}, 1_000)
    state.on_result(DONE._replace(lost=(MissingRange(0, 2, 4, "retention"),)), 1_000, 7)
    state.on_failure("/srv/tables does not exist", False, 2_000)
    with scratch_layout() as layout:
        monkeypatch.setattr(command, "find_running_box", lambda _data, _config: FoundBox(layout, json.loads(make_box().to_json())))
        app = command.build_app(None)
        assert "tables.locations" in str(CliRunner().invoke(app, ["list"]).exception)
        Path(layout.tables_file).write_text(json.dumps({"tables": [state.document()]}))
        shown = CliRunner().invoke(app, ["list"])
        assert shown.stdout.splitlines()[1].split()[:5] == ["t", "failing", "4", "5", "2"] and "does not exist" in shown.output
        described = CliRunner().invoke(app, ["describe", "t"]).stdout
        assert "lost: partition 0, offsets 2 to 3: retention" in described and described.splitlines()[-1].split() == ["0", "0", "5", "9", "4"]
        assert json.loads(CliRunner().invoke(app, ["describe", "t", "--json"]).stdout)["problem"].startswith("/srv/tables")
        assert "is no table" in str(CliRunner().invoke(app, ["describe", "other"]).exception)


def test_other_files_in_the_memory_of_tables_are_passed_over(tmp_path: Path) -> None:
    memory = TableMemory(str(tmp_path))
    memory.write(ORDER, Remembered("table"))
    for name in ("x.json", "notes.json", f"{TOPIC_ID}", f"{TOPIC_ID}.json.tmp", "ü.json"):
        (tmp_path / "tables" / name).touch()
    assert memory.remembered() == {TOPIC_ID}
