"""Ownership, identity, partitions and checkpoints of a log directory."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ConfigurationProblems, ErrorCode, RequestRefused, StorageFailed
from appliance.base.model import TopicId, TopicPartition
from appliance.storage.checkpoints import CLEANED, FILES, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, read_offsets
from appliance.storage.directory_identity import MetaProperties
from appliance.storage.log_directory import LogDirectory
from appliance.storage.partition_directory import is_leaving, leaving_name, parse_partition_name
from tests.unit.storage.storage_support import NAME, TOPIC_ID, close_clean, failing_file_calls

CLUSTER = "Ab3dEf6HijKlmn0pQrStUv"


def opened(path: Path, broker_id: int = 1, cluster_id: str | None = CLUSTER) -> LogDirectory:
    return LogDirectory.open(str(path), broker_id, cluster_id, ManualClock())


def test_a_new_directory_is_made_and_named(tmp_path: Path) -> None:
    directory = opened(tmp_path / "a" / "d0")
    assert not directory.was_clean
    content = (tmp_path / "a" / "d0" / "meta.properties").read_text()
    assert content.splitlines() == ["#", "version=0", "broker.id=1", f"cluster.id={CLUSTER}"]
    directory.abandon()


def test_a_cluster_id_may_come_later(tmp_path: Path) -> None:
    directory = opened(tmp_path, cluster_id=None)
    assert directory.identity.cluster_id is None
    directory.abandon()
    again = opened(tmp_path)
    assert again.identity.cluster_id == CLUSTER
    again.abandon()


@pytest.mark.parametrize(("broker_id", "cluster_id", "reason"), [(2, CLUSTER, "belongs to broker 1"), (1, "another", f"belongs to cluster {CLUSTER}")])
def test_a_directory_of_another_broker_or_cluster_is_refused(tmp_path: Path, broker_id: int, cluster_id: str, reason: str) -> None:
    opened(tmp_path).abandon()
    with pytest.raises(ConfigurationProblems, match=reason):
        opened(tmp_path, broker_id, cluster_id)
    opened(tmp_path).abandon()  # a refusal keeps no lock


def test_kafkas_own_file_is_understood_and_kept(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text(f"#\n#Mon Nov 18 10:00:00 UTC 2024\nversion=0\ndirectory.id=x\ncluster.id={CLUSTER}\nbroker.id=1\n")
    before = (tmp_path / "meta.properties").read_bytes()
    opened(tmp_path).abandon()
    assert (tmp_path / "meta.properties").read_bytes() == before
    assert MetaProperties.decode(before).others == (("directory.id", "x"),)


def test_a_directory_of_a_kraft_broker_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\n")
    with pytest.raises(ConfigurationProblems, match="KRaft"):
        opened(tmp_path)


@pytest.mark.slow
@pytest.mark.system
def test_a_directory_in_use_says_by_whom(tmp_path: Path) -> None:
    program = (
        "import sys; from appliance.storage.log_directory import LogDirectory; from appliance.base.clock import SystemClock;"
        f"d = LogDirectory.open({str(tmp_path)!r}, 1, None, SystemClock()); print('up', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == b"up\n"
        with pytest.raises(ConfigurationProblems, match=f"in use by process {holder.pid}"):
            opened(tmp_path)
        holder.kill()
        holder.wait()
    opened(tmp_path).abandon()


def test_a_clean_stop_is_seen_once(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    close_clean(directory, recovery_points={NAME: 5}, high_watermarks={NAME: 4}, log_start_offsets={NAME: 1})
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":-1,"segments":"2ab4b802"}'
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nsyslog 3 5\n"
    again = opened(tmp_path)
    assert again.was_clean
    assert (again.checkpoints.lines[RECOVERY_POINTS], again.checkpoints.lines[HIGH_WATERMARKS], again.checkpoints.lines[LOG_START_OFFSETS]) == (
        {NAME: 5},
        {NAME: 4},
        {NAME: 1},
    )
    again.abandon()
    crashed = opened(tmp_path)
    assert not crashed.was_clean
    crashed.abandon()


def test_no_failed_call_of_a_clean_stop_leaves_the_marker_without_the_checkpoints(tmp_path: Path) -> None:
    for fail_at in range(1, 100):
        path = tmp_path / str(fail_at)
        directory = opened(path)
        with failing_file_calls(fail_at) as faults:
            try:
                close_clean(directory, recovery_points={NAME: 5}, high_watermarks={NAME: 4}, log_start_offsets={NAME: 1})
            except (StorageFailed, OSError):
                pass
        directory.abandon()
        again = opened(path)
        if again.was_clean:
            assert (again.checkpoints.lines[RECOVERY_POINTS], again.checkpoints.lines[HIGH_WATERMARKS], again.checkpoints.lines[LOG_START_OFFSETS]) == (
                {NAME: 5},
                {NAME: 4},
                {NAME: 1},
            )
        again.abandon()
        if not faults.failed:
            assert again.was_clean and fail_at > 15
            return
    raise AssertionError("the sweep did not end")


@pytest.mark.parametrize("content", [b"0\n2\nsyslog 3 5\n", b"1\n0\n", b"0\n1\nsyslog 3\n", b"\xff\xfe", b"0\n1\nsyslog x 5\n"])
def test_a_broken_checkpoint_counts_as_empty_and_is_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(content)
    directory = opened(tmp_path)
    assert directory.checkpoints.lines[RECOVERY_POINTS] == {} and "recovery-point" in directory.problems[0]
    directory.abandon()


def test_a_partition_is_created_once_and_again(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    path = directory.create_partition("syslog", 3, TOPIC_ID)
    assert Path(path, "partition.metadata").read_text() == f"version: 0\ntopic_id: {TOPIC_ID}"
    assert directory.create_partition("syslog", 3, TOPIC_ID) == path
    with pytest.raises(RequestRefused) as refusal:
        directory.create_partition("syslog", 3, TopicId(bytes(16)))
    assert refusal.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
    assert directory.partition_directories() == {NAME: (NAME, path, TOPIC_ID)}
    directory.abandon()


def test_a_creation_that_failed_anywhere_can_be_repeated(tmp_path: Path) -> None:
    for fail_at in range(1, 50):
        directory = opened(tmp_path / str(fail_at))
        with failing_file_calls(fail_at) as faults:
            try:
                directory.create_partition("syslog", 3, TOPIC_ID)
            except StorageFailed:
                pass
        directory.create_partition("syslog", 3, TOPIC_ID)
        assert directory.partition_directories()[NAME].topic_id == TOPIC_ID
        directory.abandon()
        if not faults.failed:
            assert fail_at > 6
            return
    raise AssertionError("the sweep did not end")


def test_nothing_that_a_checkpoint_says_of_a_former_log_is_said_of_its_successor(tmp_path: Path) -> None:
    """Whichever call fails: with the successor's directory there, no line of the former log is."""
    other = TopicPartition("other", 0)
    for fail_at in range(1, 100):
        path = tmp_path / str(fail_at)
        directory = opened(path)
        directory.create_partition("syslog", 3, TOPIC_ID)
        close_clean(directory, recovery_points={NAME: 50, other: 5}, high_watermarks={NAME: 50, other: 4}, log_start_offsets={NAME: 40, other: 1})
        directory = opened(path)
        directory.checkpoints.save(CLEANED, lambda: {NAME: 30, other: 2})
        directory.mark_deleted(NAME)
        with failing_file_calls(fail_at) as faults:
            try:
                directory.create_partition("syslog", 3, TopicId(bytes(range(1, 17))))
            except StorageFailed:
                pass
        directory.abandon()
        again = opened(path)
        said = [
            again.checkpoints.lines[RECOVERY_POINTS],
            again.checkpoints.lines[HIGH_WATERMARKS],
            again.checkpoints.lines[LOG_START_OFFSETS],
            again.checkpoints.lines[CLEANED],
        ]
        assert all(other in offsets for offsets in said)
        if NAME in again.partition_directories():
            assert not any(NAME in offsets for offsets in said), fail_at
        again.abandon()
        if not faults.failed:
            assert NAME not in directory.checkpoints.lines[RECOVERY_POINTS] and fail_at > 15
            return
    raise AssertionError("the sweep did not end")


