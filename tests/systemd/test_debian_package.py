"""The Debian package on a machine with systemd: installed, configured, upgraded, removed, installed again, purged. Records and state stay in all of it.

The package is built as a user builds it; packages of Python come from the package index. The tests follow on each other.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.installed_box import KAFKA, InstalledBox
from lab.running_box import ROOT, eventually
from lab.systemd_box import SystemdBox, why_not

REASON = why_not()
pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.deep, pytest.mark.skipif(bool(REASON), reason=REASON)]

KCAT = f"{ROOT}/.venv/peers/bin/kcat -b {KAFKA.host}:{KAFKA.port} -q"


def build(directory: Path) -> Path:
    done = subprocess.run([ROOT / "install.sh", "packages", directory], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (package,) = directory.glob("*.deb")
    return package


def later_version(package: Path, directory: Path) -> Path:
    """The same files under a version that follows."""
    directory.mkdir()
    subprocess.run(["dpkg-deb", "-R", package, directory / "tree"], check=True)
    control = directory / "tree/DEBIAN/control"
    version = package.name.split("_")[1]
    control.write_text(control.read_text().replace(f"Version: {version}\n", f"Version: {version}.later\n"))
    built = directory / package.name.replace(version, f"{version}.later")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", directory / "tree", built], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(directory / "tree")
    return built


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("packages")
    first = build(directory / "first")
    return [first, later_version(first, directory / "later")]


@pytest.fixture(scope="module")
def machine(packages: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledBox]:
    box = SystemdBox.start(tmp_path_factory.mktemp("machine"), ["ext4"], 640, [(packages[0].parents[1], "/packages")], name="debian")
    try:
        box.run("rm -f /usr/sbin/policy-rc.d")  # of hosts that are made of a container image: nothing may be started there
        yield InstalledBox(box, Path("/nowhere"))
        box.stop()
    finally:
        box.destroy()


def install(machine: InstalledBox, package: Path) -> str:
    done = machine.box.run(f"DEBIAN_FRONTEND=noninteractive dpkg -i /packages/{package.parent.name}/{package.name}", seconds=300)
    return done.stdout + done.stderr


def records(machine: InstalledBox) -> list[str]:
    return machine.box.output(f"{KCAT} -t numbers -C -o beginning -e").split()


def send(machine: InstalledBox, record: str) -> None:
    machine.box.run(f"echo {record} | {KCAT} -t numbers -P")


def test_two_builds_are_equal(packages: list[Path], tmp_path: Path) -> None:
    again = build(tmp_path)
    assert again.name == packages[0].name and again.read_bytes() == packages[0].read_bytes()


def test_once_installed_it_starts_nothing_and_says_what_to_do(machine: InstalledBox, packages: list[Path]) -> None:
    said = install(machine, packages[0])
    assert "millrace: installed, not started." in said and "systemctl enable --now millrace.target" in said
    assert machine.box.output("systemctl is-enabled millrace.target; true") == "disabled" and machine.processes() == []
    assert machine.box.output("dpkg --verify millrace; getent passwd millrace millrace-net millrace-mirror | wc -l; stat -c %U /var/lib/millrace").split() == [
        "3",
        "millrace",
    ]
    assert machine.box.output("systemd-analyze verify /usr/lib/systemd/system/millrace.target 2>&1; true") == ""
    assert machine.box.output("find /usr/lib/millrace -name '*.pyc' -path '*services/acceptor*' | head -n 1") != ""


def test_configured_as_its_settings_say_it_serves_and_starts_with_the_machine(machine: InstalledBox) -> None:
    settings = machine.box.path("/etc/millrace/millrace.toml")
    settings.write_text(settings.read_text().replace('["/srv/millrace/d0"]', '["/srv/d0"]') + "\n# edited\n")
    machine.box.run("install -d -o millrace -g millrace -m 0750 /srv/d0")
    machine.box.run("millrace config check /etc/millrace/millrace.toml && millrace units apply && systemctl enable --now millrace.target")
    machine.await_all_active()
    machine.millrace("topic", "create", "numbers")
    send(machine, "one")
    assert records(machine) == ["one"]
    machine.box.run("logger -n 127.0.0.1 -P 514 -d --rfc5424 'disk d3 is warm'")
    eventually(lambda: "disk d3 is warm" in machine.box.output(f"{KCAT} -t syslog -C -o beginning -e"), "the line of syslog is a record", 30)
    assert machine.box.output("systemctl --failed --no-legend") == ""


def test_an_upgrade_restarts_it_and_keeps_settings_and_records(machine: InstalledBox, packages: list[Path]) -> None:
    before = machine.pids()
    install(machine, packages[1])
    machine.await_all_active()
    assert machine.box.output("dpkg-query -W -f '${Version}' millrace") == packages[1].name.split("_")[1]
    assert not set(before.values()) & set(machine.pids().values())
    assert machine.box.path("/etc/millrace/millrace.toml").read_text().endswith("# edited\n")
    send(machine, "two")
    assert records(machine) == ["one", "two"]


def test_settings_that_it_cannot_run_with_leave_it_installed_and_stopped(machine: InstalledBox, packages: list[Path]) -> None:
    settings = machine.box.path("/etc/millrace/millrace.toml")
    kept = settings.read_text()
    settings.write_text(f'"no.such.setting" = 1\n{kept}')
    assert "millrace: not started; correct /etc/millrace/millrace.toml" in install(machine, packages[1])
    assert machine.box.output("dpkg-query -W -f '${Status}' millrace") == "install ok installed" and machine.processes() == []
    settings.write_text(kept)
    machine.box.run("millrace units apply && systemctl start millrace.target")
    machine.await_all_active()


def test_removed_and_installed_again_it_serves_what_it_had(machine: InstalledBox, packages: list[Path]) -> None:
    machine.box.run("dpkg -r millrace", seconds=300)
    assert machine.processes() == [] and machine.box.output("systemctl list-units --no-legend --plain 'millrace*'") == ""
    for gone in ("/usr/lib/millrace", "/usr/bin/millrace", "/run/millrace", "/etc/systemd/system/millrace.target.d"):
        assert machine.box.run(["test", "!", "-e", gone], check=False).returncode == 0, gone
    assert machine.box.path("/etc/millrace/millrace.toml").read_text().endswith("# edited\n")
    install(machine, packages[1])
    machine.await_all_active()
    assert records(machine) == ["one", "two"]


def test_purged_it_leaves_records_and_state_and_nothing_else(machine: InstalledBox) -> None:
    done = machine.box.run("dpkg -P millrace", seconds=300)
    assert "kept: records in the log directories, the state in /var/lib/millrace" in done.stdout + done.stderr
    assert (
        machine.box.output("find /etc /usr /run /dev/shm -xdev -name '*millrace*' ! -name millrace-box -o -name '*.toml' -path '*millrace*' | head").split()
        == []
    )
    assert any(b"two" in file.read_bytes() for file in machine.box.path("/srv/d0").glob("numbers-0/*.log"))
    assert machine.box.run("test -d /var/lib/millrace/zookeeper", check=False).returncode == 0
