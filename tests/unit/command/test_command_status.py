from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.compiled import COMPILED_GAUGE
from appliance.base.layout import BoxLayout
from appliance.base.model import TopicId
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage, write_image
from appliance.cluster.replication_figures import ReplicationFigures
from appliance.command.box_status import (
    BoxNotRunning,
    ClusterStatus,
    ProcessStatus,
    Reading,
    describe_topics,
    gather,
    measure,
    partition_problem,
    rates_between,
    read_shared_memory,
)
from appliance.command.finding import FoundBox
from appliance.command.main import print_status_document
from appliance.command.process_memory import Memory, box_memory, memory_of
from appliance.command.status import _state, cluster_line, print_status, senders_line, zookeeper_line
from appliance.ipc.disk_reports import COPYING, MoveProgress, moves_file, write_moves
from appliance.ipc.frames import listen_unix
from appliance.runtime.request_server import STATUS
from appliance.senders.ingest_figures import KnownSenders
from appliance.senders.sender_accounts import OTHERS, SenderFigures, senders_file, write_senders
from appliance.shm.counters import Counters
from appliance.shm.disk_tables import attach_table
from appliance.shm.mapping import PID_WORD
from appliance.shm.partition_table import DISK_ONLINE, DISK_STARTING, ROLE_FOLLOWER, ROLE_LEADER, ROLE_NONE, ROLE_OFFLINE, PartitionTableWriter, Row
from lab.running_box import ROOT
from lab.scratch_layout import scratch_layout

TOPIC_ID = TopicId(bytes(range(16)))
ROW = Row(TOPIC_ID, 0, 0, ROLE_LEADER, 3, 10, 50, 40, 40, 1, 1, 1, 0, 7_000, 0, 0, 1)
WANTED = PartitionImage(1, 3, (1,), (1,), "d0")
BROKER_ID = 1


def image_of(*partitions: PartitionImage) -> MetadataImage:
    return MetadataImage(5, "cluster", 1, {1: BrokerImage(1, "localhost", 9092)}, {"syslog": TopicImage("syslog", TOPIC_ID, partitions, {})})


class StatusBox:
    """Shared memory and files of a box with one disk, made by this very process."""

    def __init__(self, layout: BoxLayout) -> None:
        self.layout = layout
        self.clock = ManualClock()
        self.box: dict[str, Any] = {
            "broker_id": BROKER_ID, "disks": [{"name": "d0", "path": "/srv/d0"}], "listen": "127.0.0.1", "kafka_port": 9092,
            "started_wall_ms": self.clock.wall_ms(),
        }  # fmt: skip
        self.counters = Counters.create_or_adopt(self.layout, "log-writer@d0", 1, self.clock.wall_ms())
        self.counters.set_state("serving")
        self.table = PartitionTableWriter.create(self.layout.shared_memory_name("table", "d0", 1), 1)
        self.table.set_disk_state(DISK_ONLINE)
        write_image(self.layout.image_file, image_of(WANTED))

    def read(self) -> Reading:
        return read_shared_memory(self.layout, ["d0"], self.clock)


@pytest.fixture
def box() -> Iterator[StatusBox]:
    with scratch_layout() as layout:
        made = StatusBox(layout)
        yield made
        made.table.shared.close()
        made.counters.close()


def answer_as_supervisor(layout: BoxLayout, document: dict[str, Any]) -> None:
    """Answer one status question, in a thread."""
    from appliance.ipc.frames import FrameSocket

    listening = listen_unix(layout.supervisor_socket)
    listening.setblocking(True)

    def serve() -> None:
        accepted, _ = listening.accept()
        listening.close()
        accepted.recv(1, socket.MSG_PEEK)
        asked = FrameSocket(accepted)
        (frame,) = asked.receive()
        asked.send(STATUS, frame.token, json.dumps(document).encode())
        asked.close()

    threading.Thread(target=serve, daemon=True).start()


