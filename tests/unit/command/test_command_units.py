"""`millrace units`, and what `millrace status` makes of systemd's word."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from appliance.base.errors import ConfigurationProblems
from appliance.command.failures import UsageProblem
from appliance.command.unit_installation import install_units, merged, mount_point_of, plan_of_settings, remove_units, with_unit_states
from appliance.command.unit_orders import hand_over_directory
from appliance.senders.old_table import tables_text
from lab.running_box import listener


def settings(directory: Path, *lines: str) -> str:
    file = directory / "m.toml"
    text = ["[box]", f'data = ["{directory}/log/d0", "{directory}/log/d1"]', f'state = "{directory}/state"', "syslog-port = 514", *lines]
    file.write_text("\n".join(text) + "\n")
    return str(file)


def files_below(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


def test_the_second_time_nothing_is_written_and_removing_takes_everything_back(tmp_path: Path) -> None:
    root = tmp_path / "root"
    done = install_units(plan_of_settings(settings(tmp_path), str(root))[1], str(root))
    written = files_below(root)
    assert [line.split()[0] for line in done] == ["wrote"] * len(written) and len(written) > 8
    assert install_units(plan_of_settings(settings(tmp_path), str(root))[1], str(root)) == []
    assert len(remove_units(str(root))) == len(written) and files_below(root) == {}


def test_a_disk_that_goes_takes_its_drop_ins_along_and_leaves_those_of_the_owner(tmp_path: Path) -> None:
    root = tmp_path / "root"
    install_units(plan_of_settings(settings(tmp_path), str(root))[1], str(root))
    own = root / "etc/systemd/system/millrace-log-writer@d1.service.d/50-own.conf"
    own.write_text("[Service]\nNice=1\n")
    (tmp_path / "m.toml").write_text(f'[box]\ndata = ["{tmp_path}/log/d0"]\nstate = "{tmp_path}/state"\nsyslog-port = 514\n')
    done = install_units(plan_of_settings(str(tmp_path / "m.toml"), str(root))[1], str(root))
    assert sorted(Path(line.split()[1]).parent.name for line in done if line.startswith("removed")) == [
        "millrace-log-reader@d1.service.d",
        "millrace-log-writer@d1.service.d",
    ]
    assert own.exists() and "d1" not in (root / "etc/systemd/system/millrace.target.d/20-settings.conf").read_text()


def test_a_listener_that_left_the_settings_takes_its_socket_unit_along(tmp_path: Path) -> None:
    root, file = tmp_path / "root", Path(settings(tmp_path))
    text = file.read_text()
    relp = listener("relp", "relp", port=2514)
    file.write_text(text + tables_text({"listener": [relp, listener("any", "gelf", "udp")]}))
    with pytest.raises(ConfigurationProblems, match=r"\[\[ingest.listener\]\] 2: port 0 is any free one"):
        plan_of_settings(str(file), str(root))
    file.write_text(text + tables_text({"listener": [relp]}))
    install_units(plan_of_settings(str(file), str(root))[1], str(root))
    (root / "etc/systemd/system/millrace-ingest-http.socket").write_text("[Socket]\n")  # of the release, not ours
    unit = root / "etc/systemd/system/millrace-ingest-relp.socket"
    assert unit.exists()
    file.write_text(text)
    done = install_units(plan_of_settings(str(file), str(root))[1], str(root))
    assert f"removed {unit}" in done and not unit.exists() and (root / "etc/systemd/system/millrace-ingest-http.socket").exists()


def test_a_disk_that_is_not_mounted_now_stays_bound_to_its_mount(tmp_path: Path) -> None:
    root = tmp_path / "root"
    drop_in = root / "etc/systemd/system/millrace-log-writer@d0.service.d/20-settings.conf"
    (root / "etc").mkdir(parents=True)
    fstab = root / "etc/fstab"
    fstab.write_text(f"# disks\nUUID=1 {tmp_path}/log xfs noatime,nofail 0 0\n")
    install_units(plan_of_settings(settings(tmp_path), str(root))[1], str(root))
    assert f"AssertPathIsMountPoint={tmp_path}/log\n" in drop_in.read_text()
    fstab.write_text("")
    assert install_units(plan_of_settings(settings(tmp_path), str(root))[1], str(root)) == []


def test_all_mistakes_are_reported_and_nothing_is_written(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text(f'"num.partitions" = 0\n[box]\nstate = "{tmp_path}/state"\nhttp-port = 0\nnonsense = 1\ndata = ["{tmp_path}/a b", "{tmp_path}/a b", "c"]\n')
    with pytest.raises(ConfigurationProblems) as problems:
        plan_of_settings(str(file), str(tmp_path / "root"))
    text = str(problems.value)
    assert all(words in text for words in ("num.partitions", "nonsense", "http-port is 0", "given twice", "cannot be part of a unit name", "[box] c: "))


def test_the_deepest_mount_counts() -> None:
    points = ["/", "/srv", "/srv/d0", "/srv/d"]
    assert mount_point_of("/srv/d0/logs", points) == "/srv/d0" and mount_point_of("/srv/d1", points) == "/srv"
    assert mount_point_of("/srv/d0", points) == "/srv/d0" and mount_point_of("/var", points) == "/"


PROCESS = {"name": "log-writer@d0", "pid": 7, "state": "recovering", "since": 5, "restarts": 2}


@pytest.mark.parametrize(
    ("unit", "process", "state"),
    [
        ({"ActiveState": "activating", "SubState": "start", "StatusText": "63 %, 4 s left"}, PROCESS, "recovering"),
        ({"ActiveState": "active", "SubState": "running"}, PROCESS | {"state": "offline"}, "offline"),
        ({"ActiveState": "activating", "SubState": "start", "MainPID": "9"}, PROCESS | {"state": "down", "pid": None}, "starting"),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, PROCESS, "restarting"),
        ({"ActiveState": "deactivating", "SubState": "stop-sigterm"}, PROCESS, "stopping"),
        ({"ActiveState": "inactive", "SubState": "dead"}, PROCESS, "stopped"),
        ({"ActiveState": "inactive", "SubState": "dead", "AssertResult": "no"}, PROCESS, "not mounted"),
        ({"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "ExecMainStatus": "78"}, PROCESS, "failed: another release"),
        ({"ActiveState": "failed", "SubState": "failed", "Result": "oom-kill"}, PROCESS, "failed: oom-kill"),
        ({}, PROCESS, "recovering"),
    ],
)
def test_the_counters_speak_while_a_process_runs_and_systemd_where_none_does(unit: dict[str, str], process: dict[str, Any], state: str) -> None:
    found = merged(process, unit)
    assert found["state"] == state and found["restarts"] == 2
    runs = unit.get("ActiveState", "active") == "active" or unit.get("SubState") == "start"
    assert found["pid"] == (int(unit.get("MainPID", "7")) if runs else None)
    assert found.get("status") == unit.get("StatusText")


def test_systemd_is_not_asked_about_a_box_of_millrace_run() -> None:
    processes = [PROCESS]
    assert with_unit_states({"managed_by": "millrace run"}, processes) is processes
    assert with_unit_states({"managed_by": "systemd"}, processes) is processes, "a box file of another release: the counters alone speak"


NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="a change of owner needs root")
def test_a_new_file_system_gets_the_boxes_user_as_owner_and_a_directory_with_files_does_not(tmp_path: Path) -> None:
    disk, user = tmp_path / "disk", pwd.getpwuid(NOBODY).pw_name
    (disk / "lost+found").mkdir(parents=True)
    hand_over_directory(str(disk), user)
    assert (disk.stat().st_uid, disk.stat().st_gid) == (NOBODY, NOBODY)
    os.chown(disk, 0, 0)
    (disk / "file").write_text("")
    with pytest.raises(UsageProblem, match=r"is not empty \(file\)"):
        hand_over_directory(str(disk), user)
    assert disk.stat().st_uid == 0
