"""Senders that wait for answers, while the processes of the box are killed with -9 in turn: nothing acknowledged is lost, and nothing is stored twice."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgpack
import pytest

from appliance.base.clock import SystemClock
from appliance.ingest.accounting import read_ledger
from tests.support.running_box import Address, RunningBox, eventually, start_box
from tests.support.topic_documents import read_documents

pytestmark = [pytest.mark.system, pytest.mark.slow]

VICTIMS = ("ingest@0", "log-writer@d0", "acceptor@0", "controller")
LINES_PER_VICTIM = 6_000
TABLE = """
listen relp   relp   tcp :0 topic=lines
listen fluent fluent tcp :0 topic=chunks key=none
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    directory = tmp_path_factory.mktemp("replays")
    (directory / "ingest.table").write_text(TABLE)
    box = start_box(directory / "box", disks=1, settings={"ingest.table.file": str(directory / "ingest.table"), "ingest.syslog.partitions": 2})
    yield box
    box.stop()
    assert box.leftovers() == []


@contextmanager
def relay(target: Address, directory: Path) -> Iterator[Path]:
    """A real rsyslog that sends what is appended to the file by RELP; it asks again every second without an end."""
    source = directory / "lines.log"
    source.touch()
    (directory / "rsyslog.conf").write_text(f"""
global(workDirectory="{directory}")
module(load="imfile") module(load="omrelp")
input(type="imfile" File="{source}" Tag="lines:" ruleset="relay")
ruleset(name="relay" queue.type="LinkedList" queue.size="100000") {{
  action(type="omrelp" target="{target.host}" port="{target.port}" template="RSYSLOG_SyslogProtocol23Format"
         windowSize="2000" action.resumeRetryCount="-1" action.resumeInterval="1")
}}
""")
    program = shutil.which("rsyslogd")
    assert program, "rsyslogd is not there; ./install.sh test unpacks it under .venv/peers"
    with open(directory / "rsyslogd.log", "wb") as log:
        process = subprocess.Popen([program, "-n", "-f", str(directory / "rsyslog.conf"), "-i", str(directory / "pid")], stdout=log, stderr=log)
    try:
        yield source
    finally:
        process.terminate()
        process.wait(20)


class ChunkSender(threading.Thread):
    """Forwards chunks of ten records, one after the other, each until it is acknowledged, over as many connections as that takes."""

    def __init__(self, target: Address) -> None:
        super().__init__(daemon=True)
        self._target = target
        self._is_over = threading.Event()
        self._time = SystemClock.wall_ms() // 1000  # of a producer whose records are a day old a log remembers nothing
        self.acknowledged = 0
        self.connections = 0

    def run(self) -> None:
        while not self._is_over.is_set():
            try:
                with socket.create_connection(self._target, timeout=2) as connection:
                    self.connections += 1
                    while not self._is_over.is_set():
                        self._send(connection)
            except OSError:
                self._is_over.wait(0.05)

    def _send(self, connection: socket.socket) -> None:
        chunk = f"chunk-{self.acknowledged}"
        first = self.acknowledged * 10
        entries = b"".join(msgpack.packb([self._time, {"message": f"record {number}"}]) for number in range(first, first + 10))
        connection.sendall(msgpack.packb(["app", entries, {"chunk": chunk, "size": 10}]))
        answer = connection.recv(1000)
        if not answer:
            raise ConnectionError
        assert msgpack.unpackb(answer) == {"ack": chunk}
        self.acknowledged += 1

    def has_acknowledged(self, chunks: int) -> bool:
        return self.acknowledged >= chunks

    def stop(self) -> None:
        self._is_over.set()
        self.join(10)


def texts(box: RunningBox, topic: str) -> Counter[str]:
    return Counter(document["message"].strip() for document in read_documents(box, topic))


def test_every_acknowledged_record_is_there_once_whoever_was_killed(box: RunningBox, tmp_path: Path) -> None:
    sender = ChunkSender(box.sender("fluent"))
    sender.start()
    written = 0
    with relay(box.sender("relp"), tmp_path) as source, open(source, "a", buffering=1) as lines:
        for name in VICTIMS:
            acknowledged = sender.acknowledged
            for part in range(3):
                for number in range(written, written + LINES_PER_VICTIM // 3):
                    lines.write(f"line {number}\n")
                written += LINES_PER_VICTIM // 3
                lines.flush()
                if part == 0:
                    eventually(partial(sender.has_acknowledged, acknowledged + 4), "chunks are acknowledged")
                    old_pid = box.kill(name)
            box.await_restart(name, old_pid)
            eventually(partial(sender.has_acknowledged, sender.acknowledged + 4), f"chunks are acknowledged after the death of {name}", 20)
        wanted = {f"line {number}" for number in range(written)}
        eventually(lambda: len(texts(box, "lines")) >= written, "the relay has sent everything", 30)
    sender.stop()
    assert texts(box, "lines") == Counter(dict.fromkeys(wanted, 1))
    acknowledged_records = {f"record {number}" for number in range(sender.acknowledged * 10)}
    chunks = texts(box, "chunks")
    assert acknowledged_records <= chunks.keys() and set(chunks.values()) == {1}
    assert sender.connections >= 2
    eventually(lambda: read_ledger(box.counters("ingest@0").values).balances, "the books balance")
