"""Where a box keeps what is not a log: its runtime directory, socket paths and shared-memory names.

The runtime directory lives on tmpfs (`/run/millrace/BOX` for root, `$XDG_RUNTIME_DIR/millrace/BOX`), else in the state directory (`STATE/run/BOX`), never
on a log disk, so that every command can find its box while a disk hangs; never in /tmp, where any user can make it first. `box.json` in it is written by
the supervisor (or by install.sh) before any process starts and is the one place from which a process learns its settings. Weak spot: Unix socket paths
end at 107 bytes, hence the short directory names.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from appliance.base.box_registry import registered_roots
from appliance.base.trusted_files import open_directory, read_file

RUNTIME_VARIABLE = "MILLRACE_RUNTIME"
DATA_VARIABLE = "MILLRACE_DATA"
SYSTEM_ROOT = "/run/millrace"
BOX_FILE = "box.json"
BOX_FILE_BYTES_MAX = 16 << 20


class Disk(NamedTuple):
    """One log directory: `name` is what processes and counters are called after, `path` its absolute path. `replacements`: how often another directory has
    taken the place of the one before, for those who still know a process that served that."""

    name: str
    path: str
    replacements: int = 0


def box_name(state_directory: str) -> str:
    """A short name for the box, from its state directory's absolute path: stable over restarts, distinct on one machine."""
    import hashlib  # OpenSSL, 2 MB: only those who name a box need it, and they are short-lived or few

    return hashlib.blake2b(os.path.abspath(state_directory).encode(), digest_size=5).hexdigest()


def name_disks(directories: list[str]) -> list[Disk]:
    """Name each directory after its last component, longer where two would be alike: /srv/d0 → d0; /a/log, /b/log → a-log, b-log."""
    paths = [os.path.abspath(directory) for directory in directories]
    depth = 1
    names = [_tail_name(path, depth) for path in paths]
    while len(set(names)) < len(set(paths)) and depth < 64:
        depth += 1
        names = [_tail_name(path, depth) for path in paths]
    return [Disk(name, path) for name, path in zip(names, paths, strict=True)]


def _tail_name(path: str, depth: int) -> str:
    return "-".join([part for part in path.split("/") if part][-depth:]) or "root"


def preferred_roots(state: str) -> list[str]:
    """Directories that a box of this user takes for its runtime directory, the first that can be used."""
    own = _session_roots() or [f"{state}/run"]
    return [SYSTEM_ROOT, *own] if os.geteuid() == 0 else own


def runtime_roots(state: str = "") -> list[str]:
    """Directories that may hold runtime directories of boxes, the preferred ones for this user first. `state`: a state directory to look in, too."""
    own = [*_session_roots(), *([f"{state}/run"] if state else []), *registered_roots()]
    return list(dict.fromkeys([SYSTEM_ROOT, *own] if os.geteuid() == 0 else [*own, SYSTEM_ROOT]))


def _session_roots() -> list[str]:
    """A path that is not absolute is to be ignored (XDG Base Directory Specification)."""
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    return [f"{session}/millrace"] if session.startswith("/") else []


class BoxLayout:
    """Names of everything that the processes of one box share. Holds no open resource."""

    def __init__(self, runtime_directory: str) -> None:
        self.runtime_directory = runtime_directory
        self.box = os.path.basename(runtime_directory)

    @classmethod
    def from_environment(cls) -> BoxLayout:
        return cls(os.environ[RUNTIME_VARIABLE])

    @property
    def box_file(self) -> str:
        return f"{self.runtime_directory}/{BOX_FILE}"

    @property
    def image_file(self) -> str:
        """The metadata image, replaced whole by the controller."""
        return f"{self.runtime_directory}/image"

    @property
    def controller_socket(self) -> str:
        return f"{self.runtime_directory}/controller.sock"

    @property
    def coordinator_socket(self) -> str:
        return f"{self.runtime_directory}/coordinator.sock"

    @property
    def supervisor_socket(self) -> str:
        return f"{self.runtime_directory}/supervisor.sock"

    @property
    def stopping_file(self) -> str:
        """There while the whole box stops."""
        return f"{self.runtime_directory}/stopping"

    @property
    def left_file(self) -> str:
        """There once a box that stops leads nothing any more that another box can lead; the controller makes it."""
        return f"{self.runtime_directory}/left"

    def log_writer_socket(self, disk: str) -> str:
        return f"{self.runtime_directory}/log-writer@{disk}.sock"

    def log_reader_socket(self, disk: str) -> str:
        return f"{self.runtime_directory}/log-reader@{disk}.sock"

    def senders_socket(self, index: int) -> str:
        """Where an ingest takes connections that another one has accepted."""
        return f"{self.runtime_directory}/senders@{index}.sock"

    def shared_memory_name(self, purpose: str, owner: str, incarnation: int | None = None) -> str:
        """`/millrace.BOX.purpose.owner[.incarnation]`; counters alone have no incarnation, their next life adopts them."""
        name = f"{self.shared_memory_prefix}{purpose}.{owner}"
        return name if incarnation is None else f"{name}.{incarnation:x}"

    @property
    def shared_memory_prefix(self) -> str:
        return f"/millrace.{self.box}."

    def read_box(self) -> dict[str, Any]:
        """The content of `box.json` (see `appliance.base.settings.Box`). Raises OSError, also if another user could have written it, or ValueError."""
        directory = open_directory(self.runtime_directory)
        try:
            loaded: dict[str, Any] = json.loads(read_file(BOX_FILE, BOX_FILE_BYTES_MAX, directory))
        finally:
            os.close(directory)
        return loaded


def boot_id() -> bytes:
    """The kernel's id of this boot, 16 bytes: shared memory and page cache of another boot are gone."""
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
