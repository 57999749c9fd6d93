"""`millrace config reload` on a real box: what changes at once, what the ingests start again for, and what waits."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from appliance.base.settings import load_box
from appliance.command.box_status import ask_supervisor, image_of
from appliance.command.config_reload import print_reload
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
    assert print_reload(dry_run, True, str(box.disks[0]), None)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
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
    with pytest.raises(Exception, match=r"(?s)log\.retention\.hour; did you mean log\.retention\.hours.*max\.connections is -5.*nothing was changed: 2 of"):
        print_reload(False, True, str(box.disks[0]), None)
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
