"""Paths and names that the processes of a box share: runtime directory, sockets, shared memory.

The runtime directory is on tmpfs (`/run/millrace/BOX` for root, `$XDG_RUNTIME_DIR/millrace/BOX`),
or in the state directory (`STATE/run/BOX`). It is never on a log disk, so that commands find their
box while a disk hangs, and never in /tmp, where any user can create it first. The supervisor (or
install.sh) writes its `box.json` before any process starts; processes read their settings only
there. Weak: paths of Unix sockets have at most 107 bytes, hence the short names.
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
BOOT_ID_VARIABLE = "MILLRACE_BOOT_ID"
"""Set by the units, whose processes see no `/proc/sys`."""
SYSTEM_ROOT = "/run/millrace"
BOX_FILE = "box.json"
INGEST_STATE = "ingest"
"""The part of the state directory that ingest writes to."""
CONSOLE_STATE = "console"
"""The part that the console writes to."""
TABLES_STATE = "tables"
"""The part that the tabler writes to."""
NETWORK_DIRECTORY = "net"
"""The part of the runtime directory that processes facing the network write to."""
BOX_FILE_BYTES_MAX = 16 << 20


class Disk(NamedTuple):
    """One log directory. `name` appears in the names of processes and counters; `path` is absolute.
    `replacements` counts how often another directory has replaced the one before, so that clients
    of the old process notice."""

    name: str
    path: str
    replacements: int = 0


def box_name(state_directory: str) -> str:
    """Return a short name of a box, from the absolute path of its state directory: stable over
    restarts, unique on a machine."""
    import hashlib  # loads OpenSSL (2 MB), so only functions that need it import it

    return hashlib.blake2b(os.path.abspath(state_directory).encode(), digest_size=5).hexdigest()


def name_disks(directories: list[str]) -> list[Disk]:
    """Name each directory by its last component, with more components if two are equal: /srv/d0 →
    d0; /a/log, /b/log → a-log, b-log."""
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
    """Return the parents of a runtime directory for a box of this user, in the order of preference."""
    own = _session_roots() or [f"{state}/run"]
    return [SYSTEM_ROOT, *own] if os.geteuid() == 0 else own


def runtime_roots(state: str = "") -> list[str]:
    """Return directories that may contain runtime directories, the preferred ones of this user
    first. `state`: a further state directory."""
    own = [*_session_roots(), *([f"{state}/run"] if state else []), *registered_roots()]
    return list(dict.fromkeys([SYSTEM_ROOT, *own] if os.geteuid() == 0 else [*own, SYSTEM_ROOT]))


def _session_roots() -> list[str]:
    """Return the roots in XDG_RUNTIME_DIR. A relative path is ignored (XDG Base Directory
    Specification)."""
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    return [f"{session}/millrace"] if session.startswith("/") else []


class BoxLayout:
    """Names of all that the processes of one box share. Holds no open resource."""

    def __init__(self, runtime_directory: str) -> None:
        self.runtime_directory = runtime_directory
        self.box = os.path.basename(runtime_directory)

    @classmethod
    def from_environment(cls) -> BoxLayout:
        """Return the layout of the runtime directory in `MILLRACE_RUNTIME`."""
        return cls(os.environ[RUNTIME_VARIABLE])

    @property
    def box_file(self) -> str:
        return f"{self.runtime_directory}/{BOX_FILE}"

    @property
    def image_file(self) -> str:
        """The metadata image, which the controller replaces atomically."""
        return f"{self.runtime_directory}/image"

    @property
    def security_image_file(self) -> str:
        """The access control lists, beside the metadata image."""
        return f"{self.runtime_directory}/security-image"

    @property
    def credential_image_file(self) -> str:
        """What verifies the users, beside the security image."""
        return f"{self.runtime_directory}/credential-image"

    @property
    def token_image_file(self) -> str:
        """The delegation tokens, beside the security image."""
        return f"{self.runtime_directory}/token-image"

    @property
    def quota_image_file(self) -> str:
        """The client quotas, beside the security image."""
        return f"{self.runtime_directory}/quota-image"

    @property
    def log_levels_file(self) -> str:
        """The log levels that were set while the box runs (`runtime/settings_watch.py`)."""
        return f"{self.runtime_directory}/log-levels"

    @property
    def controller_socket(self) -> str:
        return f"{self.runtime_directory}/controller.sock"

    @property
    def coordinator_socket(self) -> str:
        return f"{self.runtime_directory}/coordinator.sock"

    @property
    def console_socket(self) -> str:
        """The console's HTTP for this machine: no other connection can keep it busy."""
        return f"{self.network_directory}/console.sock"

    @property
    def kafka_socket(self) -> str:
        """Where commands of this machine connect by Kafka's protocol, without a password, if an
        acceptor made the socket."""
        return f"{self.network_directory}/kafka.sock"

    def administration_socket(self, is_unit: bool) -> str:
        """Return where they connect. systemd makes the socket of its box where no process that faces
        the network can replace it."""
        return f"{SYSTEM_ROOT}/kafka.sock" if is_unit else self.kafka_socket

    @property
    def network_directory(self) -> str:
        """What the processes that face the network write to. Others trust nothing in it."""
        return f"{self.runtime_directory}/{NETWORK_DIRECTORY}"

    @property
    def supervisor_socket(self) -> str:
        return f"{self.runtime_directory}/supervisor.sock"

    @property
    def stopping_file(self) -> str:
        """Exists while the whole box stops."""
        return f"{self.runtime_directory}/stopping"

    @property
    def left_file(self) -> str:
        """Exists when a stopping box leads no partition that another box can lead; created by the
        controller."""
        return f"{self.runtime_directory}/left"

    @property
    def message_file(self) -> str:
        """What the processes of `millrace run` report (`base/message_file.py`)."""
        return f"{self.runtime_directory}/messages"

    @property
    def tables_file(self) -> str:
        """What the tabler shows of its tables."""
        return f"{self.runtime_directory}/tables.json"

    @property
    def searched_directory(self) -> str:
        """Of the topics that were searched."""
        return f"{self.network_directory}/searched"

    @property
    def shared_memory_turn_file(self) -> str:
        """Which process restarts because its shared memory is gone (`runtime/shared_memory.py`)."""
        return f"{self.network_directory}/shared-memory-turn"

    def log_writer_socket(self, disk: str) -> str:
        """Return the path of the socket of a disk's log-writer."""
        return f"{self.runtime_directory}/log-writer@{disk}.sock"

    def log_reader_socket(self, disk: str) -> str:
        """Return the path of the socket of a disk's log-reader."""
        return f"{self.runtime_directory}/log-reader@{disk}.sock"

    def senders_socket(self, index: int) -> str:
        """Return the socket on which an ingest receives connections that another one has accepted."""
        return f"{self.network_directory}/senders@{index}.sock"

    def tap_socket(self, index: int) -> str:
        """Return the socket on which an ingest shows what passes."""
        return f"{self.network_directory}/tap@{index}.sock"

    def shared_memory_name(self, purpose: str, owner: str, incarnation: int | None = None) -> str:
        """Return `/millrace.BOX.purpose.owner[.incarnation]`. Counters have no incarnation: the
        next one adopts them."""
        name = f"{self.shared_memory_prefix}{purpose}.{owner}"
        return name if incarnation is None else f"{name}.{incarnation:x}"

    @property
    def shared_memory_prefix(self) -> str:
        return f"/millrace.{self.box}."

    def read_box(self) -> dict[str, Any]:
        """Return the content of `box.json` (see `appliance.base.settings.Box`). Raises ValueError,
        or OSError, also if another user could have written it."""
        directory = open_directory(self.runtime_directory)
        try:
            loaded: dict[str, Any] = json.loads(read_file(BOX_FILE, BOX_FILE_BYTES_MAX, directory))
        finally:
            os.close(directory)
        return loaded


def boot_id() -> bytes:
    """Return the kernel's id of this boot, 16 bytes. Shared memory and page cache of another boot
    do not exist any more."""
    given = os.environ.get(BOOT_ID_VARIABLE) or Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return bytes.fromhex(given.replace("-", ""))
