"""A log directory that a real Kafka 3.9.1 closed cleanly (`kafka-log/`, made by capture_kafka_log.py): storage opens it, and makes the same bytes."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.model import TopicPartition
from appliance.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, read_offsets
from appliance.storage.directory_identity import encode_partition_metadata, read_topic_id
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from appliance.storage.log_directory import LogDirectory
from appliance.storage.recovery import CLEAN, Recovery, Unclean
from appliance.storage.transaction_index import AbortedTxn, encode_transaction_index, read_transaction_index
from lab.foreign_clients import Read
from lab.kafka_writings import CONFIGS
from tests.support.stored_records import stored_batches_of, stored_records
from tests.unit.storage.storage_support import batch, stored_bytes

GOLDEN = Path(__file__).parent / "kafka-log"
CAPTURED = json.loads((GOLDEN / "records.json").read_text())
CLOCK = ManualClock(CAPTURED["captured_ms"])


def expected(topic: str) -> list[Read]:
    def content(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    return [
        Read(offset, content(value), content(key), tuple((name, content(text)) for name, text in headers), timestamp, kind)
        for offset, value, key, headers, timestamp, kind in CAPTURED["records"][topic]
    ]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "disk", tmp_path / "disk"))


def open_log(disk: Path, topic: str, recovery: Recovery = CLEAN) -> Log:
    topic_id = read_topic_id(str(disk / f"{topic}-0"))
    assert topic_id is not None
    config = LogConfig.from_topic_config({key.replace("_", "."): value for key, value in CONFIGS[topic].items()})
    return Log.open(str(disk / f"{topic}-0"), TopicPartition(topic, 0), topic_id, config, CLOCK, recovery)


def test_the_directory_opens_as_cleanly_left(disk: Path) -> None:
    directory = LogDirectory.open(str(disk), 1, None, CLOCK)
    assert directory.was_clean and directory.problems == [] and directory.unknown_names == []
    assert {name.topic for name in directory.partition_directories()} == set(CONFIGS)
    for name, found in directory.partition_directories().items():
        assert found.topic_id is not None
        assert encode_partition_metadata(found.topic_id) == (disk / str(name) / "partition.metadata").read_bytes()
        end = 1 + expected(name.topic)[-1].offset
        assert (
            directory.checkpoints.lines[RECOVERY_POINTS][name]
            == directory.checkpoints.lines[HIGH_WATERMARKS][name]
            == (end + 1 if name.topic == "transactions" else end)
        )
    cleaned = read_offsets(str(disk / "cleaner-offset-checkpoint"))
    assert set(cleaned) == {TopicPartition("compacted", 0)} and 0 < cleaned[TopicPartition("compacted", 0)] <= 400
    assert directory.checkpoints.lines[LOG_START_OFFSETS] == {}
    directory.abandon()


@pytest.mark.parametrize("topic", CONFIGS)
def test_a_log_opens_with_every_record_and_unchanged(disk: Path, topic: str) -> None:
    before = stored_bytes(disk / f"{topic}-0")
    log = open_log(disk, topic)
    assert (log.log_start_offset, log.leader_epochs.entries) == (0, ((0, 0),))
    assert stored_records(disk / f"{topic}-0") == expected(topic)
    log.close()
    # a log without producers needs no snapshot
    assert {name: content for name, content in before.items() if len(content) > 10 or not name.endswith(".snapshot")} == stored_bytes(disk / f"{topic}-0")


@pytest.mark.parametrize("topic", CONFIGS)
def test_recovery_makes_the_bytes_that_kafka_made(disk: Path, topic: str) -> None:
    """Indexes, transaction indexes and the producers at each segment's begin are lost; the batches tell them all."""
    before = stored_bytes(disk / f"{topic}-0")
    for name in before:
        kept = (".log", "partition.metadata", *(("checkpoint",) if topic == "compacted" else ()))  # the batch that began its epoch was compacted away
        if not name.endswith(kept):
            (disk / f"{topic}-0" / name).unlink()
    log = open_log(disk, topic, Unclean(0))
    assert log.recovered_cut_bytes == 0
    log.close()
    wanted = {name: content for name, content in before.items() if not name.endswith(".snapshot") or len(content) > 10}  # those without producers
    assert stored_bytes(disk / f"{topic}-0") == wanted


