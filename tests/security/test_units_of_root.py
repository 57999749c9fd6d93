"""What root writes for systemd, and which files it hands over, follows only from root's files: no
text of the box's user becomes a unit, a file elsewhere or a new owner.
"""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from appliance.base.errors import ConfigurationProblems
from appliance.base.layout import Disk
from appliance.base.settings import Box, SenderSocket
from appliance.command.failures import UsageProblem
from appliance.command.unit_installation import plan_of_settings
from appliance.command.unit_orders import carry_out, hand_over_directory
from appliance.runtime.disk_orders import kept_disks
from appliance.runtime.unit_files import plan_units
from lab.other_users import STRANGER, needs_root
from lab.scratch_layout import scratch_layout

ORDER = "ExecStartPre=+/bin/sh -c 'id > /tmp/owned'"


def box(**changes: Any) -> Box:
    made = Box("0123456789", 1, [Disk("d0", "/srv/d0")], "/var/lib/millrace", "0.0.0.0", "127.0.0.1", 9092, 514, 8080, ingest_port=8081)
    return made._replace(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"listen": f"0.0.0.0\n{ORDER}"},
        {"listen": f"0.0.0.0\r{ORDER}"},
        {"state_directory": f"/var/lib/millrace\n{ORDER}"},
        {"disks": [Disk("d0", f"/srv/d0\n{ORDER}")]},
        {"disks": [Disk("d0", "/srv/d0\0")]},
        {"disks": [Disk("../../../../tmp/elsewhere", "/srv/d0")]},
        {"disks": [Disk("a/b", "/srv/d0")]},
        {"disks": [Disk("..", "/srv/d0")]},
        {"sender_sockets": [SenderSocket("ingest-relp", False, f"10.0.0.1\n{ORDER}", 2514)]},
        {"sender_sockets": [SenderSocket(f"ingest-relp\n{ORDER}", False, "", 2514)]},
        {"sender_sockets": [SenderSocket("ingest-../../relp", False, "", 2514)]},
        {"box": f"0123456789\n{ORDER}"},
    ],
)
def test_no_value_adds_a_line_to_a_unit_or_names_another_file(changes: dict[str, Any]) -> None:
    changed = box(**changes)
    with pytest.raises(ConfigurationProblems):
        plan_units(changed, {disk.path: "/" for disk in changed.disks})
    plan = plan_units(box(), {"/srv/d0": "/"})
    assert plan.drop_ins and not any(ORDER in text for text in plan.drop_ins.values())


@pytest.mark.parametrize(
    ("disk", "words"),
    [
        (Disk("../../../../tmp/elsewhere", "/srv/d9"), "cannot be part of a unit name"),
        (Disk("..", "/srv/d9"), "cannot be part of a unit name"),
        (Disk("d9", f"/srv/d9\n{ORDER}"), "control characters"),
        (Disk("d9", "/srv/d9\x07"), "control characters"),
        (Disk("d9", "/srv/../etc"), "without .. in it"),
        (Disk("d9", "srv/d9"), "from / on"),
    ],
)
def test_a_disk_that_was_ordered_is_checked_like_one_of_the_settings(tmp_path: Path, disk: Disk, words: str) -> None:
    settings = tmp_path / "millrace.toml"
    settings.write_text(f'[box]\ndata = ["{tmp_path}/d0"]\nstate = "{tmp_path}/state"\nsyslog-port = 514\n')
    (tmp_path / "state").mkdir()
    ordered = tmp_path / "state" / "disks.json"

    def order(disks: list[Disk]) -> None:
        ordered.write_text(json.dumps({"given": [f"{tmp_path}/d0"], "disks": [each._asdict() for each in disks]}))

    order([Disk("d0", f"{tmp_path}/d0"), disk])
    with pytest.raises(ConfigurationProblems, match=words):
        plan_of_settings(str(settings), str(tmp_path / "root"))
    order([Disk("d0", f"{tmp_path}/d0"), Disk("d9", "/srv/d9")])
    assert "millrace-log-writer@d9.service" in plan_of_settings(str(settings), str(tmp_path / "root"))[1].units


def test_a_list_of_ordered_disks_that_would_keep_its_reader_waiting_or_is_of_no_texts_counts_as_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "disks.json")
    assert kept_disks(str(tmp_path), ["/srv/d0"]) is None
    (tmp_path / "disks.json").unlink()
    (tmp_path / "disks.json").write_text(json.dumps({"given": ["/srv/d0"], "disks": [{"name": 1, "path": ["/srv/d0"]}]}))
    assert kept_disks(str(tmp_path), ["/srv/d0"]) is None


@pytest.mark.parametrize("name", ["../../../../tmp/elsewhere", "d0\nmillrace-other", "--force", ""])
def test_a_supervisor_that_names_no_disk_is_refused_before_systemd_is_asked(name: str) -> None:
    with scratch_layout() as layout, pytest.raises(UsageProblem, match="the supervisor named a disk"):
        carry_out(layout, "add", name, None)


@needs_root
@pytest.mark.parametrize("place", ["link", "above/empty"])
def test_root_changes_the_owner_of_no_directory_behind_a_link(tmp_path: Path, place: str) -> None:
    user = pwd.getpwuid(65534).pw_name
    (tmp_path / "etc" / "empty").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "etc" / "empty")
    (tmp_path / "above").symlink_to(tmp_path / "etc")
    with pytest.raises(UsageProblem, match=f"is reached through a link; give the real path: {tmp_path}/etc/empty"):
        hand_over_directory(str(tmp_path / place), user)
    assert (tmp_path / "etc" / "empty").stat().st_uid == 0
    hand_over_directory(str(tmp_path / "etc" / "empty"), user)
    assert (tmp_path / "etc" / "empty").stat().st_uid == 65534


@needs_root
def test_the_new_owner_of_a_directory_is_the_user_of_the_installation_and_not_the_owner_of_the_runtime_directory(tmp_path: Path) -> None:
    runtime, disk = tmp_path / "run", tmp_path / "disk"
    runtime.mkdir()
    disk.mkdir()
    os.chown(runtime, STRANGER, STRANGER)
    with pytest.raises(UsageProblem, match="there is no user"):
        hand_over_directory(str(disk), "millrace-is-not-installed")
    assert disk.stat().st_uid == 0
