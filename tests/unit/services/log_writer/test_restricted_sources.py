"""What a log-writer refuses to sources of the user that faces the network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.errors import ErrorCode
from appliance.ipc.descriptors import ADDS_PARTITION_FLAG, BEHIND_REFUSED_FLAG, COORDINATOR_FLAG, VERIFIED_FLAG, DescriptorKind
from appliance.ipc.proxies import LogWriterProxies
from appliance.records.builder import BatchBuilder
from lab.scratch_layout import scratch_layout
from tests.support.real_log_writer import DISK, TOPIC_ID, RealLogWriter


def _batch() -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, b"value")
    return builder.build()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RealLogWriter]:
    """It leads one partition."""
    with scratch_layout() as layout:
        made = RealLogWriter(layout, tmp_path, 1)
        made.recover()
        controller = made.source("controller")
        made.create(controller, 0)
        made.lead(controller, 0)
        controller.flush()
        while len(made.answers) < 2:
            made.turn()
        yield made
        made.die()


def _restricted(writer: RealLogWriter) -> LogWriterProxies:
    acceptor = writer.source("acceptor@0")
    for channel in writer.agent.door.channels:
        channel.is_restricted = channel.source == "acceptor@0"
    return acceptor


def test_a_restricted_source_that_orders_a_deletion_is_dropped(writer: RealLogWriter) -> None:
    acceptor = _restricted(writer)
    hosted = writer.agent.partitions.find(TOPIC_ID, 0)
    assert hosted is not None
    assert acceptor.by_disk[DISK].offer((DescriptorKind.DELETE, 0, 0, hosted.row, hosted.row_generation, 0, 0, 0, 0, 0, 0, 0, 0, 0), 0, None)
    acceptor.flush()
    writer.agent.do_work()
    assert writer.agent.partitions.find(TOPIC_ID, 0) is hosted
    assert [channel.source for channel in writer.agent.door.channels] == ["controller"]
    assert writer.counters.counter("log_writer.refused_sources").value == 1


@pytest.mark.parametrize("flags", [COORDINATOR_FLAG, COORDINATOR_FLAG | VERIFIED_FLAG, ADDS_PARTITION_FLAG | VERIFIED_FLAG])
def test_a_restricted_source_may_not_append_as_a_coordinator(writer: RealLogWriter, flags: int) -> None:
    acceptor = _restricted(writer)
    writer.produce(acceptor, 0, _batch(), flags)
    writer.produce(acceptor, 0, _batch())
    acceptor.flush()
    while len(writer.codes("produce")) < 2:
        writer.turn()
    assert sorted(writer.codes("produce")) == [0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


def test_a_sequence_outside_the_arena_is_never_read(writer: RealLogWriter) -> None:
    acceptor = writer.source("acceptor@0")
    hosted = writer.agent.partitions.find(TOPIC_ID, 0)
    assert hosted is not None
    beyond = len(acceptor.source.arena.memory) - 45  # its producer id would lie inside, its sequence not
    order = hosted.row, hosted.row_generation, hosted.leader_epoch, hosted.config_generation
    assert acceptor.by_disk[DISK].offer((DescriptorKind.PRODUCE, BEHIND_REFUSED_FLAG, 0, *order, 45, beyond, 0, 1, 0, 0, 0), 0, None)
    acceptor.flush()
    writer.agent.do_work()
    assert "of its arena" in writer.said and [channel.source for channel in writer.agent.door.channels] == ["controller"]
