"""A real Kafka 3.9 and a box take turns on one log directory, under one ZooKeeper: each reads what the other left, and goes on. Kafka's own
DumpLogSegments finds nothing wrong with any file of ours.

One story for the whole module: Kafka writes and stops; a box serves the directory, writes and stops; Kafka starts on it again.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from appliance.records.compression import Codec
from appliance.storage.dump import dump_file
from lab.foreign_clients import CODECS, Client, Read, Sent
from lab.kafka_writings import CONFIGS, MIXED, open_reader, read_everything, read_to_end, write_everything
from lab.real_kafka import RealKafka, dump_log_segments, skip_without_kafka
from lab.real_zookeeper import RealZooKeeper
from lab.running_box import start_box
from tests.support.stored_records import stored_batches_of, stored_records

pytestmark = [pytest.mark.system, pytest.mark.slow]

OURS = "ours"
APPENDED = [Sent(b"appended %d" % number, b"key", (("source", b"2"),), 1_700_000_100_000 + number) for number in range(20)]


class Story(NamedTuple):
    """What was read at each turn, by topic, and copies of the directory as it was left."""

    from_kafka: dict[str, list[Read]]
    from_box: dict[str, list[Read]]
    from_box_later: dict[str, list[Read]]
    from_kafka_later: dict[str, list[Read]]
    from_kafka_last: list[Read]
    left_by_kafka: Path
    left_by_box: Path
    left_last: Path
    kafka_messages: str


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    skip_without_kafka()
    directory = tmp_path_factory.mktemp("turns")
    disk = directory / "disk"
    zookeeper = RealZooKeeper(directory / "zookeeper")
    kafka = RealKafka(directory / "kafka", disk, zookeeper.connect)
    try:
        from_kafka = _kafka_writes(kafka)
        shutil.copytree(disk, directory / "left-by-kafka")
        from_box, from_box_later = _box_goes_on(directory, disk, zookeeper)
        shutil.copytree(disk, directory / "left-by-box")
        from_kafka_later, from_kafka_last = _kafka_goes_on(kafka)
    finally:
        kafka.stop()
        zookeeper.stop()
    left = (directory / "left-by-kafka", directory / "left-by-box", disk)
    yield Story(from_kafka, from_box, from_box_later, from_kafka_later, from_kafka_last, *left, kafka.messages)


def _kafka_writes(kafka: RealKafka) -> dict[str, list[Read]]:
    kafka.start()
    client = open_reader(kafka.bootstrap)
    try:
        write_everything(client, kafka.bootstrap, kafka.log_directory)
        return read_everything(client)
    finally:
        client.close()
        kafka.stop()


def _box_goes_on(directory: Path, disk: Path, zookeeper: RealZooKeeper) -> tuple[dict[str, list[Read]], dict[str, list[Read]]]:
    box = start_box(directory / "box", data=[disk], zookeeper=zookeeper.connect)
    try:
        client = open_reader(box.bootstrap)
        before = read_everything(client)
        for topic in CONFIGS:
            client.produce(topic, APPENDED)
        client.create(OURS, internal_segment_bytes="3000", index_interval_bytes="200")
        for codec in CODECS:
            client.produce(OURS, MIXED, codec)
        for number in range(15):
            client.produce(OURS, [APPENDED[number % len(APPENDED)]])
        later = _read_all(client)
        client.close()
    finally:
        box.stop()
    assert box.leftovers() == []
    return before, later


def _kafka_goes_on(kafka: RealKafka) -> tuple[dict[str, list[Read]], list[Read]]:
    kafka.start()
    client = open_reader(kafka.bootstrap)
    try:
        later = _read_all(client)
        client.produce(OURS, APPENDED, "zstd")
        return later, read_to_end(client, OURS)
    finally:
        client.close()
        kafka.stop()


def _read_all(client: Client) -> dict[str, list[Read]]:
    return {topic: read_to_end(client, topic) for topic in (*CONFIGS, OURS)}


def _sent(records: list[Read]) -> list[Sent]:
    return [Sent(record.value, record.key, record.headers, record.timestamp) for record in records]


def test_a_box_serves_every_record_that_kafka_wrote(story: Story) -> None:
    assert {topic: len(records) > 20 for topic, records in story.from_kafka.items()} == dict.fromkeys(CONFIGS, True)
    assert {topic: _lasting(topic, records) for topic, records in story.from_box.items()} == {
        topic: _lasting(topic, records) for topic, records in story.from_kafka.items()
    }
    assert story.from_kafka["mixed"] == [
        Read(index, sent.value, sent.key, sent.headers, sent.timestamp or -1, 0) for index, sent in enumerate(MIXED * len(CODECS))
    ]


def _lasting(topic: str, records: list[Read]) -> list[Read]:
    """What must be the same whenever it is read: either broker may compact in between."""
    return list({record.key: record for record in records}.values()) if topic == "compacted" else records


def test_what_a_box_appends_follows_what_kafka_wrote(story: Story) -> None:
    for topic, before in story.from_box.items():
        after = story.from_box_later[topic]
        appended = after[-len(APPENDED) :]
        assert _lasting(topic, after[: -len(APPENDED)]) == _lasting(topic, before)
        assert [(record.value, record.key, record.headers) for record in appended] == [(sent.value, sent.key, sent.headers) for sent in APPENDED]
        assert appended[0].offset >= before[-1].offset + 1
    assert {record.timestamp_type for record in story.from_box_later["stamped"]} == {1}


def test_kafka_reads_and_extends_a_directory_that_a_box_closed(story: Story) -> None:
    assert "ERROR" not in story.kafka_messages, story.kafka_messages
    for topic in (*CONFIGS, OURS):
        assert _lasting(topic, story.from_kafka_later[topic]) == _lasting(topic, story.from_box_later[topic])
    ours = story.from_kafka_later[OURS]
    assert _sent(ours) == [*(MIXED * len(CODECS)), *APPENDED[:15]]
    assert {header.codec for header, _ in stored_batches_of(story.left_by_box / f"{OURS}-0")} == set(Codec)
    assert len(list((story.left_by_box / f"{OURS}-0").glob("*.log"))) > 2
    assert story.from_kafka_last[: len(ours)] == ours and _sent(story.from_kafka_last[len(ours) :]) == APPENDED


def test_kafka_does_not_doubt_what_a_box_closed(story: Story) -> None:
    """It loads the logs as cleanly closed: nothing is recovered, so nothing of ours is written anew."""
    for name in ("00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex"):
        for topic in (*CONFIGS, OURS):
            if topic != "compacted":
                ours = (story.left_by_box / f"{topic}-0" / name).read_bytes()
                assert (story.left_last / f"{topic}-0" / name).read_bytes()[: len(ours)] == ours


def test_storage_reads_what_kafka_left_last(story: Story) -> None:
    assert stored_records(story.left_last / f"{OURS}-0") == story.from_kafka_last


def test_kafkas_dump_tool_finds_nothing_wrong_with_our_files(story: Story) -> None:
    directories = [story.left_by_box / f"{topic}-0" for topic in (*CONFIGS, OURS)]
    suffixes = ("log", "index", "timeindex", "txnindex", "snapshot")
    files = [file for directory in directories for suffix in suffixes for file in sorted(directory.glob(f"*.{suffix}"))]
    assert {file.suffix[1:] for file in files} == set(suffixes)
    said = dump_log_segments(files, "--deep-iteration")
    for trouble in ("ismatch", "rror", "Exception", "not found", "out of order", "Non-consecutive", "isvalid: false", "corrupt", "invalid"):
        assert not re.search(f"^.*{trouble}.*$", said, re.MULTILINE), re.search(f"^.*{trouble}.*$", said, re.MULTILINE)
    assert said.count("Dumping ") == len(files)
    counts = {directory: sum(header.records_count for header, _ in stored_batches_of(directory)) for directory in directories}
    assert len(re.findall(r"^\| offset: ", said, re.MULTILINE)) == sum(counts.values())
    assert len(re.findall(r"endTxnMarker: ABORT", said)) == 5
    assert len(re.findall(r"^version: 0 producerId: \d+ firstOffset: \d+ lastOffset: \d+ lastStableOffset: \d+$", said, re.MULTILINE)) == 5
    plainly = re.sub(r"OptionalLong\[(\d+)\]", r"\1", said.replace("OptionalLong.empty", "None"))
    theirs = {re.sub(r"(offsetDelta: \d+) timestamp: \d+$", r"\1", line.strip()) for line in plainly.splitlines()}
    ours = [line for file in files if file.suffix in (".txnindex", ".snapshot") for line in dump_file(str(file))]
    assert theirs >= {*ours} - {"no producers"} and len(ours) > 10
    indexes = [file for file in files if file.suffix in (".index", ".timeindex")]
    checked = dump_log_segments(indexes, "--index-sanity-check")
    empty = [file for file in indexes if file.suffix == ".index" and not file.stat().st_size]
    assert checked.count("is empty") == len(empty) and checked.count("passed sanity check") == len(indexes) - len(empty), checked
