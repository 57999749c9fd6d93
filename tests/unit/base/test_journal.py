"""Events on their way to journald: what a socket in its place receives, read by a parser that knows only the protocol's description."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.journal import STREAM_VARIABLE, Journal, is_journal
from appliance.base.logging import PERIOD_NS_FIRST, Logger

PERIOD_MS = PERIOD_NS_FIRST // 1_000_000


def parse(entry: bytes) -> dict[str, str]:
    """An entry of the native protocol: lines `NAME=value`, or `NAME`, a length of 64 bits and so many bytes."""
    fields = {}
    while entry:
        head, _, rest = entry.partition(b"\n")
        if b"=" in head:
            name, value = head.split(b"=", 1)
            entry = rest
        else:
            size = int.from_bytes(rest[:8], "little")
            name, value = head, rest[8 : 8 + size]
            assert rest[8 + size : 9 + size] == b"\n"
            entry = rest[9 + size :]
        assert name.decode() not in fields
        fields[name.decode()] = value.decode()
    return fields


class Receiver:
    """A socket where journald's would be."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.setblocking(False)

    def receive(self) -> dict[str, str]:
        data, ancillary, _, _ = self.socket.recvmsg(1 << 20, 1024)
        if not data:
            ((_, _, packed),) = ancillary
            (descriptor,) = array.array("i", packed)
            data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            with pytest.raises(PermissionError):  # sealed: no process changes it while it is read
                os.write(descriptor, b"x")
            os.close(descriptor)
        return parse(data)

    def drain(self) -> int:
        count = 0
        try:
            while self.receive():
                count += 1
        except BlockingIOError:
            return count
        raise AssertionError("an empty event")


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    receiver = Receiver(tmp_path / "journal")
    yield receiver
    receiver.socket.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(receiver: Receiver, clock: ManualClock) -> Iterator[Logger]:
    journal = Journal(receiver.path)
    yield Logger("log-writer@d0", clock=clock, journal=journal)
    journal.close()


def test_an_event_has_its_text_severity_process_and_fields(receiver: Receiver, log: Logger) -> None:
    log.common_fields["disk"] = "d0"
    log.warning("orders-7 has come, it ends at offset 9", topic="orders", partition=7)
    fields = receiver.receive()
    assert fields.pop("CODE_FILE") == __file__ and fields.pop("CODE_LINE").isdigit()
    assert fields.pop("CODE_FUNC") == "test_an_event_has_its_text_severity_process_and_fields"
    assert fields == {
        "MESSAGE": "orders-7 has come, it ends at offset 9",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "millrace-log-writer@d0",
        "MILLRACE_PROCESS": "log-writer@d0",
        "MILLRACE_DISK": "d0",
        "MILLRACE_TOPIC": "orders",
        "MILLRACE_PARTITION": "7",
    }


def test_a_stack_is_one_event(receiver: Receiver, log: Logger) -> None:
    log.critical("it died\n  of this\n")
    fields = receiver.receive()
    assert (fields["MESSAGE"], fields["PRIORITY"]) == ("it died\n  of this\n", "2")
    assert receiver.drain() == 0


def test_no_text_can_forge_a_field(receiver: Receiver, log: Logger) -> None:
    log.info("a client said\nMILLRACE_DISK=d9", client="10.0.0.1:5\nPRIORITY=0")
    fields = receiver.receive()
    assert fields["PRIORITY"] == "6" and "MILLRACE_DISK" not in fields
    assert fields["MILLRACE_CLIENT"] == "10.0.0.1:5\nPRIORITY=0" and fields["MESSAGE"].endswith("\nMILLRACE_DISK=d9")


def test_an_event_larger_than_a_datagram_is_received_whole(receiver: Receiver, log: Logger) -> None:
    log.error("x" * 1_000_000, disk="d0")
    fields = receiver.receive()
    assert len(fields["MESSAGE"]) == 1_000_000 and fields["MILLRACE_DISK"] == "d0"


def test_a_journald_that_hangs_loses_lines_and_delays_nothing(receiver: Receiver, log: Logger, clock: ManualClock) -> None:
    """The socket exists and no process reads it: the kernel keeps some datagrams, the rest is
    counted.
    """
    while not log.lines_dropped:
        log.info("one more line")
        clock.advance_ms(PERIOD_MS)  # no line is held back
    kept = receiver.drain()
    assert kept > 1
    log.info("it reads again")
    assert receiver.receive()["MESSAGE"] == "1 line was lost before this one: the log did not accept them in time"
    assert receiver.receive()["MESSAGE"] == "it reads again"


def test_without_journald_lines_go_to_its_stream_with_their_severity_in_front(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    journal = Journal(str(tmp_path / "nobody"))
    Logger("log-writer@d0", descriptor=writing, journal=journal).error("one\ntwo", disk="d0")
    journal.close()
    assert os.read(reading, 1000) == b"<3>one\n<3>two\n"


def test_stderr_is_the_journal_only_where_its_device_and_inode_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    found = os.fstat(writing)
    monkeypatch.delenv(STREAM_VARIABLE, raising=False)
    assert not is_journal(writing)
    monkeypatch.setenv(STREAM_VARIABLE, f"{found.st_dev}:{found.st_ino}")
    assert is_journal(writing) and not is_journal(0)
    for strange in ("", "8", "a:b", f"{found.st_dev}:"):
        monkeypatch.setenv(STREAM_VARIABLE, strange)
        assert not is_journal(writing)
    monkeypatch.setenv(STREAM_VARIABLE, f"{found.st_dev}:{found.st_ino}")
    os.close(reading)
    os.close(writing)
    assert not is_journal(writing)
