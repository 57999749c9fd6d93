"""Listening sockets, LISTEN_FDS, sd_notify, the poller."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from appliance.base.settings import SenderSocket
from appliance.runtime.children import listen_names
from appliance.runtime.listening import open_listen_sockets
from appliance.runtime.poller import READABLE, WRITABLE, Poller
from appliance.runtime.systemd import SystemdNotifier, notify, take_listen_sockets
from appliance.shm.counters import Counters, read_counters
from lab.scratch_layout import scratch_layout
from services.supervisor.child_start import NotifySocket


def test_syslog_has_one_port_number_for_both_transports() -> None:
    listening, problems = open_listen_sockets("127.0.0.1", 0, 0, 0, 0)
    assert problems == []
    assert set(listening.sockets) == {"kafka", "http", "syslog-tcp", "syslog-udp", "ingest-http"}
    assert listening.sockets["syslog-tcp"].getsockname() == listening.sockets["syslog-udp"].getsockname() == ("127.0.0.1", listening.syslog_port)
    assert listening.sockets["syslog-udp"].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > 200_000
    listening.close()


def test_every_busy_port_is_named_with_its_option() -> None:
    with socket.socket() as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        udp.bind(("127.0.0.1", 0))
        kafka, syslog = tcp.getsockname()[1], udp.getsockname()[1]
        listening, problems = open_listen_sockets("127.0.0.1", kafka, syslog, 0, 0)
    assert len(problems) == 2
    assert f"port {kafka} (TCP)" in problems[0] and "--kafka-port" in problems[0]
    assert f"port {syslog} (TCP and UDP)" in problems[1] and "--syslog-port" in problems[1]
    assert set(listening.sockets) == {"http", "ingest-http"}
    listening.close()


def test_a_name_that_is_no_host_is_one_problem() -> None:
    listening, problems = open_listen_sockets("192.0.2.1", 0, 0, 0, 0)
    listening.close()
    assert len(problems) == 1 and "192.0.2.1 is no address of this machine" in problems[0]
    listening, problems = open_listen_sockets("no such host", 0, 0, 0, 0)
    assert len(problems) == 1 and "--listen no such host" in problems[0] and listening.sockets == {}


def test_the_table_has_sockets_beside_and_a_port_that_is_taken_names_its_line() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        senders = [
            SenderSocket("ingest-relp", False, "", 0, "t:1"),
            SenderSocket("ingest-gelf", True, "127.0.0.1", 0, "t:2"),
            SenderSocket("ingest-taken", True, "", udp.getsockname()[1], "t:3"),
            SenderSocket("ingest-afar", False, "192.0.2.1", 0, "t:4"),
        ]
        listening, problems = open_listen_sockets("127.0.0.1", 0, 0, 0, 0, senders)
    assert [problem.partition(": ")[0] for problem in problems] == ["t:3", "t:4"] and "(UDP)" in problems[0] and "be left out" in problems[1]
    relp, gelf = listening.senders
    assert listening.sockets["ingest-relp"].getsockname()[1] == relp.port > 0 and listening.sockets["ingest-gelf"].getsockname()[1] == gelf.port > 0
    assert gelf.where == "t:2" and listening.sockets["ingest-gelf"].type == socket.SOCK_DGRAM
    listening.close()
    assert listen_names("ingest", ["ingest-http", "kafka", "ingest-relp"]) == ["syslog-tcp", "syslog-udp", "ingest-http", "ingest-relp"]
    assert listen_names("console", listening.sockets) == ["http"] and listen_names("controller", listening.sockets) == []


def test_sockets_for_another_process_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + 1))
    assert take_listen_sockets() == {}
    assert "LISTEN_FDS" not in os.environ  # nor by our children


def test_a_notification_comes_with_the_pid_that_the_kernel_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = NotifySocket(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", receiver.path)
    assert notify("READY=1\nSTATUS=all is well")
    assert list(receiver.receive()) == [(os.getpid(), "READY", "1"), (os.getpid(), "STATUS", "all is well")]
    receiver.close()
    assert not notify("READY=1")


def test_ready_is_sent_to_the_parent_and_written_to_the_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = NotifySocket(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", receiver.path)
    with scratch_layout() as layout:
        counters = Counters.create_or_adopt(layout, "x", 1)
        SystemdNotifier(counters).ready()
        snapshot = read_counters(layout, "x")
        assert snapshot is not None and snapshot.state == "serving"
        assert list(receiver.receive()) == [(os.getpid(), "READY", "1")]
        counters.close()
    receiver.close()


def test_the_poller_calls_back_what_is_ready_and_forgets_what_is_unregistered() -> None:
    poller = Poller()
    ours, theirs = socket.socketpair()
    seen: list[int] = []
    poller.register(ours.fileno(), READABLE, seen.append)
    assert poller.poll(0) == 0
    theirs.send(b"x")
    assert poller.poll(1000) == 1 and seen == [READABLE]
    poller.modify(ours.fileno(), WRITABLE)
    assert poller.poll(0) == 1 and seen == [READABLE, WRITABLE]
    poller.unregister(ours.fileno())
    poller.unregister(ours.fileno())
    assert poller.poll(0) == 0 and len(poller) == 0
    poller.register(ours.fileno(), READABLE, seen.append)
    ours.close()
    poller.unregister(-1)
    theirs.close()
    poller.close()


def test_a_callback_may_unregister_another_descriptor_of_the_same_turn() -> None:
    poller = Poller()
    pairs = [socket.socketpair() for _ in range(2)]
    called = []

    def drop_the_other(index: int) -> None:
        called.append(index)
        poller.unregister(pairs[1 - index][0].fileno())

    for index, (ours, theirs) in enumerate(pairs):
        poller.register(ours.fileno(), READABLE, lambda _events, index=index: drop_the_other(index))  # type: ignore[misc]
        theirs.send(b"x")
    poller.poll(0)
    assert len(called) == 1
    for pair in pairs:
        for sock in pair:
            sock.close()
    poller.close()
