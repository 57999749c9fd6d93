"""The ready line is for programs: exactly so."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.base.layout import Disk
from appliance.base.settings import KafkaListener
from services.supervisor.ready_message import ready_line, ready_message
from tests.unit.base.test_settings import make_box


@pytest.mark.parametrize(
    ("listen", "advertise", "host"),
    [("127.0.0.1", "127.0.0.1", "127.0.0.1"), ("0.0.0.0", "box.example", "box.example"), ("::1", "::1", "[::1]"), ("10.0.0.5", "box.example", "10.0.0.5")],
)
def test_the_ready_line_has_addresses_that_can_be_reached(listen: str, advertise: str, host: str) -> None:
    line = ready_line(make_box(listen=listen, advertise=advertise))
    assert line == f"millrace ready kafka={host}:9092 syslog={host}:5514 http={host}:8080 ingest={host}:8081"


def test_the_commands_fit_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    lines = ready_message(make_box(settings={"ingest.syslog.topic": "lines"})).splitlines()
    assert len(lines) == 4
    assert "topic tail lines --from-beginning --bootstrap 127.0.0.1:9092" in lines[2]


def test_where_a_table_decides_what_becomes_of_a_line_no_topic_is_promised() -> None:
    assert ready_message(make_box(sender_tables={"default": {"topic": "rest"}})).splitlines()[2].endswith(" ingest status --data /srv/d0")


def test_status_names_a_directory_unless_it_is_the_usual_one() -> None:
    import os

    assert ready_message(make_box()).endswith(" status --data /srv/d0\n")
    assert ready_message(make_box(disks=[Disk("d0", "/srv/a b")])).endswith(" status --data '/srv/a b'\n")
    assert ready_message(make_box(disks=[Disk("d0", os.path.abspath("var/d0"))])).endswith(" status\n")


def test_a_box_that_creates_no_topics_because_of_where_it_listens_says_so() -> None:
    off = {"auto.create.topics.enable": False}
    assert ready_message(make_box(listen="0.0.0.0", settings=off)).splitlines()[-1].startswith("  clients cannot create topics by naming them: ")
    assert len(ready_message(make_box(settings=off)).splitlines()) == 4
    assert len(ready_message(make_box(listen="0.0.0.0")).splitlines()) == 4


def test_a_box_without_a_plaintext_listener_names_the_command_that_needs_no_login() -> None:
    listeners = [KafkaListener("CLIENTS", "SASL_SSL", "127.0.0.1", 9092, "127.0.0.1")]
    assert ready_message(make_box(listeners=listeners)).splitlines()[2].endswith(" topic tail syslog --from-beginning --data /srv/d0")


def test_a_command_that_a_package_has_linked_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "venv/millrace").touch(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "venv/python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert f"  {tmp_path}/venv/millrace topic tail" in ready_message(make_box())
    (tmp_path / "bin/millrace").symlink_to("../venv/millrace")
    assert "\n  millrace topic tail" in ready_message(make_box())
