"""What a taken-over acceptor or ingest does to a log-writer by the words that both map: its channel is dropped and counted, and the log-writer serves on."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import AUDIT_TOPIC, ProducerId
from appliance.ipc import channel_acceptor
from appliance.ipc.descriptors import DESCRIPTOR, DescriptorKind
from appliance.ipc.frames import HEADER
from appliance.ipc.proxies import LogWriterProxies
from appliance.records.batch import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    BATCH_LENGTH_AT,
    CONTROL_FLAG,
    LAST_OFFSET_DELTA_AT,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_ID_AT,
    RECORDS_AT,
    stored_batch_problem,
)
from appliance.records.builder import BatchBuilder
from appliance.shm.ring import DESCRIPTOR_TAIL_WORD, RINGS_POSITION
from appliance.storage import file_io, producer_state
from appliance.storage import log as log_module
from lab.scratch_layout import open_descriptors, scratch_layout
from services.log_writer.replicas import replicas_of_disk
from tests.support.real_log_writer import DISK, TOPIC_ID, RealLogWriter
from tests.unit.storage.storage_support import batch

LARGEST = (1 << 64) - 1
HOSTILE = "acceptor@0"


def _batch() -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, b"value")
    return builder.build()


def _led(path: Path, topic: str) -> Iterator[RealLogWriter]:
    with scratch_layout() as layout:
        made = RealLogWriter(layout, path, 1)
        made.recover()
        controller = made.source("controller")
        made.create(controller, 0, topic)
        made.lead(controller, 0, topic)
        controller.flush()
        while len(made.answers) < 2:
            made.turn()
        yield made
        made.die()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RealLogWriter]:
    yield from _led(tmp_path, "t")


@pytest.fixture(params=["__consumer_offsets", "__transaction_state", "__share_group_state"])
def coordinators(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealLogWriter]:
    """It leads a partition of a topic that only the coordinator writes to."""
    yield from _led(tmp_path, request.param)


def _taken_over(writer: RealLogWriter, name: str = HOSTILE) -> LogWriterProxies:
    source = writer.source(name)
    for channel in writer.agent.door.channels:
        channel.is_restricted = channel.source == name
    return source


def _rings(source: LogWriterProxies) -> Any:
    channel = source.by_disk[DISK].channel
    assert channel is not None
    return channel.rings.shared


def _terms(writer: RealLogWriter) -> tuple[int, int, int, int]:
    hosted = writer.agent.partitions.find(TOPIC_ID, 0)
    assert hosted is not None
    return hosted.row, hosted.row_generation, hosted.leader_epoch, hosted.config_generation


def _serves_others(writer: RealLogWriter) -> None:
    """The hostile source is gone and counted; another one produces."""
    for _ in range(2):
        writer.agent.do_work()
    assert HOSTILE not in [channel.source for channel in writer.agent.door.channels]
    assert writer.counters.counter("log_writer.refused_sources").value == 1
    hostile = writer.sources.pop(HOSTILE)
    hostile.close()
    hostile.source.close()
    writer.produce(writer.source("acceptor@1"), 0, _batch())
    while not writer.codes("produce"):
        writer.sources["acceptor@1"].flush()
        writer.turn()
    assert writer.codes("produce") == [0]


@pytest.mark.parametrize("tail", [257, 1 << 32, 1 << 63, LARGEST])
def test_a_ring_with_more_entries_than_it_holds_costs_its_channel_only(tail: int, writer: RealLogWriter) -> None:
    hostile = _taken_over(writer)
    _rings(hostile).words[DESCRIPTOR_TAIL_WORD] = tail
    _serves_others(writer)


PRODUCES = {
    "bytes beyond the arena": (0, 100, 1 << 40, 1),
    "a position that wraps around": (0, 100, LARGEST - 50, 1),
    "more bytes than the arena": (0, (1 << 32) - 1, 4096, 1),
    "no bytes": (0, 0, 4096, 1),
    "less than a header": (0, RECORDS_AT - 1, 4096, 1),
    "a negative number of records": (0, 100, 4096, -1),
    "more records than a batch can have": (0, 100, 4096, 1 << 40),
    "bytes beyond the arena behind a refused batch": (32, 100, 1 << 40, 1),
}


@pytest.mark.parametrize("case", PRODUCES)
def test_a_produce_with_impossible_numbers_costs_its_channel_only(case: str, writer: RealLogWriter) -> None:
    hostile = _taken_over(writer)
    flags, length, position, records = PRODUCES[case]
    assert hostile.by_disk[DISK].offer((DescriptorKind.PRODUCE, flags, 0, *_terms(writer), length, position, 0, records, 0, 0, 0), 0, None)
    _serves_others(writer)


@pytest.mark.parametrize("kind", [0, 255, *(int(kind) for kind in DescriptorKind if kind in (2, 5, 8, 11, 13, 21, 22, 23))])
def test_a_request_of_the_controller_or_of_no_process_costs_its_channel_only(kind: int, writer: RealLogWriter) -> None:
    hostile = _taken_over(writer)
    assert hostile.by_disk[DISK].offer((kind, 0, 0, *_terms(writer), 100, 4096, 0, 1, 0, 0, 0), 0, None)
    _serves_others(writer)


def test_producers_that_are_to_be_written_beyond_the_arena_cost_the_channel_only(writer: RealLogWriter) -> None:
    hostile = _taken_over(writer)
    entry = (DescriptorKind.DESCRIBE_PRODUCERS, 0, 0, *_terms(writer), 4096, len(hostile.source.arena.memory) - 1, 0, 0, 0, 0, 0)
    assert hostile.by_disk[DISK].offer(entry, 0, None)
    _serves_others(writer)


def _flood(writer: RealLogWriter, hostile: LogWriterProxies, kind: int, turns: int) -> None:
    """Offer a full burst of descriptors each turn, whatever has been completed."""
    shared, tail = _rings(hostile), 0
    for _ in range(turns):
        for _ in range(256):
            DESCRIPTOR.pack_into(shared.memory, RINGS_POSITION + (tail & 255) * 64, kind, 0, 0, *_terms(writer), 100, 4096, tail, 0, 0, 0, LARGEST)
            tail += 1
        shared.words[DESCRIPTOR_TAIL_WORD] = tail
        writer.agent.do_work()
        if HOSTILE not in [channel.source for channel in writer.agent.door.channels]:
            return


def test_a_source_that_reads_no_completions_costs_its_channel_only(writer: RealLogWriter) -> None:
    hostile = _taken_over(writer)
    _flood(writer, hostile, DescriptorKind.PROGRESS, 4)
    _serves_others(writer)


def test_requests_that_wait_never_exceed_the_ring(writer: RealLogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a deadline of its source's choice, and memory of the log-writer until then."""
    hostile = _taken_over(writer)
    monkeypatch.setattr("services.log_writer.command_queue.CommandQueue._delete_records", lambda *_: None)  # it waits for followers
    monkeypatch.setattr("services.log_writer.command_queue.WORK_NS", 1 << 40)
    _flood(writer, hostile, DescriptorKind.DELETE_RECORDS, 4)
    _serves_others(writer)


