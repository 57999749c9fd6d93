"""`millrace top`, `doctor` and `topic alter` against a real box that works."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from lab.running_box import RunningBox, environment, eventually

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system, pytest.mark.slow]

COMMAND = [sys.executable, "-P", "-m", "appliance.command.main"]
TOPIC = "watched"
VALUE = b"x" * 1_000


def millrace(box: RunningBox, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments, "--data", str(box.disks[0])], env=environment(), capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def traffic(shared_box: RunningBox) -> Iterator[None]:
    """A producer and a consumer of one topic, and a syslog sender, until the test ends."""
    stopping = threading.Event()
    threads = [threading.Thread(target=work, args=(shared_box, stopping)) for work in (produce, consume, send_syslog)]
    for thread in threads:
        thread.start()
    yield
    stopping.set()
    for thread in threads:
        thread.join(20)


def produce(box: RunningBox, stopping: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": box.bootstrap, "linger.ms": 5})
    while not stopping.wait(0.02):
        for _ in range(20):
            producer.produce(TOPIC, VALUE)
        producer.flush(10)


def consume(box: RunningBox, stopping: threading.Event) -> None:
    consumer = Consumer({"bootstrap.servers": box.bootstrap, "group.id": "none", "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    from confluent_kafka import TopicPartition

    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    while not stopping.is_set():
        consumer.consume(500, 0.1)
    consumer.close()


def send_syslog(box: RunningBox, stopping: threading.Event) -> None:
    with socket.create_connection(box.syslog) as sender:
        while not stopping.wait(0.05):
            sender.sendall(b"<13>1 2026-11-21T02:00:00Z host app - - - disk d3 is warm\n" * 5)


def test_top_shows_what_clients_do(shared_box: RunningBox, traffic: None) -> None:
    def measured() -> dict[str, Any] | None:
        done = millrace(shared_box, "top", "--json", "--interval", "1")
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        busy = {topic["name"]: topic for topic in document["topics"]}.get(TOPIC, {"bytes_in_per_s": 0, "bytes_out_per_s": 0})
        return document if busy["bytes_in_per_s"] and busy["bytes_out_per_s"] and document["syslog"]["lines_per_s"] else None

    document = eventually(measured, "producer, consumer and sender are at work")
    topic = next(topic for topic in document["topics"] if topic["name"] == TOPIC)
    assert topic["bytes_in_per_s"] > topic["records_in_per_s"] * len(VALUE) * 0.9
    assert topic["records_out_per_s"] == pytest.approx(topic["bytes_out_per_s"] / len(VALUE), rel=0.1)
    requests = document["requests"]
    for name in ("produce", "fetch", "fetch with wait", "syslog batch"):
        latency = requests[name]
        assert requests[name]["per_s"] > 0, name
        assert 0 < latency["p50_us"] <= latency["p99_us"] <= latency["p999_us"] <= latency["max_us"] < 10_000_000, name
    assert requests["fetch"]["p50_us"] < requests["fetch with wait"]["p50_us"] / 2, "the wait for records is left out"
    assert sum(disk["bytes_per_s"] for disk in document["disks"]) > 0
    assert any(disk["append"]["p99_us"] for disk in document["disks"]) and all(disk["free_bytes"] for disk in document["disks"])
    processes = {process["name"]: process for process in document["processes"]}
    assert set(processes) == set(shared_box.pids())
    assert all(process["cpu_percent"] is not None and process["pss_bytes"] > 1 << 20 for process in processes.values())
    assert processes["acceptor@0"]["cpu_percent"] > 0
    assert document["connections"] >= 2
    syslog = document["syslog"]
    assert syslog["received"] == syslog["stored"] + syslog["counted"] + syslog["in_flight"]


def test_top_into_a_pipe_is_plain_and_ends(shared_box: RunningBox) -> None:
    done = millrace(shared_box, "top", "--interval", "0.2")
    assert (done.returncode, done.stderr) == (0, "") and "\x1b" not in done.stdout
    assert {"PROCESS", "DISK", "WORK", "TOPIC", "syslog"} <= {line.split()[0] for line in done.stdout.splitlines() if line}


def test_top_on_a_terminal_goes_on_until_it_is_interrupted(shared_box: RunningBox) -> None:
    controller, terminal = pty.openpty()
    watching = environment() | {"TERM": "xterm", "LINES": "50"}
    command = [*COMMAND, "top", "--interval", "0.2", "--data", str(shared_box.disks[0])]
    process = subprocess.Popen(command, env=watching, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = b""
    while shown.count(b"log-writer@d0") < 3:
        assert select.select([controller], [], [], 20)[0], shown
        shown += os.read(controller, 65_536)
    process.send_signal(signal.SIGINT)
    while select.select([controller], [], [], 10)[0]:
        try:
            shown += os.read(controller, 65_536)
        except OSError:
            break  # the terminal's other end is closed
    assert process.wait(10) == 0
    os.close(controller)
    assert b"\x1b[?1049h" in shown and b"\x1b[?1049l" in shown, "on the other screen, and back"
    assert b"Traceback" not in shown


def test_the_doctor_finds_a_running_box_well(shared_box: RunningBox) -> None:
    done = millrace(shared_box, "doctor", "--json")
    assert done.returncode == 0, done.stdout
    document = json.loads(done.stdout)
    by_subject = {finding["subject"]: finding for finding in document["findings"] if finding["level"] == "ok"}
    assert document["running"] is True
    assert by_subject["ports"]["words"].endswith("this box's") and "answers from here" in by_subject["advertised"]["words"]
    assert "serves" in by_subject["zookeeper"]["words"] and "disk d0" in by_subject


def test_the_doctor_says_whose_the_directories_are(shared_box: RunningBox) -> None:
    """Another box that wants one of the directories, and a port, of one that runs."""
    ports = ["--kafka-port", str(shared_box.kafka.port), "--syslog-port", "0", "--http-port", "0", "--ingest-port", "0"]
    data = ["--data", str(shared_box.directory / "elsewhere"), "--data", str(shared_box.disks[1]), "--state", str(shared_box.directory / "other")]
    done = subprocess.run([*COMMAND, "doctor", *ports, *data], env=environment(), capture_output=True, text=True, timeout=60, check=False)
    problems = [line for line in done.stdout.splitlines() if line.startswith("problem")]
    assert done.returncode == 1 and len(problems) == 2, done.stdout
    assert "is in use by the millrace run" in problems[0] and f"port {shared_box.kafka.port}" in problems[1]


@pytest.fixture
def altered(shared_box: RunningBox) -> Callable[..., subprocess.CompletedProcess[str]]:
    assert millrace(shared_box, "topic", "create", "altered").returncode == 0
    return lambda *arguments: millrace(shared_box, "topic", "alter", "altered", *arguments)


def test_a_topic_is_altered(shared_box: RunningBox, altered: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = altered("--partitions", "3", "--set", "retention.ms=3600000")
    assert (done.returncode, done.stdout) == (0, "altered topic altered: retention.ms=3600000\naltered topic altered: 3 partitions\n"), done.stderr
    assert "3 partitions" in millrace(shared_box, "topic", "describe", "altered").stdout
    assert altered("--unset", "retention.ms").stdout == "altered topic altered: retention.ms back to its default\n"
    fewer = altered("--partitions", "2")
    assert fewer.returncode == 2 and "could not give topic 'altered' 2 partitions" in fewer.stderr
    unknown = altered("--set", "no.such.setting=1")
    assert unknown.returncode == 2 and "no.such.setting" in unknown.stderr
    assert "there is no such topic" in millrace(shared_box, "topic", "alter", "nope", "--partitions", "2").stderr
