"""The data directory of the embedded ZooKeeper: syncs it, and decides how a server may start from
what a power cut left there.

ZooKeeper syncs each transaction, but not the snapshots that it writes when it starts, when it
becomes the leader, and when a new leader truncates its log. After a power cut such a snapshot may
be an empty file beside a transaction log that is whole. ZooKeeper skips it and starts from the
newest whole snapshot and the log behind it; without a whole one it refuses to start. `sync_data`
closes that gap: it runs before a server starts, again before it counts as ready, and after each
election. `trusts_empty_snapshot` covers a power cut before that. Without a whole snapshot a server
starts with `zookeeper.snapshot.trust.empty` if its log provably holds every transaction since the
first one: then replaying the log yields the whole tree, and a snapshot adds nothing to it.

What a member receives as a snapshot its log does not have. Such a snapshot is named by a zxid that
is in no log of this member, so each name must be in the log; a purge removes names, but it begins
with `snapshot.0`. A cut-off snapshot that the log continues without its transaction would make a
member that silently lacks transactions, also beside an older snapshot that is whole: it does not
start (a leader overwrites in place the snapshot that it had received, if nothing came after it).

Used by the zookeeper process before it becomes the server, and by its watchers. Weak spots: a
received snapshot is synced by ZooKeeper itself, and its name is durable with the log's next sync
where the file system's journal keeps its order (ext4, XFS); the proof relies on that. Zeros in
place of the last transactions of an epoch look like the end of its log.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress

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
"""The first transaction of a server alone (epoch 0), and that of an ensemble (epoch 1). It has a
later epoch if the first elections failed."""
_COUNTER = (1 << 32) - 1
"""The bits of a zxid that count within an epoch, from 1."""
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

    Raises ConfigurationProblems if it would have to and that is not proven, or if its log lacks
    what a newer snapshot than the whole ones held.
    """
    version = f"{data_directory(state)}/version-2"
    trust_file = f"{os.path.abspath(state)}/zookeeper/{TRUST_FILE}"
    snapshots, logs = _named(version, "snapshot."), _named(version, "log.")
    is_ordered = os.path.exists(trust_file)
    whole = next((zxid for zxid in reversed(snapshots) if _is_whole_snapshot(snapshots[zxid])), None)
    cut_off = {zxid: path for zxid, path in snapshots.items() if whole is None or zxid > whole}
    if not cut_off and whole is not None and is_ordered:
        os.unlink(trust_file)
    if not logs:
        return False  # a server that has stored nothing: it begins an empty tree
    gap = _log_gap(logs, cut_off) if whole is None else _state_between(logs, cut_off)
    if gap is None or is_ordered:
        return whole is None
    found = f"the snapshots there are cut off ({', '.join(map(os.path.basename, cut_off.values()))})" if cut_off else "there is no snapshot"
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


def _log_gap(logs: dict[int, str], snapshots: dict[int, str]) -> str | None:
    """Why the log files do not prove that they hold every transaction since the first, although no
    snapshot is whole; None if they do.
    """
    first, last = min(logs), 0
    if first not in _FIRST_ZXIDS and not (first & _COUNTER == 1 and 0 in snapshots):
        return f"{logs[first]} does not begin with the first transaction"
    states = {zxid: path for zxid, path in snapshots.items() if zxid}
    for named, path in logs.items():
        if last and not _follows(last, named):
            return f"{path} does not continue its predecessor, which ends with transaction {last:x}"
        previous = 0
        try:
            for zxid in _zxids(path, is_last=named == max(logs)):
                if not (_follows(previous, zxid) if previous else zxid == named):
                    return f"{path} has transaction {zxid:x} in place of {previous + 1 if previous else named:x}"
                previous = zxid
                states.pop(zxid, None)
        except ValueError as damage:
            return f"{path} {damage}"
        if not previous and named != max(logs):
            return f"{path} has no transaction"
        last = previous or last
    if last >> 32 > first >> 32 and 0 not in snapshots:
        return f"older files than {logs[first]} may have been purged"
    return next((f"{path} held a state that the log does not have" for path in states.values()), None)


def _follows(zxid: int, later: int) -> bool:
    """Whether no transaction is between the two. Between epochs there is none that a member lacks:
    a new leader sends it what it lacks, as transactions or as a snapshot."""
    return later == zxid + 1 or (later & _COUNTER == 1 and later >> 32 > zxid >> 32)


def _state_between(logs: dict[int, str], cut_off: dict[int, str]) -> str | None:
    """Why a whole snapshot and the log do not lead to the state of a newer snapshot that is cut
    off; None if they do, or if the log ends before it, as for a member that was away.
    """
    last, states = 0, dict(cut_off)
    for path in logs.values() if cut_off else ():
        with suppress(ValueError):  # a server that reads a damaged log reports it itself
            for last in _zxids(path, is_last=True):
                states.pop(last, None)
    return next((f"{path} held a state that the log does not have" for zxid, path in states.items() if zxid < last), None)


def _zxids(path: str, is_last: bool) -> Iterator[int]:
    """The zxid of each transaction of a log file, up to its end; in the last file also up to a torn
    transaction, where ZooKeeper stops too. Raises ValueError for other damage.
    """
    with open(path, "rb") as file:
        header = file.read(_LOG_HEADER.size)
        if not header:
            return  # created, and nothing was synced into it
        if len(header) < _LOG_HEADER.size or _LOG_HEADER.unpack(header)[:2] != (_LOG_MAGIC, _LOG_VERSION):
            raise ValueError("does not begin as a transaction log")
        while any(record := file.read(_RECORD_HEADER.size)):
            checksum, size_bytes = _RECORD_HEADER.unpack(record.ljust(_RECORD_HEADER.size, b"\0"))
            transaction = file.read(size_bytes)
            if not size_bytes or len(transaction) < size_bytes or file.read(1) != _RECORD_END:
                if is_last:
                    return
                raise ValueError(f"is cut off at byte {file.tell()}")
            if zlib.adler32(transaction) != checksum or size_bytes < _TRANSACTION_BYTES_MIN:
                raise ValueError(f"is damaged at byte {file.tell() - size_bytes - 1}")
            yield _ZXID.unpack_from(transaction, _ZXID_POSITION)[0]
