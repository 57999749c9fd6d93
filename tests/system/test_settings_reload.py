"""`millrace config reload` on a real box: what changes at once, what the ingests start again for, and what waits."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from appliance.base.logging import Severity
from appliance.base.settings import load_box
from appliance.command.box_status import ask_supervisor, image_of
from appliance.command.config_reload import EXIT_WAITS, print_reload
from appliance.command.failures import EXIT_FAILED, UsageProblem
from appliance.command.logs import event_of, file_entries
from lab.running_box import RunningBox, chosen_options, eventually, listener

pytestmark = [pytest.mark.system, pytest.mark.slow]

SETTINGS: dict[str, object] = {"log.retention.hours": 100, "channel.ring.entries": 1024}


def senders(topic: str) -> dict[str, object]:
    return {"listener": [listener("lines", "syslog", topic=topic)]}


@pytest.fixture
def box(start: Callable[..., RunningBox]) -> RunningBox:
    return start(disks=1, settings=SETTINGS, senders=senders("before"))


def rewrite(box: RunningBox, settings: dict[str, object], topic: str) -> None:
    """As the box was started, with these settings."""
    chosen_options(box.directory, settings={"zookeeper.digest.file": box.box.text("zookeeper.digest.file"), **settings}, senders=senders(topic))


def reloaded(box: RunningBox, capsys: pytest.CaptureFixture[str], dry_run: bool = False) -> dict[str, Any]:
    code = print_reload(dry_run, True, str(box.disks[0]), None)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == (EXIT_FAILED if "problems" in document else EXIT_WAITS if document["needs_restart"] else 0)
    return document


def retention_ms(box: RunningBox, topic: str) -> str:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    client = AdminClient({"bootstrap.servers": str(box.kafka)})
    described = client.describe_configs([resource])[resource].result(20)
    return str(described["retention.ms"].value)


def ingest(box: RunningBox) -> dict[str, Any]:
    return next(process for process in ask_supervisor(box.layout) or [] if process["name"] == "ingest@0")


def test_a_changed_file_is_used_as_far_as_it_goes_and_a_broken_one_not_at_all(box: RunningBox, capsys: pytest.CaptureFixture[str]) -> None:
    same = reloaded(box, capsys)
    assert not any(same[key] for key in ("applied", "applied_by_restart", "restarted", "needs_restart"))
    changed = SETTINGS | {"log.retention.hours": 24, "log.severity": "debug", "channel.ring.entries": 2048, "ingest.batch.ms": 7, "search.processes.max": 3}

    rewrite(box, changed | {"log.retention.hour": 1, "max.connections": -5}, "after")
    wrong = reloaded(box, capsys)["problems"]
    lines = Path(same["file"]).read_text().splitlines()
    assert ["log.retention.hour;" in each["text"] or "max.connections is -5" in each["text"] for each in wrong] == [True, True]
    assert sorted(lines[each["line"] - 1].split()[0].strip('"') for each in wrong) == ["log.retention.hour", "max.connections"]
    assert load_box(box.layout).reloads == 0 and retention_ms(box, "syslog") == str(100 * 3_600_000)

    rewrite(box, changed, "after")
    planned = reloaded(box, capsys, dry_run=True)
    assert load_box(box.layout).reloads == 0
    done = reloaded(box, capsys)
    assert planned | {"dry_run": False} == done
    assert sorted(done["applied"]) == ["log.retention.hours", "log.severity"]
    assert done["applied_by_restart"] == ["ingest.batch.ms", "[[ingest.listener]] and [[ingest.route]]"] and done["restarted"] == ["ingest@0"]
    assert done["needs_restart"] == {"box": ["channel.ring.entries"], "console": ["search.processes.max"]}
    assert load_box(box.layout).integer("channel.ring.entries") == 1024, "a process that starts again fits to the others"

    eventually(lambda: retention_ms(box, "syslog") == str(24 * 3_600_000), "topics inherit the new retention")
    eventually(lambda: ingest(box)["restarts"] >= 1 and ingest(box)["state"] == "serving", "ingest has started again")
    with socket.create_connection(box.sender("lines")) as sender:
        sender.sendall(b"<13>1 - host app - - - by the new table\n")
    eventually(lambda: "after" in image_of(box.layout).topics, "the listener's lines go to its new topic")
    assert "before" not in image_of(box.layout).topics
    ends = [entry for entry in map(event_of, filter(None, file_entries(box.layout, False))) if entry is not None and "ingest@0 ended" in entry.text]
    assert [(end.severity, "as ordered by `millrace config reload`" in end.text) for end in ends] == [(Severity.INFO, True)]


def test_a_revoked_token_that_cannot_be_applied_is_reported_and_another_file_is_refused(
    box: RunningBox, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(reloaded(box, capsys)["file"])
    file.write_text(file.read_text() + '\n[[ingest.listener]]\nname = "shop"\nprotocol = "http"\ntransport = "tcp"\nport = 29514\ntoken = "THIRD"\n')
    assert print_reload(False, False, str(box.disks[0]), None) == EXIT_WAITS
    printed = capsys.readouterr()
    assert "nothing of [[ingest.listener]] and [[ingest.route]] was applied, tokens included: new port 29514 of listener shop needs a restart" in printed.err
    assert "applied" not in printed.out and load_box(box.layout).reloads == 0

    file.write_text(file.read_text().replace("29514", str(box.box.http_port)))
    assert f"port: {box.box.http_port} is taken by the console" in reloaded(box, capsys, dry_run=True)["problems"][0]["text"]
    file.write_text(file.read_text().replace(f"port = {box.box.http_port}", "port = 29514"))

    monkeypatch.setenv("MILLRACE_DATA", str(box.disks[0]))
    other = tmp_path / "other.toml"
    with pytest.raises(UsageProblem, match="there is no such file"):
        print_reload(False, False, None, str(other))
    other.write_text('"log.retention.hours" = 3\n')
    with pytest.raises(UsageProblem, match="was started with"):
        print_reload(False, False, None, str(other))