def test_a_status_says_what_shared_memory_image_and_supervisor_know(box: StatusBox) -> None:
    box.table.add_row(ROW)
    box.counters.counter("disk.free_bytes").set(5_000)
    box.counters.counter("disk.total_bytes").set(9_000)
    box.counters.counter("log_writer.records").add(100)
    before = box.read()
    box.counters.counter("log_writer.records").add(50)
    box.clock.advance_ms(500)
    process = {"name": "log-writer@d0", "pid": 7, "state": "serving", "since": 123, "restarts": 2}
    answer_as_supervisor(box.layout, {"processes": [process]})
    document = gather(box.layout, box.box, before, box.read()).document()
    assert document["processes"] == [process | {"words": "", "compiled": None, "memory": document["processes"][0]["memory"]}]
    assert document["disks"] == [{"name": "d0", "path": "/srv/d0", "state": "online", "free_bytes": 5_000, "total_bytes": 9_000, "draining": False}]
    assert document["moves"] == []
    assert document["topics"] == [{"name": "syslog", "partitions": 1, "records": 30, "bytes": 7_000, "bytes_are_whole": True, "problems": {}}]
    assert document["rates"]["records_in_per_s"] == 100


@pytest.mark.alone
def test_a_supervisor_that_does_not_answer_holds_nothing_up(box: StatusBox) -> None:
    box.box["zookeeper"] = "127.0.0.1:2181"
    with listen_unix(box.layout.supervisor_socket):
        began = time.monotonic()
        status = measure(box.layout, box.box)
    assert time.monotonic() - began < 1.0
    assert [(process.name, process.pid, process.state) for process in status.processes] == [("log-writer@d0", os.getpid(), "serving")]
    assert status.document()["cluster"]["zookeeper"] == "127.0.0.1:2181"


def test_senders_that_fell_silent_are_named_longest_first(box: StatusBox) -> None:
    ingest = Counters.create_or_adopt(box.layout, "ingest@0", 1, 99)
    assert gather(box.layout, box.box, box.read(), box.read()).senders == KnownSenders([], [], 300_000, box.clock.wall_ms())
    ago_s = {"192.0.2.1": 10, "192.0.2.2": 301, "192.0.2.3": 4_000, OTHERS: 9_000}
    figures = [SenderFigures(host, 5, 5, 0, 0, 0, {}, ["relp"], box.clock.wall_ms() - seconds * 1000) for host, seconds in ago_s.items()]
    write_senders(senders_file(box.layout, "ingest@0"), figures)
    status = gather(box.layout, box.box, box.read(), box.read())
    assert status.senders is not None
    assert senders_line(status.senders) == ("3 senders of lines; silent: 192.0.2.3 (for 1h 6m), 192.0.2.2 (for 5m 1s); see `millrace ingest status --senders`")
    silent = [{"host": "192.0.2.3", "silent_ms": 4_000_000}, {"host": "192.0.2.2", "silent_ms": 301_000}]
    assert status.document()["senders"] == {"known": 3, "silent_limit_ms": 300_000, "silent": silent}
    assert senders_line(status.senders._replace(silent=[])) == "3 senders of lines, none silent for 5m"
    ingest.close()


def test_without_a_supervisor_processes_come_from_their_counters(box: StatusBox) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    other = Counters.create_or_adopt(box.layout, "acceptor@0", 1, 99)
    other.shared.words[PID_WORD] = dead.pid
    other.close()
    status = gather(box.layout, box.box, box.read(), box.read())
    assert [(process.name, process.pid, process.state, process.restarts) for process in status.processes] == [
        ("acceptor@0", None, "dead", None),
        ("log-writer@d0", os.getpid(), "serving", None),
    ]


def test_a_box_whose_processes_are_all_dead_is_said_not_to_run(box: StatusBox) -> None:
    reading = box.read()
    nobody = {name: snapshot._replace(is_alive=False) for name, snapshot in reading.counters.items()}
    with pytest.raises(BoxNotRunning, match=r"the box of /srv/d0 does not run.*millrace run"):
        gather(box.layout, box.box, reading, reading._replace(counters=nobody))


def test_of_two_tables_that_of_the_running_process_is_read(box: StatusBox) -> None:
    older = PartitionTableWriter.create(box.layout.shared_memory_name("table", "d0", 0), 0)
    younger = PartitionTableWriter.create(box.layout.shared_memory_name("table", "d0", 9), 9)
    younger.shared.close()  # of a process that is no more
    found = attach_table(box.layout, "d0")
    assert found is not None and found.shared.incarnation == 1
    for table in (older, found):
        table.shared.close()


def test_rates_are_rises_of_counters_over_processes_and_labels(box: StatusBox) -> None:
    box.counters.counter('ingest.received{transport="udp"}').add(10)
    box.counters.counter("ingest.received_of_another_kind").add(1_000)
    before = box.read()
    box.counters.counter('ingest.received{transport="udp"}').add(20)
    box.counters.counter('ingest.received{transport="tcp"}').add(20)
    box.counters.counter("ingest.received_of_another_kind").add(1_000)
    box.clock.advance_ms(2_000)
    assert rates_between(before, box.read())["syslog_lines_per_s"] == 20


