"""Settings: rows, resolution, the file, box.json."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.base.layout import Disk
from appliance.base.setting_row import SettingRow
from appliance.base.setting_rows import SETTING_ROWS
from appliance.base.settings import Box, default_settings, read_settings_file, relation_problems, resolve_settings, setting_problem


def make_box(**changes: object) -> Box:
    fields = {"box": "b", "broker_id": 1, "disks": [Disk("d0", "/srv/d0"), Disk("d1", "/srv/d1")], "state_directory": "/srv/state", "listen": "127.0.0.1"}
    fields |= {"advertise": "127.0.0.1", "kafka_port": 9092, "syslog_port": 5514, "http_port": 8080, "ingest_port": 8081} | changes
    return Box(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("row", SETTING_ROWS.values(), ids=lambda row: row.name)
def test_every_default_is_allowed_and_every_row_is_explained(row: SettingRow) -> None:
    assert setting_problem(row, row.default) is None
    assert row.meaning and row.low <= row.high


def test_defaults_go_together() -> None:
    assert relation_problems(default_settings()) == []


def test_all_problems_are_found_at_once_each_with_its_place_and_what_is_allowed() -> None:
    _, problems = resolve_settings(
        {"num.partitions": 0, "log.segment.byte": 1, "delete.topic.enable": "yes", "ingest.syslog.key": "pid", "tables.locations": "here"}, "m.toml"
    )
    assert [each.partition(";")[0] for each in problems.pop().splitlines()] == ["m.toml: tables.locations has 'here'"]
    assert problems == [
        "m.toml: num.partitions is 0; allowed is a whole number from 1 to 10000",
        "m.toml: there is no setting log.segment.byte; did you mean log.segment.bytes?",
        "m.toml: delete.topic.enable is 'yes'; allowed is true or false",
        "m.toml: ingest.syslog.key is 'pid'; allowed is one of host, app, none",
    ]


def test_no_problem_comes_from_the_default_in_place_of_a_wrong_value() -> None:
    _, problems = resolve_settings({"socket.request.max.bytes": "much", "message.max.bytes": 200_000_000}, "m.toml")
    assert len(problems) == 1 and problems[0].startswith("m.toml: socket.request.max.bytes is 'much'")


def test_what_may_reach_zookeeper_is_said_by_addresses() -> None:
    _, problems = resolve_settings({"zookeeper.allowed.addresses": "10.0.0.4, 10.1.0.0/16,host.example,fd00::/8,1.2.3.4\nExecStart=/bin/sh"}, "m.toml")
    assert [problem.partition(";")[0] for problem in problems] == [
        "m.toml: zookeeper.allowed.addresses has 'host.example'",
        "m.toml: zookeeper.allowed.addresses has '1.2.3.4\\nExecStart=/bin/sh'",
    ]


def test_true_is_no_number_and_one_is_no_flag() -> None:
    assert setting_problem(SETTING_ROWS["num.partitions"], True) is not None
    assert setting_problem(SETTING_ROWS["delete.topic.enable"], 1) is not None


def test_every_setting_that_the_code_asks_for_has_a_row_of_that_type() -> None:
    kinds = {"integer": int, "text": str, "flag": bool}
    asked = set()
    root = Path(__file__).parents[3]
    for path in (*(root / "appliance").rglob("*.py"), *(root / "services").rglob("*.py")):
        asked |= set(re.findall(r'box\.(integer|text|flag)\(\s*"([a-z.]+)"', path.read_text()))
    assert len(asked) > 10
    for kind, name in sorted(asked):
        assert name in SETTING_ROWS, f"no row for {name}"
        assert type(SETTING_ROWS[name].default) is kinds[kind], f"{name} is asked for as {kind}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("channel.ring.entries", 1000),
        ("disk.budget.bytes", 200 << 20),
        ("socket.request.max.bytes", 100 << 20),
        ("message.max.bytes", 40 << 20),
        ("ingest.batch.bytes", 2 << 20),
        ("ingest.syslog.topic", "no topic"),
        ("inter.broker.allowed.networks", "10.0.0.1/8"),
        ("http.details.allowed.networks", "anywhere"),
        ("alerts.url", "alerts.example:9093"),
        ("alerts.url", "http://alerts.example:0/"),
        ("alerts.url", "http://alerts.example:port/"),
        ("alerts.url", "http://[::1/"),
        ("alerts.url", "https:///api/v2/alerts"),
        ("alerts.url", "http://alerts.example/a b"),
        ("alerts.url", "http://alerts.example/\r\nX: y"),
        ("http.role.admin", "alice"),
        ("http.role.viewer", "User:alice, bob;carol"),
        ("http.proxy.networks", "10.0.0.7"),
        ("replica.fetch.wait.max.ms", 30_001),
        ("tables.locations", "/srv/tables, tables"),
        ("tables.locations", "/srv/tables/../../etc"),
        ("tables.locations", "/"),
        ("tables.locations", "/srv/a b"),
        ("tables.locations", "s3://logs/../x"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(name: str, value: object) -> None:
    _, problems = resolve_settings({name: value}, "m.toml")
    assert problems and all(name in problem for problem in problems)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, None),
        ({"http.role.admin": ""}, "no http.role setting has users"),
        ({"http.proxy.networks": ""}, "say which addresses the proxy has"),
        ({"http.proxy.networks": "10.0.0.1/8"}, "has bits after its prefix"),
        ({"http.proxy.user.header": "X-User:"}, "must be the name of a header"),
    ],
)
def test_a_proxy_of_the_console_names_users_of_some_role_from_known_addresses(changed: dict[str, str], problem: str | None) -> None:
    given = {"http.role.admin": "User:alice", "http.proxy.networks": "10.0.0.7, fd00::/8", "http.proxy.user.header": "X-Forwarded-User", **changed}
    _, problems = resolve_settings(given, "m.toml")
    assert problems == [] if problem is None else problem in problems[0]


def test_a_settings_file_takes_dotted_and_quoted_names_and_a_box_table(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    lines = ["num.partitions = 3", "log.retention.ms = 5", "log.retention.bytes = 6", '"max.connections" = 7', '"max.connections.per.ip" = 8', "[box]"]
    path.write_text("\n".join([*lines, 'data = ["/a"]', ""]))
    read = read_settings_file(str(path))
    assert read.problems == []
    assert read.box == {"data": ["/a"]}
    assert read.settings == {"num.partitions": 3, "log.retention.ms": 5, "log.retention.bytes": 6, "max.connections": 7, "max.connections.per.ip": 8}


def test_a_settings_file_that_cannot_be_read_is_a_problem_and_no_exception(tmp_path: Path) -> None:
    assert "No such file" in read_settings_file(str(tmp_path / "none")).problems[0]
    (tmp_path / "bad").write_text("a = ")
    assert "not valid TOML" in read_settings_file(str(tmp_path / "bad")).problems[0]
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "not valid TOML" in read_settings_file(str(tmp_path / "binary")).problems[0]


def test_a_box_survives_its_file() -> None:
    import json

    box = make_box(settings={"num.partitions": 3}, cluster_id="abc", pid=7)
    assert Box.from_document(json.loads(box.to_json())) == box


def test_a_box_file_of_another_release_is_a_type_error() -> None:
    import json

    document = json.loads(make_box().to_json()) | {"new_field": 1}
    with pytest.raises(TypeError):
        Box.from_document(document)


def test_a_setting_has_its_type_and_falls_back_to_its_default() -> None:
    box = make_box(settings={"num.partitions": 3})
    assert box.integer("num.partitions") == 3
    assert box.text("ingest.syslog.topic") == "syslog"
    assert box.flag("delete.topic.enable") is True
    with pytest.raises(KeyError):
        box.setting("no.such.setting")
    with pytest.raises(TypeError):
        box.text("num.partitions")


def test_a_box_names_all_its_processes() -> None:
    names = ["zookeeper", "controller", "coordinator", "replica-fetcher", "log-writer@d0", "log-writer@d1", "log-reader@d0", "log-reader@d1"]
    names += ["acceptor@0", "acceptor@1", "ingest@0", "console"]
    assert make_box(acceptors=2).process_names() == names
    assert make_box(acceptors=2, settings={"tables.locations": "/srv/tables"}).process_names() == [*names[:-1], "tabler", "console"]
    assert "zookeeper" not in make_box(embedded_zookeeper=False).process_names()
