"""How a ZooKeeper server starts from what a power cut left of its files. The files are those of real servers."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from appliance.base.errors import ConfigurationProblems
from appliance.base.layout import Disk
from appliance.base.settings import Box
from appliance.cluster import zookeeper_server as zookeeper
from appliance.cluster.zookeeper_files import TRUST_FILE, sync_data, trusts_empty_snapshot
from appliance.storage import file_io
from lab.real_zookeeper import RealZooKeeper

pytestmark = pytest.mark.slow  # the JVM


class StoredTree:
    """What a server that was killed has left: STATE with `log.1` and `log.N`, and a snapshot before each."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.version = state / "zookeeper" / "data" / "version-2"

    @property
    def logs(self) -> list[Path]:
        return sorted(self.version.glob("log.*"), key=lambda path: int(path.suffix[1:], 16))

    def cut_snapshots(self, content: bytes = b"") -> None:
        """As a power cut leaves snapshots that were never synced."""
        for snapshot in self.version.glob("snapshot.*"):
            snapshot.write_bytes(content)

    def problem(self) -> str:
        with pytest.raises(ConfigurationProblems) as raised:
            trusts_empty_snapshot(str(self.state))
        assert len(raised.value.problems) == 1 and 'see the runbook: docs/troubleshooting.md, "ZooKeeper has no snapshot"' in raised.value.problems[0]
        return raised.value.problems[0]


def _transactions(log: Path) -> list[tuple[int, int]]:
    """Where each transaction of a log begins, and its size."""
    content, position, found = log.read_bytes(), 16, []
    while any(record := content[position : position + 12]):
        size_bytes = struct.unpack(">QI", record)[1]
        found.append((position, size_bytes))
        position += 12 + size_bytes + 1
    return found


def _move_to_epoch(log: Path, epoch: int) -> Path:
    """The log as the member of an ensemble writes it after an election: its transactions are counted from 1."""
    content = bytearray(log.read_bytes())
    for number, (position, size_bytes) in enumerate(_transactions(log), 1):
        transaction = position + 12
        struct.pack_into(">Q", content, transaction + 12, (epoch << 32) + number)
        struct.pack_into(">Q", content, position, zlib.adler32(content[transaction : transaction + size_bytes]))
    moved = log.with_name(f"log.{(epoch << 32) + 1:x}")
    log.unlink()
    moved.write_bytes(content)
    return moved


def put(server: RealZooKeeper, *paths: str) -> None:
    client = KazooClient(server.connect, timeout=5)
    client.start(10)
    try:
        for path in paths:
            client.create(path, path.encode())
    finally:
        client.stop()
        client.close()


def children(server: RealZooKeeper) -> list[str]:
    client = KazooClient(server.connect, timeout=5)
    client.start(10)
    try:
        return sorted(client.get_children("/"))
    finally:
        client.stop()
        client.close()


@pytest.fixture(scope="module")
def killed_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of a server that ran twice and was killed twice."""
    directory = tmp_path_factory.mktemp("killed")
    server = RealZooKeeper(directory)
    put(server, "/a", "/b")
    server.kill()
    server.start()
    put(server, "/c")
    server.kill()
    return directory


@pytest.fixture
def stored(killed_server: Path, tmp_path: Path) -> Iterator[StoredTree]:
    shutil.copytree(killed_server / "state", tmp_path / "state")
    tree = StoredTree(tmp_path / "state")
    assert [path.name for path in tree.logs] == ["log.1", "log.5"], "session, two nodes, end of the session; then the next server's"
    yield tree


def test_the_first_snapshot_of_a_server_is_lost_and_it_starts_again_with_every_transaction(tmp_path: Path) -> None:
    server = RealZooKeeper(tmp_path)
    try:
        put(server, "/a", "/b")
        server.kill()
        tree = StoredTree(tmp_path / "state")
        assert [path.name for path in tree.version.glob("snapshot.*")] == ["snapshot.0"]
        tree.cut_snapshots()
        server.start()
        assert children(server) == ["a", "b", "zookeeper"]
        put(server, "/c")
        server.kill()
        server.start()
        assert children(server) == ["a", "b", "c", "zookeeper"]
    finally:
        server.stop()


@pytest.mark.parametrize("content", [b"", bytes(4096), b"ZKSN" + bytes(100)])
def test_a_server_trusts_a_log_that_begins_with_the_first_transaction_and_has_no_gap(stored: StoredTree, content: bytes) -> None:
    stored.cut_snapshots(content)
    assert trusts_empty_snapshot(str(stored.state))


def test_a_server_that_has_one_whole_snapshot_uses_it(stored: StoredTree) -> None:
    newest = max(stored.version.glob("snapshot.*"), key=lambda path: int(path.suffix[1:], 16))
    newest.write_bytes(b"")
    assert len(list(stored.version.glob("snapshot.*"))) > 1 and not trusts_empty_snapshot(str(stored.state))


def test_a_server_starts_from_the_log_of_two_epochs_with_every_transaction(stored: StoredTree, tmp_path: Path) -> None:
    """Its first elections were before the first sync: each leader's snapshot is lost."""
    _move_to_epoch(stored.logs[1], 2)
    _move_to_epoch(stored.logs[0], 1)
    (stored.version / "snapshot.4").rename(stored.version / "snapshot.100000004")
    stored.cut_snapshots()
    server = RealZooKeeper(tmp_path / "server", str(stored.state))
    try:
        assert children(server) == ["a", "b", "c", "zookeeper"]
    finally:
        server.stop()


