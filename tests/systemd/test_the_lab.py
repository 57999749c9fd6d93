"""The box that these tests run in: it is a machine of its own, and nothing is left of it, not even when the test that made it is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.running_box import ROOT, eventually
from lab.systemd_box import ATTEMPT_GROUP, SystemdBox, why_not
from lab.systemd_keeper import NAMESPACES, control_group

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]

KILLED = """
import os, signal, sys
from pathlib import Path
from lab.systemd_box import SystemdBox
box = SystemdBox.start(Path(sys.argv[1]), ["ext4"], 64)
box.run("fsfreeze -f /srv/d0; (touch /srv/d0/waits &) > /dev/null 2>&1 < /dev/null")
print(box.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SystemdBox]:
    box = SystemdBox.start(tmp_path / "machine", ["ext4", "tmpfs"], 64)
    try:
        yield box
        box.stop()
    finally:
        box.destroy()


def leftovers(directory: Path) -> list[str]:
    """Processes, loop devices and control groups that belong to the box of a directory."""
    found = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(directory) in line]
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(directory).encode() in file.read_bytes():
                found.append(str(file))
        except OSError:
            continue  # it ended while we looked
    found += [line for line in subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout.splitlines() if str(directory) in line]
    return found + [path for path, _, _ in os.walk("/sys/fs/cgroup") if Path(path).name == control_group(directory)]


def test_control_groups_that_killed_attempts_have_left_skip_no_test_and_are_removed() -> None:
    left = [f"/sys/fs/cgroup/{name}" for name in (f"{ATTEMPT_GROUP}{os.getpid()}", f"{ATTEMPT_GROUP}0")]

    def groups(command: str) -> str:
        words = ["unshare", *NAMESPACES, "--fork", "sh", "-c", f"mount -t cgroup2 none /sys/fs/cgroup && {command}"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    try:
        groups(f"mkdir -p {' '.join(left)}")
        why_not.cache_clear()
        assert why_not() == ""
        assert groups("ls /sys/fs/cgroup").count(ATTEMPT_GROUP) == 0
    finally:
        groups(f"rmdir {' '.join(left)} 2>/dev/null || true")


def test_a_box_has_a_systemd_disks_and_a_network_of_its_own_and_keeps_what_is_written_over_a_reboot(machine: SystemdBox, tmp_path: Path) -> None:
    assert machine.run("systemctl is-system-running", check=False).stdout.strip() in ("running", "degraded")
    assert machine.output("hostname; ls /etc/systemd/system/*.wants 2>/dev/null; stat -fc %T /srv/d0 /srv/d1").split() == ["machine", "ext2/ext3", "tmpfs"]
    with socket.socket() as outside:
        outside.bind(("127.0.0.1", 0))
        outside.listen()
        with machine.inside(), socket.socket() as within:
            assert within.connect_ex(outside.getsockname()) != 0
    machine.run("echo kept | tee /etc/kept /srv/d0/kept && umount /srv/d1")
    eventually(lambda: machine.unit("srv-d1.mount")["ActiveState"] == "inactive", "systemd has noticed")
    machine.reboot()
    assert machine.output("cat /etc/kept /srv/d0/kept") == "kept\nkept"
    assert machine.unit("srv-d1.mount")["ActiveState"] == "active"
    assert not Path("/etc/kept").exists()
    machine.stop()
    assert leftovers(tmp_path / "machine") == []


def test_nothing_is_left_of_a_box_with_a_frozen_disk_whose_test_was_killed(tmp_path: Path) -> None:
    directory = tmp_path / "orphan"
    done = subprocess.run([sys.executable, "-P", "-c", KILLED, directory], cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    eventually(lambda: not leftovers(directory), "nothing is left")
    assert not Path(f"/proc/{int(done.stdout)}").exists()
