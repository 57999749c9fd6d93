"""Programs that send again and again what a dead ingest may have stored, while the log-writer that knows stands still: ingest ends at its bound, and all of it
is there once afterwards. curl with a key for each request, 12 of them, 2.6 MB each, each attempt on a new connection.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from lab.reconcile import Reconciliation
from lab.running_box import RunningBox, eventually, proportional_kib, start_box

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.deep]

MIB = 1 << 20
SENDERS, RECORDS, TEXT = 12, 26, "x" * 100_000
HELD_BYTES_MAX = 16 * MIB
SECONDS = 30.0
ATTEMPT_SECONDS = 1
"""After which curl opens the next connection. Nothing is answered meanwhile but what is refused."""
MEMORY_KIB_MAX = 160 * 1024
"""What ingest may grow by: what is held, its fields, requests of 2.6 MB on 12 connections, its arena. Without a bound it was 390 MB after these seconds."""
SETTINGS = {
    "ingest.held.bytes": HELD_BYTES_MAX,
    "log.disk.deadline.ms": 600_000,
    "watchdog.timeout.ms": 600_000,
}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[RunningBox]:
    made = start_box(tmp_path / "box", disks=2, settings=SETTINGS, senders={"listener": [{"name": "http", "topics": "far"}]})
    try:
        yield made
    finally:
        assert made.stop() == 0


def test_memory_ends_while_senders_come_again_and_again_and_everything_is_there_once(box: RunningBox, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    admin.create_topics([NewTopic("far", 2, 1)])["far"].result(60)
    books = Reconciliation(box, "far")
    for number in range(SENDERS):
        lines = (json.dumps({"host": f"host-{number}", "message": f"{number} {record}", "text": TEXT}) for record in range(RECORDS))
        (tmp_path / f"body-{number}").write_text("\n".join(lines) + "\n")
    stopped = [box.stop_process(f"log-writer@{disk.name}") for disk in box.box.disks[:1]]
    first = [curl(box.ingest, tmp_path, number) for number in range(SENDERS)]
    eventually(lambda: ingest_counter(box, "ingest.received") > SENDERS * RECORDS // 2, "it is under way")
    old = box.kill("ingest@0")
    for sender in first:
        sender.kill()
        sender.wait()
    box.await_restart("ingest@0", old)
    before = proportional_kib(box.pid("ingest@0"))
    senders = {number: curl(box.ingest, tmp_path, number) for number in range(SENDERS)}
    seen: list[int] = []
    attempts, told = 0, set()
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        time.sleep(0.05)
        for number, sender in list(senders.items()):
            if sender.poll() is None:
                continue
            attempts += 1
            if sender.returncode == 0:
                told.add(number)
                del senders[number]
            else:
                senders[number] = curl(box.ingest, tmp_path, number)
        seen.append(proportional_kib(box.pid("ingest@0")) - before)
    assert senders and attempts > SENDERS and max(seen) < MEMORY_KIB_MAX, (max(seen), attempts)
    assert ingest_counter(box, "ingest.refused") > 0
    print(f"{attempts} attempts; ingest grew by {max(seen)} KiB at most; {len(told)} were acknowledged")
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + 60
    while senders:
        assert time.monotonic() < deadline, f"{len(senders)} senders are not answered"
        for number, sender in list(senders.items()):
            if sender.wait() == 0:
                del senders[number]
            else:
                senders[number] = curl(box.ingest, tmp_path, number)
    found = Counter(document["message"] for document in books.records("far"))
    assert found == Counter(f"{number} {record}" for number in range(SENDERS) for record in range(RECORDS))


def curl(address: object, directory: Path, number: int) -> subprocess.Popen[bytes]:
    command = ["curl", "-sS", "--fail", "--max-time", str(ATTEMPT_SECONDS), "-H", f"Idempotency-Key: body-{number}", "-H", "Content-Type: application/x-ndjson"]
    command += ["-o", "/dev/null", "--data-binary", f"@{directory}/body-{number}", f"http://{address}/ingest/far"]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def ingest_counter(box: RunningBox, name: str) -> int:
    """Over all listeners and reasons."""
    values = box.counters("ingest@0").values
    return sum(value for label, value in values.items() if label.partition("{")[0] == name)