def test_the_first_transaction_is_in_a_later_epoch_if_the_first_elections_failed(stored: StoredTree) -> None:
    first, second = stored.logs
    second.unlink()
    (stored.version / "snapshot.4").unlink()
    _move_to_epoch(first, 3)
    stored.cut_snapshots()
    assert trusts_empty_snapshot(str(stored.state))


def test_a_snapshot_that_is_cut_off_beside_a_whole_one_costs_nothing(stored: StoredTree, tmp_path: Path) -> None:
    """What a power cut right after an election leaves: ZooKeeper skips it."""
    (stored.version / "snapshot.4").write_bytes(b"")
    server = RealZooKeeper(tmp_path / "server", str(stored.state))
    try:
        assert children(server) == ["a", "b", "c", "zookeeper"]
    finally:
        server.stop()


@pytest.mark.parametrize("content", [b"", b"ZKSN" + bytes(100)])
def test_a_server_does_not_start_from_an_older_snapshot_if_the_log_continues_one_that_is_cut_off(stored: StoredTree, content: bytes) -> None:
    """A member overwrote the snapshot that it had received, when it became the leader; ZooKeeper would start and lack what the snapshot held."""
    _move_to_epoch(stored.logs[1], 2)
    received = stored.version / "snapshot.100000007"
    received.write_bytes(content)
    assert str(received) in stored.problem()
    order = stored.state / "zookeeper" / TRUST_FILE
    order.touch()
    assert not trusts_empty_snapshot(str(stored.state)) and order.exists()
    received.unlink()
    assert not trusts_empty_snapshot(str(stored.state)) and not order.exists()


def test_a_server_starts_from_an_older_snapshot_if_the_log_ends_before_one_that_is_cut_off(stored: StoredTree) -> None:
    """Its leader sends what it lacks."""
    (stored.version / "snapshot.100000007").touch()
    assert not trusts_empty_snapshot(str(stored.state))


def test_a_server_that_has_stored_nothing_begins_as_a_new_one(tmp_path: Path) -> None:
    assert not trusts_empty_snapshot(str(tmp_path))
    version = tmp_path / "zookeeper" / "data" / "version-2"
    version.mkdir(parents=True)
    (version / "snapshot.0").touch()
    assert not trusts_empty_snapshot(str(tmp_path))


def _drop_the_first_log(stored: StoredTree) -> Path:
    stored.logs[0].unlink()
    return stored.logs[0]


def _drop_the_end_of_the_first_log(stored: StoredTree) -> Path:
    first = stored.logs[0]
    content = first.read_bytes().rstrip(b"\0")
    first.write_bytes(content[: len(content) - 20])
    return first


def _drop_the_last_transaction_of_the_first_log(stored: StoredTree) -> Path:
    first, second = stored.logs
    first.write_bytes(first.read_bytes()[: _transactions(first)[-1][0]])
    return second


def _empty_the_first_log(stored: StoredTree) -> Path:
    stored.logs[0].write_bytes(b"")
    return stored.logs[0]


def _begin_later(stored: StoredTree) -> Path:
    """As after a purge, in the third epoch."""
    first, second = stored.logs
    first.unlink()
    (stored.version / "snapshot.0").unlink()
    return _move_to_epoch(second, 3)


