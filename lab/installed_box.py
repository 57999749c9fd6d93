"""A box as its owner has it: installed by install.sh from a source tree, run by systemd, on two disks; and what tests ask of it.

The source tree that it is installed from is a copy, so that tests can make another release of it. Packages come from .venv (lab/packed_wheels.py).
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab.packed_wheels import pack_all
from lab.running_box import ROOT, Address, eventually
from lab.systemd_box import SystemdBox

SOURCES = ["appliance", "services", "pyspark_millrace", "systemd", "install", "install.sh", "pyproject.toml", "docs", "README.md", "LICENSE"]
SYSTEM_PYTHON = "/usr/bin/python3"
KAFKA, SYSLOG, HTTP = Address("127.0.0.1", 9092), Address("127.0.0.1", 514), Address("127.0.0.1", 8080)
INGEST = Address("127.0.0.1", 8081)
DISKS = ["/srv/d0", "/srv/d1"]
RESTART_SECONDS = 30.0


def why_not_installed() -> str:
    """Why packages of .venv cannot be installed in a box, or an empty text: it uses the system's Python, without a network."""
    asked = subprocess.run([SYSTEM_PYTHON, "-c", "import ensurepip, sys, venv; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False)
    if asked.returncode:
        return f"{SYSTEM_PYTHON} cannot make virtual environments (python3-venv)"
    if asked.stdout.split() != [str(part) for part in sys.version_info[:2]]:
        return f"{SYSTEM_PYTHON} is {'.'.join(asked.stdout.split())}, and .venv is of another Python"
    return ""


def copy_sources(place: Path) -> None:
    """The tree as a user has it, without what was built in it."""
    place.mkdir(parents=True)
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, place / name)


def copy_release(place: Path, commit: str) -> bool:
    """The tree of a commit; False if this clone does not have it."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=False)
    if archive.returncode:
        return False
    place.mkdir(parents=True)
    subprocess.run(["tar", "-x", "-C", str(place)], input=archive.stdout, check=True)
    return True


def make_wheelhouse(place: Path, with_spark: bool = False, more: Sequence[str] = ()) -> None:
    """As `install.sh --make-wheelhouse` makes one (with_spark: and `--pipeline`; `more` packages, too), out of .venv instead of the network."""
    lines = [f"# millrace wheelhouse: python {sys.version_info[0]}.{sys.version_info[1]}, {platform.machine()}"]
    for wheel in pack_all(place, with_spark, more):
        name, version = wheel.name.split("-")[:2]
        lines.append(f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}  # {wheel.name}")
    (place / "requirements.txt").write_text("\n".join(lines) + "\n")


class InstalledBox:
    """`box` is the machine; `sources` the tree in it, as the host sees it; `host` where it listens."""

    def __init__(self, box: SystemdBox, sources: Path, host: str = KAFKA.host) -> None:
        self.box = box
        self.sources = sources
        self.host = host

    def install(self, *arguments: str, tree: str = "", check: bool = True, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """`install.sh --yes ARGUMENTS` of a source tree: the first one, or another beside it."""
        if "--offline" in arguments:  # its wheels are packed here, so the lock does not have them
            listed = f"{arguments[arguments.index('--offline') + 1]}/requirements.txt"
            arguments += ("--offline-sha256", self.box.output(f"sha256sum {listed} | cut -c 1-64"))
        return self.box.run(["bash", f"/sources/{tree or self.sources.name}/install.sh", "--yes", *arguments], check=check, seconds=seconds)

    def millrace(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The command, as root has it on the PATH."""
        return self.box.run(["millrace", *words], check=check)

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.millrace("status", "--json", check=False).stdout)
        return answer

    def get(self, path: str) -> int:
        """HTTP status of the console's answer; 0 if there is none."""
        with self.box.inside():
            try:
                with urllib.request.urlopen(f"http://{self.host}:{HTTP.port}{path}", timeout=5) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code
            except OSError:
                return 0

    def metric(self, name: str) -> float:
        """The sum of all lines of this name in the console's metrics."""
        return sum(self.metric_values(name))

    def metric_values(self, name: str) -> list[float]:
        with self.box.inside(), urllib.request.urlopen(f"http://{self.host}:{HTTP.port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return [float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].partition(" ")[0] == name]

    def edit_settings(self, change: Callable[[str], str]) -> str:
        """As a person does, telling systemd afterwards; what stood there before."""
        file = self.box.path("/etc/millrace/millrace.toml")
        before = file.read_text()
        file.write_text(change(before))
        self.millrace("units", "apply")
        return before

    # --- units ---

    def services(self) -> list[str]:
        """Every service of ours that this box has."""
        return [unit for unit in self.box.output("millrace units list").split() if unit.endswith(".service")]

    def pid(self, unit: str) -> int:
        """Main process, as the box numbers it."""
        return int(self.box.unit(unit, "MainPID")["MainPID"])

    def pids(self) -> dict[str, int]:
        return {unit: self.pid(unit) for unit in self.services()}

    def processes(self) -> list[str]:
        """Pids in the control groups of our units."""
        return self.box.output("find /sys/fs/cgroup -path '*millrace*' -name cgroup.procs -exec cat {} +").split()

    def is_active(self, unit: str) -> bool:
        return self.box.run(["systemctl", "is-active", "--quiet", unit], check=False).returncode == 0

    def await_active(self, unit: str, unlike: int = 0, seconds: float = RESTART_SECONDS) -> int:
        """Until a process other than `unlike` serves; its pid."""

        def serving() -> int | None:
            properties = self.box.unit(unit)
            pid = int(properties["MainPID"])
            return pid if properties["ActiveState"] == "active" and pid not in (0, unlike) else None

        try:
            return int(eventually(serving, f"{unit} serves", seconds))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.box.unit(unit)}\n{self.box.journal('-u', unit, '-n', '40')}") from None

    def await_all_active(self, seconds: float = RESTART_SECONDS) -> None:
        eventually(lambda: self.get("/readyz") == 200, "the console says that the box is ready", seconds)
        for unit in self.services():
            self.await_active(unit, seconds=seconds)
