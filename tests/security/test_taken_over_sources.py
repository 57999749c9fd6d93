"""What a taken-over acceptor or ingest does to a log-writer by the words that both map: its channel is dropped and counted, and the log-writer serves on."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.ipc import channel_acceptor
from appliance.ipc.descriptors import DESCRIPTOR, DescriptorKind
from appliance.ipc.frames import HEADER
from appliance.ipc.proxies import LogWriterProxies
from appliance.records.batch import ATTRIBUTES_AT, CONTROL_FLAG, RECORDS_AT
from appliance.records.builder import BatchBuilder
from appliance.shm.ring import DESCRIPTOR_TAIL_WORD, RINGS_POSITION
from lab.scratch_layout import open_descriptors, scratch_layout
from tests.support.real_log_writer import DISK, TOPIC_ID, RealLogWriter

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