def _purge_in_the_first_epoch(stored: StoredTree) -> Path:
    """The log goes on into the next epoch; the name of a received snapshot may have been purged."""
    _move_to_epoch(stored.logs[1], 2)
    (stored.version / "snapshot.0").rename(stored.version / "snapshot.3")
    return stored.logs[0]


def _receive_a_snapshot_in_a_later_epoch(stored: StoredTree) -> Path:
    _move_to_epoch(stored.logs[1], 2)
    received = stored.version / "snapshot.100000007"
    received.touch()
    return received


def _change_a_byte(stored: StoredTree) -> Path:
    content = bytearray(stored.logs[0].read_bytes())
    content[60] ^= 1
    stored.logs[0].write_bytes(content)
    return stored.logs[0]


def _zero_the_last_log(stored: StoredTree) -> Path:
    stored.logs[-1].write_bytes(bytes(stored.logs[-1].stat().st_size))
    return stored.logs[-1]


def _leave_a_state_from_before_the_log(stored: StoredTree) -> Path:
    """As of a member whose ensemble began with the tree of a box that had been alone."""
    for path in stored.version.glob("*.[1-9]"):
        path.unlink()
    (stored.version / "log.100000001").touch()
    (stored.version / "snapshot.50").touch()
    return stored.version / "snapshot.50"


@pytest.mark.parametrize(
    "damage",
    [
        _drop_the_first_log,
        _drop_the_end_of_the_first_log,
        _drop_the_last_transaction_of_the_first_log,
        _empty_the_first_log,
        _begin_later,
        _purge_in_the_first_epoch,
        _receive_a_snapshot_in_a_later_epoch,
        _change_a_byte,
        _zero_the_last_log,
        _leave_a_state_from_before_the_log,
    ],
)
def test_a_server_refuses_to_start_from_a_log_that_may_lack_transactions_and_names_the_file(stored: StoredTree, damage: Callable[[StoredTree], Path]) -> None:
    stored.cut_snapshots()
    named = damage(stored)
    problem = stored.problem()
    assert str(named) in problem and str(stored.version) in problem and "snapshot." in problem


def test_a_torn_end_of_the_last_log_is_no_gap(stored: StoredTree) -> None:
    stored.cut_snapshots()
    last = stored.logs[-1]
    content = last.read_bytes().rstrip(b"\0")
    last.write_bytes(content[: len(content) - 20] + bytes(4096))
    assert trusts_empty_snapshot(str(stored.state))


def test_an_operator_may_order_a_start_from_the_log_alone_and_the_order_ends_with_the_next_snapshot(stored: StoredTree) -> None:
    whole = {path: path.read_bytes() for path in stored.version.glob("snapshot.*")}
    stored.cut_snapshots()
    _drop_the_first_log(stored)
    stored.problem()
    order = stored.state / "zookeeper" / TRUST_FILE
    order.touch()
    assert trusts_empty_snapshot(str(stored.state)) and order.exists(), "that server may be killed before it has written a snapshot"
    for path, content in whole.items():
        path.write_bytes(content)
    assert not trusts_empty_snapshot(str(stored.state)) and not order.exists()


def test_only_a_server_that_has_no_snapshot_is_started_with_trust(stored: StoredTree) -> None:
    box = Box("x", 1, [Disk("d0", "/nonexistent")], str(stored.state), "127.0.0.1", "h", 1, 1, 1, zookeeper="127.0.0.1:2999")
    assert zookeeper.TRUST_EMPTY_SNAPSHOT not in zookeeper.prepare(box)
    stored.cut_snapshots()
    assert zookeeper.TRUST_EMPTY_SNAPSHOT in zookeeper.prepare(box)


def test_files_that_cannot_be_synced_keep_a_server_from_starting_and_the_reason_is_said(stored: StoredTree, monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box("x", 1, [Disk("d0", "/nonexistent")], str(stored.state), "127.0.0.1", "h", 1, 1, 1, zookeeper="127.0.0.1:2999")

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(file_io, "fsync", fail)
    with pytest.raises(ConfigurationProblems, match=f"could not read and sync {stored.state}/zookeeper: Input/output error; check the disk"):
        zookeeper.prepare(box)


def test_every_file_of_a_server_is_synced_and_then_each_directory_up_to_the_state(stored: StoredTree, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = file_io.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(file_io, "fsync", note)
    sync_data(str(stored.state))
    files = sorted(str(path) for path in stored.version.iterdir())
    assert synced[: len(files)] == files
    assert synced[len(files) :] == [str(path) for path in (stored.version, *list(stored.version.parents)[:3])]
