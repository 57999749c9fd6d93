"""What speaks against a directory as a new disk, and what `--force` accepts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from appliance.runtime.new_disk_checks import (
    MISSING,
    OTHER_FILES,
    REASONS,
    ROOT_FILE_SYSTEM,
    SAME_DEVICE,
    Directory,
    Mount,
    Mounts,
    forced_reasons,
    new_disk_problems,
    unforced,
)
from appliance.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from appliance.storage.directory_identity import PROBE_FILE

WHOLE = {"8:17": "8:16", "8:18": "8:16"}


class Machine:
    """A list of mounts in which directories of a test lie on devices of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lines = ["21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"]
        self.mount("state", "8:1")

    def mount(self, name: str, device: str) -> Path:
        path = self.directory / name
        path.mkdir()
        shown = str(path).replace(" ", "\\040")
        self._lines.append(f"30 21 {device} / {shown} rw,relatime - xfs /dev/x rw")
        return path

    def problems(self, path: Path, *disks: Path) -> dict[str, str]:
        mounts = Mounts("\n".join(self._lines), lambda device: WHOLE.get(device, device))
        used = [Directory("the state directory", str(self.directory / "state")), *(Directory(f"disk {disk.name}", str(disk)) for disk in disks)]
        return {problem.reason: problem.words for problem in new_disk_problems(str(path), used, mounts)}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_empty_disk_of_its_own_has_no_problem(machine: Machine) -> None:
    d0, d1 = machine.mount("d0", "8:32"), machine.mount("d1", "8:48")
    (d1 / "lost+found").mkdir()
    assert machine.problems(d1, d0) == {}


def test_a_typo_is_refused_for_every_reason_that_holds(machine: Machine) -> None:
    d0 = machine.mount("d0", "8:32")
    problems = machine.problems(machine.directory / "d00", d0)
    assert list(problems) == [MISSING, ROOT_FILE_SYSTEM, SAME_DEVICE]
    assert "does not exist, and would be created on the file system of /; mount the disk first" in problems[MISSING]
    assert f"the state directory ({machine.directory}/state)" in problems[SAME_DEVICE] and "d0 (" not in problems[SAME_DEVICE]
    assert not (machine.directory / "d00").exists()


def test_a_directory_that_does_not_exist_on_a_disk_of_its_own_is_only_missing(machine: Machine) -> None:
    d1 = machine.mount("d1", "8:32")
    assert list(machine.problems(d1 / "logs")) == [MISSING]


def test_two_directories_of_one_file_system_share_a_device(machine: Machine) -> None:
    d0 = machine.mount("d0", "8:32")
    for name in ("one", "two"):
        (d0 / name).mkdir()
    problems = machine.problems(d0 / "two", d0 / "one")
    assert list(problems) == [SAME_DEVICE] and f"disk one ({d0}/one)" in problems[SAME_DEVICE]


def test_two_partitions_of_one_disk_share_a_device(machine: Machine) -> None:
    assert list(machine.problems(machine.mount("d1", "8:18"), machine.mount("d0", "8:17"))) == [SAME_DEVICE]


def test_a_place_where_a_disk_is_not_mounted_is_the_root_file_system(machine: Machine) -> None:
    empty = machine.directory / "d1"
    empty.mkdir()
    assert ROOT_FILE_SYSTEM in machine.problems(empty)


def test_a_link_is_where_it_leads_and_a_bind_mount_is_what_it_shows(machine: Machine) -> None:
    d0 = machine.mount("d0", "8:32")
    (machine.directory / "link").symlink_to(d0)
    assert machine.problems(machine.directory / "link") == {}
    assert ROOT_FILE_SYSTEM in machine.problems(machine.mount("bound", "8:1"))


def test_a_mount_with_a_space_in_its_name_is_found(machine: Machine) -> None:
    assert machine.problems(machine.mount("d 0", "8:32")) == {}


def test_the_uppermost_of_several_mounts_at_one_place_counts() -> None:
    mounts = Mounts("1 0 8:1 / / rw - x x rw\n2 1 8:2 / /srv rw - x x rw\n3 2 8:3 / /srv rw - x x rw\n4 1 8:4 / /srv-more rw - x x rw", str)
    assert mounts.under("/srv/d0") == Mount("8:3", "/srv") and mounts.under("/srv-less") == Mount("8:1", "/")


def test_other_files_are_named_and_a_log_directory_has_none(machine: Machine) -> None:
    d1 = machine.mount("d1", "8:32")
    for name in (PROBE_FILE, RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS):  # of a log-writer whose disk was exchanged
        (d1 / name).touch()
    assert machine.problems(d1) == {}
    for name in ("a", "b", "c", "d"):
        (d1 / name).touch()
    problems = machine.problems(d1)
    assert list(problems) == [OTHER_FILES] and "(a, b, c, …)" in problems[OTHER_FILES]
    (d1 / "meta.properties").touch()
    assert machine.problems(d1) == {}


def test_each_reason_is_forced_by_its_own_name_only(machine: Machine) -> None:
    problems = new_disk_problems("/nonexistent/d0", [], Mounts("1 0 8:1 / / rw - x x rw", str))
    assert [line.rpartition("--force ")[2] for line in unforced(problems, frozenset())] == [MISSING, ROOT_FILE_SYSTEM]
    assert len(unforced(problems, {MISSING})) == 1 and not unforced(problems, {MISSING, ROOT_FILE_SYSTEM})


def test_force_takes_several_names_and_refuses_one_that_there_is_not() -> None:
    assert forced_reasons(["missing, same-device", "other-files"]) == {MISSING, SAME_DEVICE, OTHER_FILES}
    with pytest.raises(ValueError, match=f"--force all: there is no such reason; there are {', '.join(REASONS)}"):
        forced_reasons(["missing,all"])


def test_the_rule_needs_the_standard_library_alone(tmp_path: Path) -> None:
    """install.sh asks the machine's own Python, before anything is installed."""
    root = Path(__file__).parents[3]
    arguments = [sys.executable, "-S", "-P", "-m", "appliance.runtime.new_disk_checks", "--state", str(tmp_path), str(tmp_path / "typo")]
    done = subprocess.run(arguments, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and f"{tmp_path}/typo does not exist" in done.stdout.splitlines()[0], done.stderr
