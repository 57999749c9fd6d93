"""The data directory of the embedded ZooKeeper: syncs it, and decides how a server may start from
what a power cut left there.

ZooKeeper syncs each transaction, but not the snapshot that it writes when it starts. After a power
cut the snapshot may be an empty file beside a transaction log that is whole, and ZooKeeper refuses
to start. `sync_data` closes that gap: it runs before a server starts, and again before it counts as
ready. `trusts_empty_snapshot` covers a power cut before that. Without a usable snapshot a server
starts with `zookeeper.snapshot.trust.empty` if its log provably holds every transaction since the
first one: then replaying the log yields the whole tree, and a snapshot adds nothing to it.

Used by the zookeeper process before it becomes the server, and by its watchers. Weak spots: the
proof accepts one epoch only, because between two epochs a member may have received transactions as
a snapshot, and its log does not show that. Such a snapshot is synced by ZooKeeper itself, and its
name is durable with the log's next sync where the file system's journal keeps its order (ext4,
XFS); the proof relies on that for an ensemble that began with the tree of a single box.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator

from appliance.base.errors import ConfigurationProblems
from appliance.storage import file_io

TRUST_FILE = "trust-empty-snapshot"
"""In STATE/zookeeper. An operator creates it to start from the log alone where that is not proven;
removed once there is a snapshot."""
RUNBOOK_STEP = 'docs/troubleshooting.md, "ZooKeeper has no snapshot"'

_LOG_HEADER = struct.Struct(">4sIQ")  # magic, version, database id
_LOG_MAGIC, _LOG_VERSION = b"ZKLG", 2
_RECORD_HEADER = struct.Struct(">QI")  # Adler-32 of the transaction, its size in bytes
_ZXID = struct.Struct(">Q")
_ZXID_POSITION = 12  # in a transaction: behind the client id (8 bytes) and the cxid (4)
_TRANSACTION_BYTES_MIN = 32  # a transaction header
_RECORD_END = b"B"
_FIRST_ZXIDS = (1, (1 << 32) + 1)
"""The first transaction of a server alone (epoch 0), and that of an ensemble (epoch 1)."""
_SNAPSHOT_BYTES_MIN = 10
_SNAPSHOT_END = b"\0\0\0\x01/"


def data_directory(state: str) -> str:
    return f"{os.path.abspath(state)}/zookeeper/data"


def sync_data(state: str) -> None:
    """Sync every file of the server and the directories that name them, up to the state directory.

    Raises OSError.
    """
    data = data_directory(state)
    version = f"{data}/version-2"
    paths = [version, data, os.path.dirname(data), os.path.abspath(state)]
    if os.path.isdir(version):
        paths = [*(f"{version}/{name}" for name in sorted(os.listdir(version))), *paths]
    for path in paths:
        try:
            descriptor = file_io.open_file(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # a temporary file of the running server, or a server that has never run
        try:
            file_io.fsync(descriptor)
        finally:
            file_io.close(descriptor)


def trusts_empty_snapshot(state: str) -> bool:
    """Whether a server starts from its transaction log alone.

    Raises ConfigurationProblems if it would have to and that is not proven.
    """
    version = f"{data_directory(state)}/version-2"
    trust_file = f"{os.path.abspath(state)}/zookeeper/{TRUST_FILE}"
    snapshots, logs = _named(version, "snapshot."), _named(version, "log.")
    is_ordered = os.path.exists(trust_file)
    if any(_is_whole_snapshot(path) for path in snapshots.values()):
        if is_ordered:
            os.unlink(trust_file)
        return False
    if not logs:
        return False  # a server that has stored nothing: it begins an empty tree
    gap = _log_gap(logs) or _state_before(logs, snapshots)
    if gap is None or is_ordered:
        return True
    found = f"the snapshots there are cut off ({', '.join(map(os.path.basename, snapshots.values()))})" if snapshots else "there is no snapshot"
    raise ConfigurationProblems(
        [
            f"ZooKeeper cannot start from {version}: {found}, and its transaction log does not prove that it holds every transaction: {gap};"
            f" see the runbook: {RUNBOOK_STEP}"
        ]
    )


def _named(directory: str, prefix: str) -> dict[int, str]:
    """Files by the zxid in their name, ascending."""
    names = [name for name in os.listdir(directory) if name.startswith(prefix)] if os.path.isdir(directory) else []
    found = {int(digits, 16): f"{directory}/{prefix}{digits}" for name in names if (digits := name.removeprefix(prefix)).isalnum()}
    return dict(sorted(found.items()))


def _is_whole_snapshot(path: str) -> bool:
    """As ZooKeeper tests it (`SnapStream.isValidSnapshot`): long enough, and ended."""
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) < _SNAPSHOT_BYTES_MIN:
            return False
        file.seek(-len(_SNAPSHOT_END), os.SEEK_END)
        return file.read() == _SNAPSHOT_END


def _log_gap(logs: dict[int, str]) -> str | None:
    """Why the log files do not prove that they hold every transaction since the first; None if they
    do.
    """
    expected = 0
    for named, path in logs.items():
        if not expected and named not in _FIRST_ZXIDS:
            return f"{path} does not begin with the first transaction"
        if expected and named != expected:
            return f"{path} does not continue its predecessor, which ends before transaction {expected:x}"
        expected = expected or named
        try:
            for zxid in _zxids(path):
                if zxid != expected:
                    return f"{path} has transaction {zxid:x} in place of {expected:x}"
                expected += 1
        except ValueError as damage:
            return f"{path} {damage}"
    return None


def _state_before(logs: dict[int, str], snapshots: dict[int, str]) -> str | None:
    """The snapshot that shows a state older than the log: of a member that received it from its
    leader. None if there is none.
    """
    path = next((path for zxid, path in snapshots.items() if 0 < zxid < min(logs)), None)
    return None if path is None else f"{path} held a state from before the log"


def _zxids(path: str) -> Iterator[int]:
    """The zxid of each transaction of a log file, up to a torn or missing end, where ZooKeeper
    stops too. Raises ValueError for other damage.
    """
    with open(path, "rb") as file:
        header = file.read(_LOG_HEADER.size)
        if not header:
            return  # created, and nothing was synced into it
        if len(header) < _LOG_HEADER.size or _LOG_HEADER.unpack(header)[:2] != (_LOG_MAGIC, _LOG_VERSION):
            raise ValueError("does not begin as a transaction log")
        while len(record := file.read(_RECORD_HEADER.size)) == _RECORD_HEADER.size:
            checksum, size_bytes = _RECORD_HEADER.unpack(record)
            transaction = file.read(size_bytes)
            if not size_bytes or len(transaction) < size_bytes or file.read(1) != _RECORD_END:
                return
            if zlib.adler32(transaction) != checksum or size_bytes < _TRANSACTION_BYTES_MIN:
                raise ValueError(f"is damaged at byte {file.tell() - size_bytes - 1}")
            yield _ZXID.unpack_from(transaction, _ZXID_POSITION)[0]
