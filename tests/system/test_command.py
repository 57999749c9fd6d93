"""The command against a real box: what a user types, and what happens to it when a process of the box dies meanwhile."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from appliance.base.message_file import is_in_memory
from appliance.base.model import TopicId
from appliance.storage.directory_identity import encode_partition_metadata
from lab.running_box import RunningBox, environment, eventually

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system, pytest.mark.slow]

COMMAND = [sys.executable, "-P", "-m", "appliance.command.main"]
Begin = Callable[..., "subprocess.Popen[bytes]"]
Millrace = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def box(shared_box: RunningBox) -> RunningBox:
    """One box for all tests here: a test that kills waits until everything serves again, and each
    has topics of its own.
    """
    return shared_box


@pytest.fixture
def millrace(box: RunningBox) -> Millrace:
    """Runs a command that finds the box by its second data directory."""

    def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        found_by = environment() | {"MILLRACE_DATA": str(box.disks[1])}
        return subprocess.run([*COMMAND, *arguments], env=found_by, input=stdin, capture_output=True, timeout=60, check=False)

    return run


@pytest.fixture
def begin(box: RunningBox) -> Iterator[Begin]:
    """Starts a command that goes on while the test does something else; what still runs afterwards is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [*COMMAND, *arguments, "--data", str(box.disks[0])]
        started.append(subprocess.Popen(command, env=environment(), bufsize=0, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        with process:
            pass


def next_line(stream: IO[bytes] | None) -> bytes:
    assert stream is not None
    readable, _, _ = select.select([stream], [], [], 20)
    assert readable, "nothing came within 20 s"
    return stream.readline()


def write_lines(stream: IO[bytes] | None, numbers: range) -> None:
    assert stream is not None
    stream.write(b"".join(b"%d\n" % number for number in numbers))
    stream.flush()


def test_logs_follows_what_the_processes_of_the_box_report(box: RunningBox, millrace: Millrace, begin: Begin) -> None:
    if not is_in_memory(box.layout.runtime_directory):
        assert b"this box keeps no events" in millrace("logs").stderr
        return
    following = begin("logs", "--follow", "--json", "--event", "audit.topic.*", "--process", "acceptor@*")
    assert millrace("topic", "create", "reported").returncode == 0
    while "topic reported: done" not in (event := json.loads(next_line(following.stdout)))["text"]:
        pass
    assert (event["event"], event["severity_name"]) == ("audit.topic.created", "info")
    following.send_signal(signal.SIGINT)
    assert following.wait(20) == 0
    line = millrace("logs", "--event", "audit.topic.created").stdout.decode().splitlines()[-1]
    assert line.split(maxsplit=4)[2:4] == ["info", "audit.topic.created"]
    assert b"--severity loud" in millrace("logs", "--severity", "loud").stderr


def test_a_topic_is_created_altered_and_deleted(millrace: Millrace) -> None:
    created = millrace("topic", "create", "numbers", "--partitions", "3", "--set", "retention.ms=3600000")
    assert (created.returncode, created.stdout) == (0, b"created topic numbers with 3 partitions\n"), created.stderr
    again = millrace("topic", "create", "numbers")
    assert again.returncode == 1 and b"already exists" in again.stderr
    sent = millrace("send", "numbers", "--key-separator", ":", stdin=b"".join(b"k%d:%d\n" % (number % 5, number) for number in range(20_000)))
    assert sent.returncode == 0 and b"sent 20,000 records" in sent.stderr
    described = millrace("topic", "describe", "numbers").stdout.decode().splitlines()
    assert "3 partitions" in described[0]
    assert sum(int(line.split()[6]) for line in described[2:]) == 20_000
    assert [b"numbers", b"3", b"1", b"ok"] in [line.split() for line in millrace("topic", "list").stdout.splitlines()]
    wide = [line.split(maxsplit=2) for line in millrace("topic", "describe", "numbers", "-o", "wide").stdout.splitlines()]
    assert [b"retention.ms", b"3600000", b"topic"] in wide and [b"segment.bytes", b"1073741824", b"default (log.segment.bytes)"] in wide
    listed = {each["topic"]: each for each in json.loads(millrace("topic", "list", "--json").stdout)["topics"]}
    assert (listed["numbers"]["partitions"], listed["numbers"]["state"]) == (3, "ok")
    assert json.loads(millrace("box", "list", "--json").stdout)["boxes"][0]["state"] == "controller"
    tailed = millrace("topic", "tail", "numbers", "--from-beginning", "--max", "20000", "--keys")
    values = [int(line.split(b"\t")[1]) for line in tailed.stdout.splitlines()]
    assert sorted(values) == list(range(20_000))
    assert [value for value in values if value % 5 == 3] == list(range(3, 20_000, 5))
    assert b"20,000 records of topic numbers would go" in millrace("topic", "trim", "numbers", "--to-high-watermark", "--dry-run").stdout
    trimmed = millrace("topic", "trim", "numbers", "--before", "0s", "--yes")
    assert trimmed.stdout.endswith(b"trimmed topic numbers: 20,000 records deleted\n"), trimmed.stderr
    assert sum(int(line.split()[7]) for line in millrace("topic", "describe", "numbers").stdout.decode().splitlines()[2:]) == 0
    assert b"no terminal to ask for confirmation; add --yes" in millrace("topic", "delete", "numbers").stderr
    assert b"there is no topic number;" in millrace("topic", "delete", "number").stderr, "which is said before anything is asked"
    assert millrace("topic", "delete", "numbers", "--yes").stdout == b"deleted topic numbers\n"
    gone = millrace("topic", "delete", "numbers", "-y")
    assert gone.returncode == 1 and b"there is no such topic" in gone.stderr


def test_a_tail_of_what_is_there_ends_and_one_that_follows_says_how_far_it_came(millrace: Millrace, begin: Begin) -> None:
    absent = millrace("topic", "tail", "not-there")
    assert (absent.returncode, absent.stderr.startswith(b"millrace: there is no topic not-there")) == (2, True), absent.stderr
    assert millrace("topic", "create", "tailed", "--partitions", "2").returncode == 0
    assert millrace("send", "tailed", "--key-separator", ":", stdin=b"".join(b"k%d:line %d\n" % (number, number) for number in range(100))).returncode == 0
    everything = millrace("topic", "tail", "tailed", "--no-follow")
    assert sorted(everything.stdout.splitlines()) == sorted(b"line %d" % number for number in range(100)), everything.stderr
    assert millrace("topic", "tail", "tailed", "--since", "1h", "--no-follow", "--grep", "line 4[27]$", "--format", "%k ").stdout.split() in (
        [b"k42", b"k47"],
        [b"k47", b"k42"],
    )
    assert millrace("topic", "tail", "tailed", "--until", "1h").stdout == b""
    refused = millrace("topic", "tail", "tailed", "--offset", "1")
    assert refused.returncode == 2 and b"add --partition N" in refused.stderr
    rest = [json.loads(line) for line in millrace("topic", "tail", "tailed", "--offset", "3", "--partition", "1", "--no-follow", "--json").stdout.splitlines()]
    assert [record["offset"] for record in rest] == list(range(3, 3 + len(rest))) and rest[0]["value"] == "line " + rest[0]["key"][1:]
    following = begin("topic", "tail", "tailed", "--from-beginning", "--partition", "0")
    first = len(everything.stdout.splitlines()) - len(rest) - 3
    for _ in range(first):
        next_line(following.stdout)
    following.send_signal(signal.SIGINT)
    assert following.stderr is not None and following.stderr.read() == b"ended by Ctrl-C: %d records; next offsets 0:%d\n" % (first, first)


def test_a_topic_is_created_by_sending_to_it_and_batches_keep_their_codec(box: RunningBox, millrace: Millrace) -> None:
    text = b"".join(b"line %d\n" % number for number in range(1_000))
    for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
        topic = f"lines-{compression}"
        assert millrace("send", topic, "--compression", compression, stdin=text).returncode == 0
        assert millrace("topic", "tail", topic, "-b", "--max", "1000").stdout == text
        (segment,) = [str(path) for disk in box.disks for path in disk.glob(f"{topic}-0/*.log")]
        dumped = millrace("log", "dump", segment).stdout.decode()
        assert f"compresscodec: {compression} " in dumped and "isvalid: true" in dumped


def test_the_status_shows_processes_disks_and_topics(box: RunningBox, millrace: Millrace) -> None:
    millrace("send", "three", stdin=b"1\n2\n3\n")
    status = json.loads(millrace("status", "--json").stdout)
    assert {process["name"]: process["pid"] for process in status["processes"]} == box.pids()
    assert {process["state"] for process in status["processes"]} == {"serving"}
    assert [(disk["name"], disk["path"], disk["state"]) for disk in status["disks"]] == [(path.name, str(path), "online") for path in box.disks]
    assert all(0 < disk["free_bytes"] < disk["total_bytes"] for disk in status["disks"])
    (three,) = [topic for topic in status["topics"] if topic["name"] == "three"]
    assert (three["partitions"], three["records"], three["problems"]) == (1, 3, {})
    assert three["bytes"] > 0
    assert all(process["memory"]["own"] > 1 << 20 for process in status["processes"])
    python = status["memory"]["python"]
    parts = [process["memory"] for process in status["processes"] if process["name"] != "zookeeper"]
    assert python["without_arenas"] == sum(part["without_arenas"] for part in parts) < python["total"] and status["memory"]["missing"] == []
    plain = millrace("status")
    assert b"memory (PSS) of all Python processes: " in plain.stdout
    assert plain.returncode == 0 and b"log-writer@" in plain.stdout and b"\x1b" not in plain.stdout


def test_commands_say_what_does_not_serve_while_log_writer_and_controller_are_dead(box: RunningBox, millrace: Millrace) -> None:
    """The supervisor is stopped, so that they stay dead; the image still says that all is well."""
    assert millrace("topic", "create", "unserved").returncode == 0
    assert [b"unserved", b"1", b"1", b"ok"] in [line.split() for line in millrace("topic", "list").stdout.splitlines()]
    (disk,) = [disk.name for disk in box.box.disks if (Path(disk.path) / "unserved-0").is_dir()]
    pids = {name: box.pid(name) for name in (f"log-writer@{disk}", "controller")}
    os.kill(box.process.pid, signal.SIGSTOP)
    try:
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(box.counters(name).is_alive for name in pids), "both are dead")
        listed = millrace("topic", "list").stdout
        (state,) = [line for line in listed.splitlines() if line.startswith(b"unserved ")]
        assert b" 1 not served (" in state, listed
        assert listed.splitlines()[-1].startswith(b"the controller of this box does not run"), listed
        status = json.loads(millrace("status", "--json").stdout)
        (topic,) = [topic for topic in status["topics"] if topic["name"] == "unserved"]
        assert topic["problems"] == {"0": f"disk {disk} is not served: its log-writer does not run and is started again"}
        assert not status["cluster"]["has_own_controller"]
        drained = millrace("disk", "drain", disk, "--dry-run")
        assert drained.returncode == 1 and b"cannot be read now: log-writer down" in drained.stderr, drained
    finally:
        os.kill(box.process.pid, signal.SIGCONT)
    for name, pid in pids.items():
        box.await_restart(name, pid)


def test_directories_that_no_topic_owns_are_listed_adopted_and_removed(box: RunningBox, millrace: Millrace) -> None:
    """As after ZooKeeper's data was lost: the logs are there, with records and leader epochs, and no topic knows them."""
    assert millrace("topic", "create", "owned").returncode == 0
    assert millrace("send", "owned", stdin=b"1\n2\n3\n").returncode == 0
    (disk,) = [disk for disk in box.box.disks if (Path(disk.path) / "owned-0").is_dir()]
    pid = box.pid(f"log-writer@{disk.name}")
    for name in ("lost", "old"):
        copy = Path(disk.path) / f"{name}-0"
        shutil.copytree(Path(disk.path) / "owned-0", copy)
        (copy / "partition.metadata").write_bytes(encode_partition_metadata(TopicId(name.ljust(16).encode())))
    stray = Path(disk.path) / f"owned-7.{'0' * 32}-stray"
    stray.mkdir()
    torn = Path(disk.path) / "torn-0"
    torn.mkdir()
    os.kill(pid, signal.SIGKILL)
    box.await_restart(f"log-writer@{disk.name}", pid)
    listed = {orphan["directory"]: orphan for orphan in json.loads(millrace("disk", "orphans", "--json").stdout)}
    assert listed.keys() == {"lost-0", "old-0", stray.name, "torn-0"}
    lost = listed["lost-0"]
    assert (lost["disk"], lost["log_start_offset"], lost["end_offset"], lost["reason"]) == (disk.name, 0, 3, "no topic of this name")
    dry = millrace("disk", "orphans", "--adopt", "lost", "--dry-run")
    assert dry.returncode == 0 and b"topic lost" not in millrace("topic", "list").stdout and b"retention begins at once" in dry.stdout
    assert b"add --yes" in millrace("disk", "orphans", "--adopt", "lost").stderr
    adopted = millrace("disk", "orphans", "--adopt", "lost", "--set", "retention.ms=-1", "--yes")
    assert adopted.returncode == 0 and adopted.stdout.endswith(b"adopted topic lost with 1 partition\n"), adopted
    assert millrace("send", "lost", stdin=b"4\n").returncode == 0
    assert millrace("topic", "tail", "lost", "-b", "--max", "4").stdout == b"1\n2\n3\n4\n"
    assert b"is no orphan" in millrace("disk", "orphans", "--remove", f"{disk.name}/lost-0", "--yes").stderr
    removed = millrace("disk", "orphans", "--remove", f"{disk.name}/old-0", "--remove", f"{disk.name}/{stray.name}", "--yes")
    assert removed.returncode == 0 and removed.stdout.endswith(b"removed 2 orphans\n"), removed
    assert not stray.exists() and not (Path(disk.path) / "old-0").exists()
    metadata = Path(disk.path) / "lost-0" / "partition.metadata"
    content = metadata.read_bytes()
    metadata.unlink()
    removed = millrace("disk", "orphans", "--remove", "all", "--yes")
    assert removed.returncode == 0 and removed.stdout.endswith(b"removed 1 orphan\n") and not torn.exists(), removed
    assert millrace("topic", "tail", "lost", "-b", "--max", "4").stdout == b"1\n2\n3\n4\n", "a served log that lost its id is no orphan"
    metadata.write_bytes(content)
    assert millrace("disk", "orphans").stdout.startswith(b"no orphans")


def test_a_tail_goes_on_through_the_death_of_any_process_on_its_way(box: RunningBox, millrace: Millrace, begin: Begin) -> None:
    assert millrace("topic", "create", "followed").returncode == 0
    tail = begin("topic", "tail", "followed", "--from-beginning")
    expected = 0
    writers = [name for name in box.pids() if name.startswith(("log-writer@", "log-reader@", "acceptor@"))]
    for name in [*writers, "controller"]:
        old_pid = box.kill(name)
        assert millrace("send", "followed", stdin=b"%d\n" % expected).returncode == 0
        assert next_line(tail.stdout) == b"%d\n" % expected
        expected += 1
        box.await_restart(name, old_pid)


def test_sending_goes_on_through_the_death_of_a_log_writer(box: RunningBox, millrace: Millrace, begin: Begin) -> None:
    assert millrace("topic", "create", "sent", "--partitions", "2").returncode == 0
    send = begin("send", "sent")
    write_lines(send.stdin, range(1_000))
    eventually(lambda: records_of(millrace, "sent") == 1_000, "the first lines are stored without more input")
    old_pids = {disk.name: box.kill(f"log-writer@{disk.name}") for disk in box.disks}
    write_lines(send.stdin, range(1_000, 2_000))
    _, said = send.communicate(timeout=30)
    assert send.returncode == 0 and b"sent 2,000 records" in said, said
    tailed = millrace("topic", "tail", "sent", "-b", "--max", "2000").stdout
    assert sorted(int(line) for line in set(tailed.split())) == list(range(2_000))
    for name, old_pid in old_pids.items():
        box.await_restart(f"log-writer@{name}", old_pid)


def records_of(millrace: Millrace, topic: str) -> int:
    described = millrace("topic", "describe", topic).stdout.decode().splitlines()[2:]
    return sum(int(line.split()[6]) - int(line.split()[5]) for line in described)


def test_quotas_are_set_listed_and_removed(millrace: Millrace) -> None:
    assert millrace("quota", "set", "--user", "alice", "--client-id", "*", "producer_byte_rate=1MiB", "request_percentage=50").returncode == 0
    assert millrace("quota", "set", "--address", "10.0.0.9", "connection_creation_rate=5").returncode == 0
    listed = json.loads(millrace("quota", "list", "--user", "alice", "--json").stdout)
    assert listed == [{"entity": {"user": "alice", "client-id": None}, "values": {"producer_byte_rate": 1 << 20, "request_percentage": 50.0}}]
    rows = millrace("quota", "list").stdout.decode().splitlines()
    assert [row.split() for row in rows] == [
        ["USER", "CLIENT", "ID", "ADDRESS", "QUOTA", "VALUE"],
        ["alice", "*", "-", "producer_byte_rate", "1048576"],
        ["alice", "*", "-", "request_percentage", "50"],
        ["-", "-", "10.0.0.9", "connection_creation_rate", "5"],
    ]
    absent = millrace("quota", "remove", "--user", "alice")
    assert absent.returncode == 2 and b"user alice has no quota; see `millrace quota list`" in absent.stderr
    assert b"removed 1 quota of user alice, each client id" in millrace("quota", "remove", "--user", "alice", "--client-id", "*", "request_percentage").stdout
    millrace("quota", "remove", "--user", "alice", "--client-id", "*")
    millrace("quota", "remove", "--address", "10.0.0.9")
    assert json.loads(millrace("quota", "list", "--json").stdout) == []


def test_ingest_tap_shows_lines_as_they_come_with_their_fields(box: RunningBox, begin: Begin, millrace: Millrace) -> None:
    watching = begin("ingest", "tap", "syslog-udp", "--max", "1")
    assert watching.stderr is not None and watching.stdout is not None
    assert b"watching syslog-udp" in watching.stderr.readline()
    address = ["-n", box.syslog.host, "-P", str(box.syslog.port)]
    subprocess.run(["logger", *address, "-T", "--rfc5424", "by TCP"], check=True)
    subprocess.run(["logger", *address, "-d", "--rfc5424", "-p", "daemon.err", "-t", "sensor", "lid open"], check=True)
    line = watching.stdout.readline().decode()
    assert watching.wait(20) == 0 and line.startswith("syslog-udp 127.0.0.1:") and "-> syslog: " in line
    assert " sensor" in line and " err: lid open" in line and "timeQuality" in line
    unknown = millrace("ingest", "tap", "nowhere")
    assert unknown.returncode == 2 and b"nowhere is neither a listener nor an address; there are the listeners" in unknown.stderr
