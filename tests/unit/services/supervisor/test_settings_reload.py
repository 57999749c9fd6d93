"""What a reload applies, and what it names; and how a process takes it over."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from appliance.base.layout import BoxLayout, Disk
from appliance.base.logging import LEVEL_VARIABLE, Logger, Severity
from appliance.base.setting_row import SettingValue
from appliance.base.settings import Box, SenderSocket, default_settings
from appliance.runtime.preflight import write_box
from appliance.runtime.settings_watch import SettingsWatch
from services.supervisor.settings_reload import ALSO_OF_INGEST, SENDERS, at_once_settings, plan_reload

ROOT = Path(__file__).parents[4]


def running_box(settings: dict[str, SettingValue] | None = None, **options: object) -> Box:
    whole = default_settings() | (settings or {})
    box = Box("b", 1, [Disk("d0", "/d0")], "/state", "127.0.0.1", "127.0.0.1", 9092, 5514, 8080, ingest_port=8081, settings=whole, sender_tables={"route": []})
    return box._replace(**options)  # type: ignore[arg-type]


def test_a_file_that_did_not_change_changes_nothing() -> None:
    plan = plan_reload(running_box(), running_box())
    assert plan.box == running_box() and not (plan.at_once or plan.by_ingest or plan.waiting or plan.by_process)


def test_each_setting_is_applied_or_named_with_what_needs_a_restart() -> None:
    wanted = {
        "log.retention.ms": 7,
        "max.connection.creation.rate": 9,
        "ingest.batch.ms": 3,
        "message.max.bytes": 1 << 19,
        "ingest.arena.bytes": 1 << 27,
        "search.processes.max": 3,
    }
    plan = plan_reload(running_box({"ingest.arena.bytes": 1 << 26}), running_box(wanted))  # type: ignore[arg-type]
    assert (sorted(plan.at_once), sorted(plan.by_ingest), plan.waiting) == (
        ["log.retention.ms", "max.connection.creation.rate"],
        ["ingest.batch.ms", "message.max.bytes"],
        ["ingest.arena.bytes"],
    )
    assert plan.by_process == {"console": ["search.processes.max"]} and plan.ingests == ["ingest@0"]
    assert plan.box.reloads == 1 and plan.box.integer("log.retention.ms") == 7 and plan.box.integer("ingest.arena.bytes") == 1 << 26
    assert plan.answer("/s.toml")["waiting:box"] == "ingest.arena.bytes"


def test_defaults_of_topics_for_retention_in_each_unit_are_applied_at_once() -> None:
    assert {"log.retention.ms", "log.retention.minutes", "log.retention.hours", "log.retention.bytes", "log.severity"} <= at_once_settings()


def test_no_process_but_the_ingests_keeps_what_is_applied_at_once_from_its_start() -> None:
    """Each place that names one of these settings to read it: it reads it again, or the ingests are restarted."""
    reads = re.compile(r"""(?:integer|text|flag|setting|integer_of)\((?:listener, )?"([a-z.]+)"\)""")
    found = {
        (str(path.relative_to(ROOT)), name)
        for folder in ("services", "appliance")
        for path in (ROOT / folder).rglob("*.py")
        for name in reads.findall(path.read_text())
        if name in at_once_settings()
    }
    known = {"services/search/agent.py", "appliance/command/doctor_machine.py"}
    """A process of one search, and a command."""
    assert {(path, name) for path, name in found if path not in known} == {
        ("services/ingest/listeners/sender_connections.py", "max.connections"),
        ("services/ingest/records/ingest_topics.py", "message.max.bytes"),
    }
    assert {name for path, name in found if path.startswith("services/ingest")} == ALSO_OF_INGEST


def test_tables_of_senders_change_on_the_same_sockets_only() -> None:
    socket = SenderSocket("ingest-a", False, "", 2514, "s.toml: 1")
    tables = {"route": [{"topic": "x"}]}
    box = running_box(sender_sockets=[socket._replace(port=40_001, where="before")])
    same = plan_reload(box, running_box(sender_sockets=[socket._replace(port=0)], sender_tables=tables))
    assert same.by_ingest == [SENDERS] and same.box.sender_tables == tables and not same.waiting
    more = socket._replace(name="ingest-shop", port=29_514)
    for sockets, what in (
        ([socket], "new port 2514 of listener a"),
        ([box.sender_sockets[0], more], "new port 29514 of listener shop"),
        ([], "the end of listener a"),
        ([socket._replace(port=0, is_datagram=True)], "the other address or transport of listener a"),
    ):
        other = plan_reload(box, running_box(sender_sockets=sockets, sender_tables=tables))
        assert not other.by_ingest and other.waiting == [f"{SENDERS} ({what})"] and other.box is box
        assert other.not_applied == f"nothing of {SENDERS} was applied, tokens included: {what} needs a restart of the box"


def test_options_of_the_box_wait_for_its_restart() -> None:
    plan = plan_reload(running_box(), running_box(listen="0.0.0.0", kafka_port=0, http_port=8090, acceptors=2))
    assert plan.waiting == ["[box] listen", "[box] http-port", "[box] acceptors"], "port 0 takes any"


def test_a_process_takes_over_reloaded_settings_in_place_and_no_other_change_of_the_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LEVEL_VARIABLE, raising=False)
    layout, log = BoxLayout(str(tmp_path / "run")), Logger("acceptor@0", descriptor=os.open(os.devnull, os.O_WRONLY))
    os.mkdir(layout.runtime_directory, 0o700)
    box = running_box({"log.severity": "warning"})
    shared, calls = box.settings, []
    watch = SettingsWatch(layout, box, log, lambda: calls.append(shared["max.connections"]))
    assert log.level is Severity.WARNING
    write_box(layout, box._replace(settings=box.settings | {"max.connections": 1}))
    assert not watch.look(), "the box was written again, for a disk"
    write_box(layout, box._replace(reloads=1, settings=box.settings | {"max.connections": 2, "log.severity": "debug"}, sender_tables={"default": {}}))
    assert watch.look() and not watch.look()
    assert calls == [2] and log.level is Severity.DEBUG and box.sender_tables == {"default": {}}
    os.unlink(layout.box_file)
    assert not watch.look(), "the box ends"


def test_the_environment_goes_before_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "error")
    log = Logger("x", Severity.ERROR)
    log.use_severity("debug")
    assert log.level is Severity.ERROR
