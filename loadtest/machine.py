"""Names the machine that a figure was measured on. Weak spot: a virtual machine's CPU model says little about its neighbours; hence the load."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import NamedTuple

from appliance import __version__

ROOT = Path(__file__).parent.parent


class Machine(NamedTuple):
    """All in words, for people."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    file_system: str
    version: str

    def __str__(self) -> str:
        system = f"{self.memory_gib:.0f} GiB, Linux {self.kernel}, Python {self.python}, {self.file_system}"
        return f"{self.cpu}, {self.cores} cores, {system}; Millrace {self.version}"


def describe_machine(scratch: Path) -> Machine:
    """`scratch`: where the log directories will be, for its file system."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        _cpu_model(), os.cpu_count() or 1, round(memory_bytes / 2**30, 1), platform.release(), platform.python_version(), _file_system(scratch), _version()
    )


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return model + (" (virtual machine)" if any(line.startswith("flags") and " hypervisor" in line for line in lines) else "")


def _file_system(directory: Path) -> str:
    asked = subprocess.run(["stat", "-f", "-c", "%T", str(directory)], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown file system"


def _version() -> str:
    """The version, and the commit that is checked out where there is one."""
    try:
        head = (ROOT / ".git/HEAD").read_text().strip()
        commit = (ROOT / ".git" / head.removeprefix("ref: ")).read_text().strip() if head.startswith("ref: ") else head
    except OSError:
        return __version__
    return f"{__version__} after {commit[:10]}"


def load_average() -> float:
    """Of the last minute."""
    return os.getloadavg()[0]
