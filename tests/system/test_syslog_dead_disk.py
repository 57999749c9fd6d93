"""A relay sends over one connection for hosts of both disks; one disk fails under it, and comes back."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from appliance.senders.accounting import read_ledger
from lab.running_box import RunningBox, environment, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]

PADDING = "x" * 900
BUDGET_BYTES = 1 << 20


def _lines(start: int, count: int) -> bytes:
    return b"".join(f"<13>1 2026-01-01T00:00:00Z host{number % 64} app - - - {number} {PADDING}\n".encode() for number in range(start, start + count))


def _await_books(box: RunningBox, received: int) -> None:
    def are_settled() -> bool:
        ledger = read_ledger(box.counters("ingest@0").values)
        return ledger.received == received and ledger.balances and ledger.counted == 0

    eventually(are_settled, f"{received} lines stored")


def _await_end_offset(box: RunningBox, partition: int) -> int:
    """Ingest may know that a log-writer is back before an acceptor does; a client tries again then, as we do."""
    found: list[int] = []

    def ask() -> bool:
        try:
            found.append(_end_offset(box, partition))
        except KafkaException as refused:
            # a dead disk comes back under a larger leader epoch, and the image has it a moment
            # later
            assert refused.args[0].code() in (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.FENCED_LEADER_EPOCH)
        return bool(found)

    eventually(ask, f"partition {partition} is served again")
    return found[0]


def _end_offset(box: RunningBox, partition: int) -> int:
    """Asked for as an admin client does: a consumer would have the topic of the groups' offsets made, on both disks, while one of them dies."""
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    (found,) = admin.list_offsets({TopicPartition("syslog", partition): OffsetSpec.latest()}, request_timeout=10).values()
    return int(found.result(15).offset)


def _partitions_of(box: RunningBox, disk: int) -> list[int]:
    return [partition for partition in range(4) if (box.disks[disk] / f"syslog-{partition}").is_dir()]


def test_one_dead_disk_stops_no_relay_and_takes_its_lines_again_when_it_is_back(start: Callable[..., RunningBox]) -> None:
    box = start(settings={"disk.budget.bytes": BUDGET_BYTES})
    relay = socket.create_connection((box.syslog.host, box.syslog.port), 10)
    relay.settimeout(60)
    relay.sendall(_lines(0, 1000))
    _await_books(box, 1000)
    assert all(_end_offset(box, partition) for partition in _partitions_of(box, 1))

    # No byte more can be written to any file: the log-writer gets EFBIG, as it would get EIO from a dead disk.
    resource.prlimit(box.pids()["log-writer@d1"], resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    started = time.monotonic()
    relay.sendall(_lines(1000, 20_000))  # ten times the budget for the dead disk's hosts alone; a stall is a timeout here
    _await_books(box, 21_000)
    assert time.monotonic() - started < 60, "the dead disk never comes back by itself"
    values = box.counters("ingest@0").values
    assert values["ingest.dead_disks"] == 1 and values["ingest.moved"] > 0
    assert "disk d1 takes no lines" in box.messages
    command = [sys.executable, "-P", "-m", "appliance.command.main", "topic", "tail", "syslog", "--no-follow", "--bootstrap", box.bootstrap]
    tail = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert tail.returncode == 1 and len(tail.stdout.splitlines()) == sum(_end_offset(box, partition) for partition in _partitions_of(box, 0))
    assert all(f"partition {partition} of syslog was not read: " in tail.stderr for partition in _partitions_of(box, 1))

    box.kill("log-writer@d1")
    eventually(lambda: box.counters("ingest@0").values["ingest.dead_disks"] == 0, "d1 is back")
    before = [_await_end_offset(box, partition) for partition in _partitions_of(box, 1)]
    relay.sendall(_lines(21_000, 1000))
    _await_books(box, 22_000)
    assert [_end_offset(box, partition) for partition in _partitions_of(box, 1)] > before
    assert sum(_end_offset(box, partition) for partition in range(4)) >= 22_000
    relay.close()