def test_a_person_gets_four_short_tables(box: StatusBox, capsys: pytest.CaptureFixture[str]) -> None:
    box.table.add_row(ROW._replace(role=ROLE_OFFLINE))
    box.clock.advance_ms(61_000)
    reading = box.read()
    gathered = gather(box.layout, box.box, reading, reading)
    memory = Memory(own=3 << 20, arenas=1 << 30, other_shared=1 << 20)
    gathered = gathered._replace(
        processes=[gathered.processes[0]._replace(memory=memory)],
        memory=box_memory(["log-writer@d0", "zookeeper", "log-writer@d1"], {"log-writer@d0": memory, "zookeeper": Memory(7 << 20, 0, 0)}),
    )
    print_status(FoundBox(box.layout, box.box), gathered, box.clock.wall_ms())
    assert capsys.readouterr().out.splitlines() == [
        f"box {box.layout.box}  kafka 127.0.0.1:9092  broker 1  up 1m 1s",
        "",
        f"PROCESS        {'PID'.rjust(len(str(os.getpid())))}  STATE    SINCE  RESTARTS   MEMORY   ARENAS",
        f"log-writer@d0  {os.getpid()}  serving  1m 1s         -  4.0 MiB  1.0 GiB",
        "memory (PSS) of all Python processes: 4.0 MiB without arenas (3.0 MiB their own, 1.0 MiB tables, rings and counters), 1.0 GiB with them;"
        " of the JVM: 7.0 MiB",
        "without log-writer@d1, which could not be read: only root and the box's user may read them, and a process that waits for its disk does not answer",
        "produce path: pure Python",
        "",
        "DISK  STATE   FREE  TOTAL  PATH",
        "d0    online     -      -  /srv/d0",
        "",
        "TOPIC   PARTITIONS  RECORDS     SIZE  STATE",
        "syslog           1       30  6.8 KiB  0: disk d0 is offline",
        "",
        "records in 0/s  in 0 B/s  out 0 B/s  syslog lines 0/s",
    ]