def test_a_deleted_partition_goes_in_slices_and_its_successor_is_free_at_once(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    path = Path(directory.create_partition("syslog", 3, TOPIC_ID))
    (path / "00000000000000000000.log").write_bytes(bytes(1000))
    directory.mark_deleted(NAME)
    directory.mark_deleted(NAME)  # done already
    directory.create_partition("syslog", 3, TopicId(bytes(range(1, 17))))
    freed = []
    while directory.is_deleting:
        freed.append(directory.delete_some(300))
    assert sum(freed) >= 1000 and max(freed) <= 300
    assert sorted(name.name for name in tmp_path.iterdir() if name.is_dir()) == ["syslog-3"]
    assert directory.delete_some(300) == 0
    directory.abandon()


def test_a_deletion_that_a_crash_interrupted_goes_on(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create_partition("syslog", 3, TOPIC_ID)
    directory.mark_deleted(NAME)
    directory.abandon()
    again = opened(tmp_path)
    assert again.is_deleting and again.partition_directories() == {}
    while again.is_deleting:
        again.delete_some(1)
    assert not [name for name in tmp_path.iterdir() if name.is_dir()]
    again.abandon()


def test_unknown_names_are_listed_and_never_touched(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "syslog-3").write_text("a file where a directory belongs")
    directory = opened(tmp_path)
    directory.create_partition("audit", 0, TOPIC_ID)
    directory.set_aside(TopicPartition("audit", 0))
    assert directory.unknown_names == ["photos"] and directory.partition_directories() == {}
    assert not directory.is_deleting
    directory.abandon()
    assert len(list(tmp_path.glob("audit-0.*-stray"))) == 1 and (tmp_path / "photos").exists()
    again = opened(tmp_path)
    assert again.unknown_names == ["photos"] and not again.is_deleting
    again.abandon()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("syslog-3", TopicPartition("syslog", 3)),
        ("a-b-0", TopicPartition("a-b", 0)),
        ("syslog-03", None),
        ("syslog", None),
        ("-3", None),
        ("sys log-3", None),
        ("syslog-3.0123456789abcdef0123456789abcdef-delete", None),
    ],
)
def test_partition_directories_are_recognised_by_name(name: str, expected: TopicPartition | None) -> None:
    assert parse_partition_name(name) == expected


