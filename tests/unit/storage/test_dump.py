"""`millrace log dump`: every kind of file in a log directory is printed as text, damaged ones too."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.storage.dump import dump_file
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from appliance.storage.log_directory import LogDirectory
from appliance.storage.recovery import CLEAN
from tests.unit.storage.storage_support import NAME, NOW_MS, TOPIC_ID, batch, close_clean

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-log" / "disk"
CLUSTER, DIRECTORY_ID = "cluster", "00000000-0000-0000-0000-000000000001"


def dumped(path: Path) -> list[str]:
    return list(dump_file(str(path)))


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A log directory that was closed, with a partition that has everything."""
    clock = ManualClock(NOW_MS)
    directory = LogDirectory.open(str(tmp_path), 1, CLUSTER, clock, DIRECTORY_ID)
    path = directory.create_partition(NAME.topic, NAME.partition, TOPIC_ID)
    log = Log.open(path, NAME, TOPIC_ID, LogConfig(index_interval_bytes=1), clock, CLEAN)
    for sequence in range(3):
        log.append_as_leader([batch(b"x", producer=(7, 0, sequence))], 2, NOW_MS)
    log.close()
    close_clean(directory, recovery_points={NAME: 3}, high_watermarks={NAME: 3}, log_start_offsets={NAME: 1})
    return tmp_path


def test_every_file_of_a_log_directory_is_printed(disk: Path) -> None:
    told = {path.name: dumped(path) for path in sorted(disk.rglob("*")) if path.is_file() and path.name != ".lock"}
    assert all(told.values())
    assert told["recovery-point-offset-checkpoint"] == ["topic: syslog partition: 3 offset: 3"]
    assert told["log-start-offset-checkpoint"] == ["topic: syslog partition: 3 offset: 1"]
    assert told["leader-epoch-checkpoint"] == ["leaderEpoch: 2 startOffset: 0"]
    assert told["partition.metadata"] == ["version: 0", f"topic_id: {TOPIC_ID}"]
    assert told[".kafka_cleanshutdown"] == ['{"version": 0, "brokerEpoch": -1, "segments": "2ab4b802"}']
    assert "cluster.id=cluster" in told["meta.properties"]
    assert told["00000000000000000003.snapshot"] == [
        f"producerId: 7 producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: None lastTimestamp: {NOW_MS} "
        "firstSequence: 2 lastSequence: 2 lastOffset: 2 offsetDelta: 0"
    ]
    assert len(told["00000000000000000000.log"]) == 3


def test_aborted_transactions_of_a_directory_of_kafka_are_printed() -> None:
    lines = [line for path in sorted((GOLDEN / "transactions-0").glob("*.txnindex")) for line in dumped(path)]
    assert len(lines) == 5 and all(line.startswith("version: 0 producerId: ") and " lastStableOffset: " in line for line in lines)


def test_a_file_marked_for_deletion_is_printed_as_before(disk: Path) -> None:
    path = disk / "syslog-3" / "00000000000000000000.log"
    before = dumped(path)
    assert dumped(path.rename(f"{path}.deleted")) == before


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("00000000000000000000.txnindex", b"\0" * 34, "a marker is not behind the first record of its transaction"),
        ("00000000000000000000.txnindex", b"\0" * 35, "ends inside an entry"),
        ("00000000000000000009.snapshot", b"\0" * 10, "NOT A SNAPSHOT: version 0 is unknown"),
        ("leader-epoch-checkpoint", b"0\n2\n0 0\n", "NOT A CHECKPOINT: it names '2' entries and has 1"),
        ("leader-epoch-checkpoint", b"", "NOT A CHECKPOINT: it is empty"),
        ("recovery-point-offset-checkpoint", b"0\n1\nsyslog 3\n", "NOT AN ENTRY: syslog 3"),
    ],
)
def test_a_broken_file_is_reported_in_a_line(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert any(words in line for line in dumped(tmp_path / name))