def test_memory_is_reported_for_processes_that_can_be_read_in_time(box: StatusBox, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    found = memory_of({"me": os.getpid(), "dead": dead.pid})
    assert list(found) == ["me"] and found["me"].own > 4 << 20 and found["me"].other_shared > 0, "its counters are shared memory"
    held = threading.Event()
    monkeypatch.setattr("appliance.command.process_memory.process_memory", lambda pid: held.wait() and Memory(0, 0, 0) if pid == 1 else Memory(pid, 0, 0))
    asked = {"held": 1, "other": 2}
    in_time = memory_of(asked, wait_seconds=0.05)
    held.set()
    assert in_time == {"other": Memory(2, 0, 0)} and box_memory(asked, in_time).missing == ("held",)


def test_moves_and_a_disk_that_is_being_emptied_are_shown(box: StatusBox, capsys: pytest.CaptureFixture[str]) -> None:
    write_image(box.layout.image_file, image_of(WANTED._replace(disk="d1", moving_to="d0"), WANTED))
    write_moves(moves_file(box.layout, "d0"), [MoveProgress("syslog", 0, str(TOPIC_ID), "d1", "d0", COPYING, 40, 2_048, 50, 1_024, 512)])
    controller = Counters.create_or_adopt(box.layout, "controller", 1, box.clock.wall_ms())
    controller.counter('controller.disk_draining{disk="d0"}').set(1)
    reading = box.read()
    gathered = gather(box.layout, box.box, reading, reading)
    controller.close()
    assert [(move["topic"], move["state"]) for move in gathered.document()["moves"]] == [("syslog", COPYING)]
    print_status(FoundBox(box.layout, box.box), gathered, box.clock.wall_ms())
    lines = capsys.readouterr().out.splitlines()
    assert "d0    online, draining     -      -  /srv/d0" in lines
    at = lines.index("MOVING    FROM  TO  STATE     COPIED     LEFT    SPEED  LAG  TROUBLE")
    assert lines[at + 1] == "syslog-0  d1    d0  copying  2.0 KiB  1.0 KiB  512 B/s   10"


@pytest.mark.parametrize(
    ("wanted", "row", "words"),
    [
        (WANTED, ROW, None),
        (WANTED._replace(leader=-1), ROW, "no leader"),
        (WANTED._replace(replicas=(1, 2)), ROW, "under-replicated: 1 of 2 replicas in sync"),
        (WANTED, None, "not open on disk d0"),
        (WANTED._replace(disk=None), None, "on no disk of this box"),
        (WANTED._replace(replicas=(2,), leader=2, disk=None), None, None),
        (WANTED, ROW._replace(role=ROLE_OFFLINE), "disk d0 is offline"),
        (WANTED, ROW._replace(role=ROLE_FOLLOWER), "leadership not yet taken up"),
        (WANTED, ROW._replace(leader_epoch=2), "leadership not yet taken up"),
        (WANTED._replace(leader=2, replicas=(1, 2), isr=(1, 2)), ROW._replace(role=ROLE_FOLLOWER), None),
        (WANTED._replace(leader=2, replicas=(1, 2), isr=(1, 2)), ROW, "does not follow broker 2 yet"),
    ],
)
def test_what_is_wrong_with_a_partition_is_said_in_words(wanted: PartitionImage, row: Row | None, words: str | None) -> None:
    assert partition_problem(wanted, row, BROKER_ID) == words


def test_records_are_summed_over_partitions_and_a_log_of_several_segments_is_larger_than_known() -> None:
    rows = [("d0", ROW), ("d0", ROW._replace(partition=1, active_base_offset=20))]
    (topic,) = describe_topics(image_of(WANTED, WANTED, WANTED), rows, BROKER_ID)
    assert (topic.partitions, topic.records, topic.bytes, topic.bytes_are_whole) == (3, 60, 14_000, False)
    assert topic.problems == {"2": "not open on disk d0"}


def test_partitions_of_a_disk_that_hangs_or_is_full_are_not_called_ok() -> None:
    rows = [("d0", ROW), ("d1", ROW._replace(partition=1))]
    for state, problems in (("hung", {"1": "disk d1 hangs"}), ("full", {"1": "disk d1 is full: read only"}), ("online", {})):
        (topic,) = describe_topics(image_of(WANTED, WANTED._replace(disk="d1")), rows, BROKER_ID, {"d0": "online", "d1": state})
        assert topic.problems == problems


def test_partitions_are_not_ok_while_their_log_writer_restarts(box: StatusBox) -> None:
    """Its table stays as it was when it died: every row still leads."""
    write_image(box.layout.image_file, image_of(WANTED, WANTED._replace(replicas=(1, 2))))
    box.table.add_row(ROW)
    box.table.add_row(ROW._replace(partition=1))
    box.counters.close()  # as at the end of the process
    controller = Counters.create_or_adopt(box.layout, "controller", 1, 0)  # else no process of the box runs
    status = gather(box.layout, box.box, box.read(), box.read())
    words = "disk d0 is not served: its log-writer does not run and is started again"
    assert [topic.problems for topic in status.topics] == [{"0": words, "1": f"{words}; under-replicated: 1 of 2 replicas in sync"}]
    assert [disk.state for disk in status.disks] == ["log-writer down"]
    box.counters = Counters.create_or_adopt(box.layout, "log-writer@d0", 2, box.clock.wall_ms())
    for state, problem in ((DISK_STARTING, "disk d0 is starting: its logs are being opened"), (DISK_ONLINE, None)):
        box.table.set_disk_state(state)
        reading = box.read()
        (topic,) = describe_topics(image_of(WANTED), reading.rows, BROKER_ID, reading.disk_states)
        assert topic.problems.get("0") == problem
    controller.close()


def test_the_row_of_an_orphan_is_not_taken_for_the_partition() -> None:
    orphan = ROW._replace(role=ROLE_NONE, log_start_offset=0, high_watermark=1_000_000)
    (expected,) = describe_topics(image_of(WANTED), [("d0", ROW)], BROKER_ID)
    assert not expected.problems
    for rows in ([("d0", ROW), ("old", orphan)], [("old", orphan), ("d0", ROW)]):
        assert describe_topics(image_of(WANTED), rows, BROKER_ID) == [expected]
    assert describe_topics(image_of(WANTED), [("old", orphan)], BROKER_ID)[0].problems == {"0": "not open on disk d0"}


def test_missing_boxes_members_and_a_dead_controller_are_named(box: StatusBox, capsys: pytest.CaptureFixture[str]) -> None:
    write_image(box.layout.image_file, image_of(WANTED._replace(replicas=(1, 3))))
    with socket.create_server(("127.0.0.1", 0)) as refusing:
        port = refusing.getsockname()[1]
    box.box["zookeeper_members"] = [f"2=127.0.0.1:{port}:1:1"]
    Counters.create_or_adopt(box.layout, "controller", 1, 0).close()  # its owner does not hold it any more
    gathered = gather(box.layout, box.box, box.read(), box.read())
    document = gathered.document()["cluster"]
    assert (document["absent"], document["has_own_controller"]) == ((3,), False)
    assert "member 2" in document["zookeeper_missing"] and str(port) in document["zookeeper_missing"]
    print_status(FoundBox(box.layout, box.box), gathered, box.clock.wall_ms())
    shown = capsys.readouterr().out
    assert "not registered, although partitions have replicas there: 3" in shown and "the controller of this box does not run" in shown
    assert document["zookeeper_missing"] in shown


def test_status_says_which_processes_use_the_compiled_modules(box: StatusBox, capsys: pytest.CaptureFixture[str]) -> None:
    acceptor = Counters.create_or_adopt(box.layout, "acceptor@0", 1, 0)
    for compiled, words in (((0, 0), "pure Python"), ((1, 1), "compiled"), ((1, 0), "compiled, but pure Python in log-writer@d0")):
        acceptor.gauge(COMPILED_GAUGE).set(compiled[0])
        box.counters.gauge(COMPILED_GAUGE).set(compiled[1])
        gathered = gather(box.layout, box.box, box.read(), box.read())
        assert [each["compiled"] for each in gathered.document()["processes"]] == list(map(bool, compiled))
        print_status(FoundBox(box.layout, box.box), gathered, box.clock.wall_ms())
        assert f"\nproduce path: {words}\n" in capsys.readouterr().out
    acceptor.close()


def test_a_long_story_of_a_process_does_not_push_the_table_off_the_screen() -> None:
    words = "offline: disk was swapped, or is not mounted: /srv/d0 is empty, the log directory with"
    told = _state(ProcessStatus("log-writer@d0", 7, "offline", None, 0, words))
    assert told.startswith("offline (offline: disk was swapped") and told.endswith("…)") and len(told) < 90


@pytest.mark.parametrize(
    ("found", "controller", "words"),
    [
        (ReplicationFigures(5, 7), 2, "cluster of brokers 1, 2, 3, controller is 2; here 5 partitions led and 7 followed: ok"),
        (
            ReplicationFigures(5, 7, 4, 3, 2, 1, 1_500),
            -1,
            "cluster of brokers 1, 2, 3, no controller; here 5 partitions led and 7 followed: 4 under-replicated, 3 below min.insync.replicas, "
            "2 without leader, 1 led by others instead, up to 1,500 records of a partition not replicated yet",
        ),
    ],
)
def test_how_well_a_box_of_several_is_replicated_is_a_line(found: ReplicationFigures, controller: int, words: str) -> None:
    assert cluster_line(ClusterStatus((1, 2, 3), controller, found)) == words


def test_a_box_that_does_not_reach_zookeeper_says_so_and_what_that_means(box: StatusBox, capsys: pytest.CaptureFixture[str]) -> None:
    controller = Counters.create_or_adopt(box.layout, "controller", 1)
    connected = controller.gauge("controller.zookeeper_connected")
    for is_connected in (1, 0):
        connected.set(is_connected)
        answer_as_supervisor(box.layout, {"processes": []})
        gathered = gather(box.layout, box.box, box.read(), box.read())
        assert gathered.cluster is not None and gathered.document()["cluster"]["has_zookeeper"] is bool(is_connected)
        print_status(FoundBox(box.layout, box.box), gathered, box.clock.wall_ms())
        assert ("ZooKeeper is not reached" in capsys.readouterr().out) is not is_connected
    assert "producers without acks=all, are refused" in zookeeper_line(gathered.cluster._replace(brokers=(1, 2, 3)))
    controller.close()


@pytest.mark.parametrize(
    "arguments", [["status"], ["status", "--json", "--data"], ["status", "--json", "--help"], ["top", "--json"], ["status", "--json", "--json"]]
)
def test_other_arguments_than_those_of_the_document_are_left_to_typer(arguments: list[str]) -> None:
    assert not print_status_document(arguments)


def test_the_document_loads_neither_typer_nor_other_commands() -> None:
    code = """if True:
        import sys
        from appliance.base.errors import MillraceError
        from appliance.command.main import print_status_document
        try:
            print_status_document(["status", "--data", "/nonexistent", "--json"])
        except MillraceError as error:
            print("no running box" in str(error), {"typer", "rich", "appliance.command.topic"} & {*sys.modules})
    """
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout == "True set()\n"