def test_the_name_of_a_leaving_directory_fits_a_file_system() -> None:
    name = leaving_name(TopicPartition("t" * 249, 12345), "0" * 32, "-delete")
    assert len(name) == 255 and is_leaving(name) and parse_partition_name(name) is None


def test_free_and_total_space_are_returned(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    assert 0 < directory.space().free_bytes <= directory.space().total_bytes
    directory.abandon()


class SavingThread:
    """A thread that saves a checkpoint, and has collected its lines when the constructor returns."""

    def __init__(self, directory: LogDirectory, file: str, lines: Mapping[TopicPartition, int]) -> None:
        self._lines = lines
        self._collected, self._may_write = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=directory.checkpoints.save, args=(file, self._collect))
        self._thread.start()
        assert self._collected.wait(20)

    def _collect(self) -> Mapping[TopicPartition, int]:
        self._collected.set()
        assert self._may_write.wait(20)
        return self._lines

    def write_beside(self, change: Callable[..., object], *arguments: object) -> None:
        """Let it write while another thread makes a change, and wait for both."""
        other = threading.Thread(target=change, args=arguments)
        other.start()
        self._may_write.set()
        self._thread.join()
        other.join()


@pytest.mark.parametrize("file", FILES)
def test_lines_that_a_thread_had_collected_do_not_describe_the_next_log_of_that_name(tmp_path: Path, file: str) -> None:
    """The lines are collected, the topic is deleted and created again, and only then they are written."""
    other = TopicPartition("other", 0)
    directory = opened(tmp_path)
    directory.create_partition("syslog", 3, TOPIC_ID)
    saving = SavingThread(directory, file, {NAME: 40, other: 5})
    directory.mark_deleted(NAME)
    saving.write_beside(directory.create_partition, "syslog", 3, TopicId(bytes(range(1, 17))))
    assert directory.checkpoints.lines[file] == read_offsets(str(tmp_path / file)) == {other: 5}
    directory.checkpoints.save(file, lambda: {NAME: 2, other: 6})
    directory.abandon()
    again = opened(tmp_path)
    assert again.checkpoints.lines[file] == {NAME: 2, other: 6}, "its own line is written"
    again.abandon()


@pytest.mark.parametrize("file", FILES)
def test_a_checkpoint_that_was_collected_earlier_does_not_overwrite_a_newer_one(tmp_path: Path, file: str) -> None:
    """A log start offset that went back would bring answered DeleteRecords back."""
    directory = opened(tmp_path)
    SavingThread(directory, file, {NAME: 10}).write_beside(directory.checkpoints.save, file, lambda: {NAME: 20})
    assert directory.checkpoints.lines[file] == read_offsets(str(tmp_path / file)) == {NAME: 20}
    directory.abandon()


@pytest.mark.parametrize("file", FILES)
def test_a_thread_that_had_collected_a_longer_log_does_not_undo_a_cap(tmp_path: Path, file: str) -> None:
    directory = opened(tmp_path)
    SavingThread(directory, file, {NAME: 110}).write_beside(directory.checkpoints.cap, NAME, 40)
    assert directory.checkpoints.lines[file] == read_offsets(str(tmp_path / file)) == {NAME: 40}
    directory.abandon()


def test_the_lines_of_logs_that_are_not_open_are_kept(tmp_path: Path) -> None:
    other = TopicPartition("other", 0)
    directory = opened(tmp_path)
    directory.checkpoints.save(HIGH_WATERMARKS, lambda: {NAME: 7, other: 9})
    directory.checkpoints.unserved.add(NAME)
    directory.checkpoints.save(HIGH_WATERMARKS, lambda: {other: 10})
    assert read_offsets(str(tmp_path / HIGH_WATERMARKS)) == {NAME: 7, other: 10}
    directory.mark_deleted(NAME)
    directory.checkpoints.save(HIGH_WATERMARKS, lambda: {other: 11})
    assert read_offsets(str(tmp_path / HIGH_WATERMARKS)) == {other: 11}
    directory.abandon()