def test_a_control_batch_of_a_client_is_refused(writer: RealLogWriter) -> None:
    hostile = _taken_over(writer)
    batch = bytearray(_batch())
    batch[ATTRIBUTES_AT + 1] |= CONTROL_FLAG
    writer.produce(hostile, 0, bytes(batch))
    hostile.flush()
    while not writer.answers[2:]:
        writer.turn()
    assert writer.codes("produce") == [ErrorCode.INVALID_RECORD]


CHANGES = {
    "a base offset": (BASE_OFFSET_AT, bytes([0x7F] * 8)),
    "a longer batch": (BATCH_LENGTH_AT, bytes([0x7F, 0xFF, 0xFF, 0xFF])),
    "a negative length": (BATCH_LENGTH_AT, bytes([0xFF] * 4)),
    "another magic": (MAGIC_AT, b"\x01"),
    "a control batch": (ATTRIBUTES_AT, b"\x00\x30"),
    "a compressed control batch": (ATTRIBUTES_AT, b"\x00\x34"),
    "more offsets": (LAST_OFFSET_DELTA_AT, bytes([0x7F, 0xFF, 0xFF, 0xFF])),
    "fewer than no offsets": (LAST_OFFSET_DELTA_AT, bytes([0xFF] * 4)),
    "a late record": (MAX_TIMESTAMP_AT, bytes([0x7F] * 8)),
    "a producer": (PRODUCER_ID_AT, bytes([0x7F] * 14)),
    "everything": (0, bytes([0xA5] * RECORDS_AT)),
}