@pytest.mark.parametrize("recovery", [CLEAN, Unclean(0), Unclean(20)])
def test_aborted_transactions_and_the_last_stable_offset_are_known(disk: Path, recovery: Recovery) -> None:
    records = expected("transactions")
    log = open_log(disk, "transactions", recovery)
    aborted = [entry for base in log.segment_base_offsets for entry in read_transaction_index(log.directory, base)]
    assert len(log.segment_base_offsets) > 2 and [entry.producer_id for entry in aborted].count(aborted[0].producer_id) == 3 and len(aborted) == 5
    assert aborted == sorted(aborted, key=lambda entry: entry.last_offset)
    (open_one,) = [record.offset for record in records if record.value == b"open"]
    assert log.last_stable_offset(log.log_end_offset) == open_one < log.log_end_offset - 2
    log.close()


def test_a_broken_transaction_index_is_made_anew(disk: Path) -> None:
    directory = disk / "transactions-0"
    before = stored_bytes(directory)
    indexes = [name for name in before if name.endswith(".txnindex")]
    assert len(indexes) == 3
    garbage = b"\xff" * 34
    too_low = encode_transaction_index([AbortedTxn(1, 0, 1, 1)])
    for name, broken in (
        *((each, broken) for each in indexes for broken in (b"x", garbage, before[each][:-1], before[each][:34] + garbage)),
        (indexes[1], before[indexes[1]] + too_low),
        (indexes[2], too_low),
    ):
        for each in indexes:
            (directory / each).write_bytes(before[each])
        (directory / name).write_bytes(broken)
        open_log(disk, "transactions").close()
        assert {each: (directory / each).read_bytes() for each in indexes} == {each: before[each] for each in indexes}


def test_truncation_forgets_transactions_that_ended_behind_it(disk: Path) -> None:
    log = open_log(disk, "transactions")
    everything = [entry for base in log.segment_base_offsets for entry in read_transaction_index(log.directory, base)]
    for entry in reversed(everything):
        log.truncate_to(entry.last_offset)
        kept = [entry for base in log.segment_base_offsets for entry in read_transaction_index(log.directory, base)]
        assert kept == [other for other in everything if other.last_offset < entry.last_offset]
        assert log.last_stable_offset(log.log_end_offset) <= entry.first_offset
    log.close()


@pytest.mark.parametrize("topic", CONFIGS)
def test_a_log_goes_on_where_kafka_stopped(disk: Path, topic: str) -> None:
    log = open_log(disk, topic)
    end = log.log_end_offset
    log.assign_leader_epoch(1)
    for number in range(40):
        (result,) = log.append_as_leader([batch(b"ours %d" % number * 10)], 1, CLOCK.wall_ms())
        assert result[0] == end + number
    log.close()
    log = open_log(disk, topic)
    assert log.log_end_offset == end + 40 and log.leader_epochs.entries == ((0, 0), (1, end))
    assert [record.value for record in stored_records(disk / f"{topic}-0")] == [
        *(record.value for record in expected(topic)),
        *(b"ours %d" % number * 10 for number in range(40)),
    ]
    log.close()


def test_a_follower_of_kafka_writes_what_kafka_wrote(tmp_path: Path) -> None:
    """Batches of the leader, one by one: log, indexes, transaction indexes and the state of producers come out the same."""
    source = GOLDEN / "disk" / "transactions-0"
    (tmp_path / "transactions-0").mkdir()
    shutil.copy(source / "partition.metadata", tmp_path / "transactions-0")
    log = open_log(tmp_path, "transactions")
    for _, raw in stored_batches_of(source):
        log.append_as_follower([memoryview(bytearray(raw))])
    log.close()
    wanted, found = stored_bytes(source), stored_bytes(tmp_path / "transactions-0")
    wanted = {name: content for name, content in wanted.items() if not name.endswith(".snapshot") or len(content) > 10}
    found = {name: content for name, content in found.items() if not name.endswith(".snapshot") or len(content) > 10}
    assert found == wanted
