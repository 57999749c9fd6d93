"""Old message sets where an acceptor keeps them: in slots of its arena on their way in, out of files on their way out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.layout import BoxLayout
from appliance.base.model import NO_TOPIC_ID
from appliance.cluster.metadata_image import MetadataImage, TopicImage
from appliance.protocol.fetch import FetchPartition, FetchPartitionResult
from appliance.records.batch import batch_problem, stamp_batch
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec
from appliance.records.legacy import build_message, read_message_set
from appliance.records.record import iterate_records
from appliance.shm.arena import MIN_ORDER, Arena
from appliance.shm.counters import Counters, read_counters
from lab.scratch_layout import scratch_layout
from services.acceptor.fetch.message_sets import CONVERTED_BYTES_MAX, DownConversion, UpConversion
from services.acceptor.fetch.record_ranges import FileRange, SegmentOrigin, ServedSegment
from services.acceptor.request_memory import ArenaSlot, allocate_slot

TIME = 1_700_000_000_000
LIMIT = 1 << 20
MANY = b"".join(build_message(offset, 1, 0, TIME + offset, None, b"value") for offset in range(20))
ONE = build_message(0, 0, 0, -1, None, b"x")


@pytest.fixture
def layout() -> Iterator[BoxLayout]:
    with scratch_layout() as made:
        yield made


@pytest.fixture
def arena(layout: BoxLayout) -> Iterator[Arena]:
    made = Arena.create(layout.shared_memory_name("arena", "acceptor@0", 1), 1 << 16, 1)
    yield made
    made.close()


@pytest.fixture
def counters(layout: BoxLayout) -> Iterator[Counters]:
    made = Counters.create_or_adopt(layout, "acceptor@0", 1)
    yield made
    made.close()


def view(**config: str) -> Any:
    topics = {"old": TopicImage("old", NO_TOPIC_ID, (), {name.replace("_", "."): value for name, value in config.items()})}
    return SimpleNamespace(image=MetadataImage(1, "box", 1, {}, topics))


def placement(max_message_bytes: int = LIMIT) -> Any:
    return SimpleNamespace(topic="old", max_message_bytes=max_message_bytes)


def received(arena: Arena, message_set: bytes) -> ArenaSlot:
    slot = allocate_slot(arena, len(message_set) or 1)
    assert slot is not None
    arena.memory[slot.position : slot.position + len(message_set)] = message_set
    return slot


def converted(layout: BoxLayout) -> int:
    snapshot = read_counters(layout, "acceptor@0")
    assert snapshot is not None
    return snapshot.values["produce.converted_sets"]


def test_a_batch_that_is_smaller_than_its_message_set_takes_its_place(arena: Arena, counters: Counters, layout: BoxLayout) -> None:
    slot = received(arena, MANY)
    found, position, size_bytes = UpConversion(view(), arena, counters).convert(placement(), slot, slot.position, len(MANY))
    assert (found, position) == (slot, slot.position) and size_bytes < len(MANY)
    assert batch_problem(arena.memory, position, position + size_bytes, LIMIT) is None
    assert len(list(iterate_records(bytes(arena.memory[position : position + size_bytes]), LIMIT))) == 20
    assert arena.slots_in_use() == 1 and converted(layout) == 1


def test_a_batch_that_is_larger_gets_a_slot_of_its_own_and_others_keep_theirs(arena: Arena, counters: Counters) -> None:
    slot = received(arena, ONE + MANY)
    slot.references = 2
    found, position, size_bytes = UpConversion(view(), arena, counters).convert(placement(), slot, slot.position, len(ONE))
    assert found is not slot and (found.references, slot.references) == (1, 1)
    assert batch_problem(arena.memory, position, position + size_bytes, LIMIT) is None
    assert bytes(arena.memory[slot.position : slot.position + len(ONE + MANY)]) == ONE + MANY, "the neighbour's bytes"
    found.release()
    slot.release()
    assert arena.slots_in_use() == 0


def test_a_full_arena_asks_the_client_to_try_again(arena: Arena, counters: Counters) -> None:
    slot = received(arena, ONE)
    while allocate_slot(arena, 1 << MIN_ORDER) is not None:
        pass
    with pytest.raises(RequestRefused) as refused:
        UpConversion(view(), arena, counters).convert(placement(), slot, slot.position, len(ONE))
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert slot.references == 1


def test_batches_of_magic_2_pass_as_they_are_and_nothing_becomes_nothing(arena: Arena, counters: Counters, layout: BoxLayout) -> None:
    builder = BatchBuilder()
    builder.append(TIME, None, b"value")
    batch = builder.build()
    up = UpConversion(view(), arena, counters)
    slot = received(arena, batch)
    assert up.convert(placement(), slot, slot.position, len(batch)) == (slot, slot.position, len(batch))
    assert up.convert(placement(), slot, slot.position, 0) == (slot, slot.position, 0)
    assert converted(layout) == 0


def test_a_batch_that_became_too_large_is_refused(arena: Arena, counters: Counters) -> None:
    slot = received(arena, ONE)
    with pytest.raises(RequestRefused) as refused:
        UpConversion(view(), arena, counters).convert(placement(40), slot, slot.position, len(ONE))
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_the_topics_timestamp_type_decides_what_a_producer_may_claim(arena: Arena, counters: Counters) -> None:
    claims = build_message(0, 1, 8, TIME, None, b"value")
    slot = received(arena, claims)
    stamping = view(message_timestamp_type="LogAppendTime")
    with pytest.raises(RequestRefused):
        UpConversion(stamping, arena, counters).convert(placement(), slot, slot.position, len(claims))
    assert UpConversion(view(), arena, counters).convert(placement(), slot, slot.position, len(claims))[2]


def opened(path: Path) -> ServedSegment:
    nobody: Any = None
    return ServedSegment(os.open(path, os.O_RDONLY), SegmentOrigin("d0", "old", 0, 0), nobody)


def segment(path: Path, *codecs: Codec) -> FileRange:
    content = b"before"
    for index, codec in enumerate(codecs):
        builder = BatchBuilder(codec)
        builder.append(TIME, b"key", b"value %d" % index)
        batch = bytearray(builder.build())
        stamp_batch(batch, 0, index, 0)
        content += batch
    path.write_bytes(content)
    return FileRange(opened(path), 6, len(content) - 6)


def wanted(partition: int, offset: int = 0) -> FetchPartition:
    return FetchPartition("old", NO_TOPIC_ID, partition, -1, offset, -1, -1, 1000)


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_ranges_become_message_sets_of_the_versions_magic(counters: Counters, tmp_path: Path, version: int, magic: int) -> None:
    down = DownConversion(view(), counters)
    ranges = [segment(tmp_path / "a", Codec.NONE, Codec.GZIP), segment(tmp_path / "b", Codec.ZSTD), None]
    results = [FetchPartitionResult("old", NO_TOPIC_ID, index, 0, 9, 9, 0, records) for index, records in enumerate(ranges)]
    whole, failed, empty = down.convert(version, [wanted(0, 1), wanted(1), wanted(2)], results)
    assert isinstance(whole.records, bytes) and (whole.error_code, whole.high_watermark) == (0, 9)
    codec, (message,), _ = read_message_set(whole.records, 0, len(whole.records), LIMIT)
    assert (codec, message.offset, message.magic, message.value) == (Codec.GZIP, 1, magic, b"value 1")
    assert (failed.error_code, failed.records, failed.high_watermark) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, None, -1)
    assert empty == results[2]


def test_a_disk_that_fails_fails_its_partition_only(counters: Counters, tmp_path: Path) -> None:
    good = segment(tmp_path / "good", Codec.NONE)
    directory = FileRange(opened(tmp_path), 0, 100)
    results = [FetchPartitionResult("old", NO_TOPIC_ID, index, 0, 9, 9, 0, records) for index, records in enumerate((directory, good))]
    failed, read = DownConversion(view(), counters).convert(2, [wanted(0), wanted(1)], results)
    assert failed.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert read.records


def test_a_topic_may_forbid_it_to_consumers(counters: Counters) -> None:
    assert DownConversion(view(), counters).is_allowed("old", -1)
    assert DownConversion(view(message_downconversion_enable="true"), counters).is_allowed("old", -1)
    forbidden = DownConversion(view(message_downconversion_enable="FALSE"), counters)
    assert not forbidden.is_allowed("old", -1)
    assert forbidden.is_allowed("old", 2), "followers are exempt"


def test_every_partition_of_an_old_consumer_comes_first_in_turn(counters: Counters) -> None:
    down = DownConversion(view(), counters)
    firsts = []
    for _ in range(6):
        partitions = [wanted(index) for index in range(3)]
        down.reorder(2, partitions)
        assert {part.partition for part in partitions} == {0, 1, 2}
        firsts.append(partitions[0].partition)
    assert sorted(firsts) == [0, 0, 1, 1, 2, 2]
    partitions = [wanted(0), wanted(1)]
    down.reorder(3, partitions)
    assert [part.partition for part in partitions] == [0, 1], "from version 3 on clients do it themselves"


def test_a_fetch_converts_a_mebibyte_at_most() -> None:
    assert CONVERTED_BYTES_MAX == 1 << 20