@pytest.mark.parametrize("moment", ["plan_append", "write_all"])
def test_a_batch_that_its_source_changes_while_it_is_appended_harms_no_other_log(moment: str, tmp_path: Path) -> None:
    """Nor records that were in the log before it. Its own partition has a batch that does not match its checksum, as without a race."""
    with scratch_layout() as layout:
        writer = RealLogWriter(layout, tmp_path, 1)
        writer.recover()
        controller, other = writer.source("controller"), len(CHANGES)
        for partition in range(other + 1):
            writer.create(controller, partition)
            writer.lead(controller, partition)
        hostile = _taken_over(writer)
        for partition in range(other + 1):
            writer.produce(hostile, partition, _batch())
        _settle(writer, 3 * (other + 1))
        module = log_module if moment == "plan_append" else file_io
        original = getattr(module, moment)
        for partition, (position, content) in enumerate(CHANGES.values()):
            at = writer.produce(hostile, partition, _batch()) + position

            def changed(*given: Any, at: int = at, content: bytes = content) -> Any:
                hostile.source.arena.memory[at : at + len(content)] = content
                return original(*given)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(module, moment, changed)
                _settle(writer, len(writer.answers) + 1)
            for again in (other, partition):
                writer.produce(hostile, again, _batch())
            _settle(writer, len(writer.answers) + 2)
        produced = [(partition, code) for _, (verb, partition), code in writer.answers if verb == "produce"]
        assert [code for partition, code in produced if partition == other] == [0] * (1 + len(CHANGES))
        assert [code for partition, code in produced if partition != other][:other] == [0] * other
        writer.die()
        next_one = RealLogWriter(layout, tmp_path, 2)
        next_one.recover()
        ends = [hosted.log.log_end_offset for partition in range(other + 1) if (hosted := next_one.agent.partitions.find(TOPIC_ID, partition)) is not None]
        assert len(ends) == other + 1 and min(ends) >= 1 and ends[other] == 1 + len(CHANGES)
        next_one.stop()


def test_what_a_taken_over_acceptor_writes_into_the_audit_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a damaged batch recovery cuts a log, and what other acceptors have written."""
    with contextmanager(_led)(tmp_path, AUDIT_TOPIC) as writer:
        hostile = _taken_over(writer)
        damaged = bytearray(_batch())
        damaged[-1] ^= 1
        writer.produce(hostile, 0, bytes(damaged))
        _settle(writer, 3)
        assert writer.codes("produce") == [ErrorCode.CORRUPT_MESSAGE]
        at, original = writer.produce(hostile, 0, _batch()), log_module.plan_append

        def changed(*given: Any) -> Any:
            hostile.source.arena.memory[at : at + RECORDS_AT] = bytes(RECORDS_AT)
            return original(*given)

        monkeypatch.setattr(log_module, "plan_append", changed)
        _settle(writer, 4)
        hosted = writer.agent.partitions.find(TOPIC_ID, 0)
        assert hosted is not None and writer.codes("produce")[1:] == [0]
        content = Path(hosted.log.directory, f"{0:020}.log").read_bytes()
        assert stored_batch_problem(content, 0, len(content)) is None


def _settle(writer: RealLogWriter, answers: int) -> None:
    while len(writer.answers) < answers:
        for source in writer.sources.values():
            source.flush()
        writer.turn()


def test_producers_without_number_are_no_memory_of_the_log_writer(writer: RealLogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client may write under any producer id."""
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 40)
    source, hosted = writer.source("acceptor@1"), writer.agent.partitions.find(TOPIC_ID, 0)
    assert hosted is not None
    for producer_id in range(100):
        writer.produce(source, 0, bytes(batch(b"x", producer=(producer_id, 0, 0))))
    _settle(writer, 102)
    assert writer.codes("produce") == [0] * 100 and 30 <= len(hosted.log.producers) <= 40
    assert hosted.log.producers.entry(ProducerId(99)) is not None
    monkeypatch.setattr(replicas_of_disk, "DISK_PRODUCERS_MAX", 10)
    writer.seconds(2)
    assert len(hosted.log.producers) <= 10


@pytest.mark.parametrize("name", [HOSTILE, "ingest@0", "replica-fetcher"])
def test_only_the_coordinator_appends_to_its_topics(name: str, coordinators: RealLogWriter) -> None:
    writer, marker = coordinators, (DescriptorKind.TRANSACTION_MARKER, 0, 0, *_terms(coordinators), 0, 0, 0, 7, 0, 0, 0)
    source = writer.source(name)
    writer.produce(source, 0, _batch())
    assert source.by_disk[DISK].offer(marker, 0, ("marker", 0))
    source.flush()
    while len(writer.answers) < 4:
        writer.turn()
    assert writer.codes("produce") == writer.codes("marker") == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    hosted = writer.agent.partitions.find(TOPIC_ID, 0)
    assert hosted is not None and hosted.log.log_end_offset == 0
    coordinator = writer.source("coordinator")
    writer.produce(coordinator, 0, _batch())
    assert coordinator.by_disk[DISK].offer(marker, 0, ("marker", 0))
    coordinator.flush()
    while len(writer.answers) < 6:
        writer.turn()
    assert writer.codes("produce")[1:] == writer.codes("marker")[1:] == [0] and hosted.log.log_end_offset == 2


def test_a_process_that_faces_the_network_trims_no_topic_of_the_coordinators(coordinators: RealLogWriter) -> None:
    writer, hostile = coordinators, _taken_over(coordinators)
    assert hostile.by_disk[DISK].offer((DescriptorKind.DELETE_RECORDS, 0, 0, *_terms(writer), 0, 0, 0, 0, 0, 0, 0), 0, ("trim", 0))
    hostile.flush()
    while not writer.codes("trim"):
        writer.turn()
    assert writer.codes("trim") == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


def _knock(writer: RealLogWriter) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.connect(writer.layout.log_writer_socket(DISK))
    return made


def test_descriptors_without_a_frame_use_up_none_of_the_log_writer(writer: RealLogWriter) -> None:
    before = open_descriptors()
    hostile, bell = _knock(writer), os.eventfd(0)
    rights = array.array("i", [bell] * 8)
    for byte in HEADER.pack(1 << 10, 1, 0)[:10]:
        try:
            hostile.sendmsg([bytes([byte])], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except BrokenPipeError:
            break
        writer.turn()
    assert not writer.agent.door.connections.keys() - {channel.control for channel in writer.agent.door.channels}
    os.close(bell)
    hostile.close()
    assert open_descriptors() <= before


def test_a_greeting_without_end_is_no_memory_of_the_log_writer(writer: RealLogWriter) -> None:
    hostile = _knock(writer)
    hostile.setblocking(False)
    sent = hostile.send(Struct("<IBQ").pack(60 << 20, 1, 0) + bytes(1 << 17))
    assert sent > channel_acceptor.HELLO_BYTES_MAX
    for _ in range(2):
        writer.turn()
    assert len(writer.agent.door.connections) == 1
    hostile.close()


def test_connections_of_processes_that_face_the_network_are_limited(writer: RealLogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_acceptor, "CONNECTIONS_MAX", 4)
    monkeypatch.setattr(channel_acceptor, "is_trusted_user", lambda _user: False)
    hostile = [_knock(writer) for _ in range(8)]
    writer.turn()
    assert len(writer.agent.door.connections) == 4 and writer.counters.counter("log_writer.refused_sources").value == 5
    for sock in hostile:
        sock.close()
    writer.turn()
    assert len(writer.agent.door.connections) == 1
