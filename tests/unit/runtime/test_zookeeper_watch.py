"""What the supervisor makes of a ZooKeeper server's answers, and of those of its peers."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.base.clock import SystemClock
from appliance.base.layout import BoxLayout, Disk
from appliance.base.settings import Box
from appliance.runtime.poller import Poller
from appliance.runtime.zookeeper_watch import ZooKeeperWatch
from appliance.shm.counters import read_counters
from lab.running_box import eventually
from lab.scratch_layout import scratch_layout

SERVES = b"Zookeeper version: 3.9\nMode: follower\nNode count: 5\n"
WAITS = b"This ZooKeeper instance is not currently serving requests\n"


class PretendedServer:
    """Answers every question with `answer`; an empty one is a server that hangs up."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.port = self.listening.getsockname()[1]

    def serve(self) -> None:
        try:
            connection, _ = self.listening.accept()
        except BlockingIOError:
            return
        with connection:
            connection.setblocking(True)
            connection.recv(4)
            connection.sendall(self.answer)

    def close(self) -> None:
        self.listening.close()


class Watched:
    """A watch over pretended servers; time is stepped by hand."""

    def __init__(self, layout: BoxLayout, answers: list[bytes | None], sync: Callable[[str], None]) -> None:
        self.servers = [PretendedServer(answer or b"") for answer in answers]
        for server, answer in zip(self.servers, answers, strict=True):
            if answer is None:
                server.close()
        members = [f"{number}=127.0.0.1:{server.port}:{number}001:{number}002" for number, server in enumerate(self.servers, 1)]
        connect = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        box = Box("x", 1, [Disk("d0", "/nonexistent")], "/s", "h", "h", 1, 1, 1, zookeeper=connect, zookeeper_members=members if len(answers) > 1 else [])
        self.layout = layout
        self.poller = Poller()
        self.watch = ZooKeeperWatch(layout, box, self.poller, SystemClock(), sync)
        self.now_ms = 10_000

    def ask(self) -> None:
        self.now_ms += 2_000
        self.watch.ask(self.now_ms)
        for _ in range(20):
            self.poller.poll(1)
            for server in self.servers:
                if server.listening.fileno() >= 0:
                    server.serve()

    def gauges(self, *names: str) -> list[int]:
        values = read_counters(self.layout, "zookeeper").values
        return [values[f"zookeeper.{name}"] for name in names]

    def close(self) -> None:
        self.watch.close()
        self.poller.close()
        for server in self.servers:
            server.close()


@pytest.fixture
def watched(request: pytest.FixtureRequest) -> Iterator[Callable[[list[bytes | None]], Watched]]:
    made: list[Watched] = []
    with scratch_layout() as layout:

        def make(answers: list[bytes | None], sync: Callable[[str], None] = lambda _state: None) -> Watched:
            made.append(Watched(layout, answers, sync))
            return made[-1]

        yield make
        for each in made:
            each.close()


def test_counters_that_another_program_deleted_are_made_again(watched: Callable[..., Watched]) -> None:
    made = watched([SERVES])
    made.watch.on_started(77, made.now_ms)
    made.watch.set_state("serving")
    assert made.watch.keep_counters() == ""
    name = made.layout.shared_memory_name("counters", "zookeeper")
    os.unlink(f"/dev/shm{name}")
    assert made.watch.keep_counters() == name and made.watch.keep_counters() == ""
    again = read_counters(made.layout, "zookeeper")
    assert again is not None and (again.pid, again.state) == (77, "serving")


def test_a_server_alone_serves_or_is_not_heard(watched: Callable[[list[bytes | None]], Watched]) -> None:
    alone = watched([SERVES])
    alone.ask()
    assert alone.watch.serves and alone.watch.heard_ms and alone.watch.words == ""
    starting = watched([b""])
    starting.ask()
    assert not starting.watch.serves and not starting.watch.heard_ms and starting.watch.words == ""


def test_a_member_without_a_quorum_is_alive_and_names_the_members_that_it_waits_for(watched: Callable[[list[bytes | None]], Watched]) -> None:
    member = watched([WAITS, None, None])
    member.ask()
    assert not member.watch.serves and member.watch.heard_ms
    assert member.watch.words == "waits for members 2 and 3 of the ZooKeeper ensemble; one of them is enough"


def test_a_member_whose_peers_are_there_waits_for_their_agreement(watched: Callable[[list[bytes | None]], Watched]) -> None:
    member = watched([WAITS, WAITS, None])
    member.ask()
    assert member.watch.words == "waits until the ZooKeeper ensemble has agreed on a leader"


def test_a_member_that_loses_its_quorum_says_so_and_is_well_again_when_it_is_back(watched: Callable[[list[bytes | None]], Watched]) -> None:
    member = watched([SERVES, None, None])
    seen = []
    for answer in (SERVES, WAITS, WAITS, SERVES):
        member.servers[0].answer = answer
        member.ask()
        seen.append((member.watch.serves, "members 2 and 3" in member.watch.words))
    assert seen == [(True, False), (False, False), (False, True), (True, False)]


def test_a_member_without_which_the_others_serve_is_left_behind_once_it_cannot_be_joining_them(watched: Callable[[list[bytes | None]], Watched]) -> None:
    member = watched([SERVES, SERVES, WAITS])
    seen = []
    for own, other in [(SERVES, SERVES)] + [(WAITS, WAITS)] * 8 + [(WAITS, SERVES)] * 7 + [(SERVES, SERVES), (WAITS, SERVES)]:
        member.servers[0].answer, member.servers[1].answer = own, other
        member.ask()
        seen.append(member.watch.is_left_behind(member.now_ms))
    assert seen == [False] * 15 + [True, False, False]  # 10 s, two seconds a question
    for _ in range(7):
        member.ask()
    assert member.watch.is_left_behind(member.now_ms)
    member.watch.on_started(1, member.now_ms)
    assert not member.watch.is_left_behind(member.now_ms)


def test_a_member_that_has_not_answered_yet_is_never_left_behind_and_its_time_counts_from_its_first_answer(
    watched: Callable[[list[bytes | None]], Watched],
) -> None:
    member = watched([b"", SERVES, SERVES])
    for _ in range(30):  # a minute, in which a busy machine has not started the JVM
        member.ask()
        assert not member.watch.is_left_behind(member.now_ms)
    member.servers[0].answer = WAITS
    seen = []
    for _ in range(7):
        member.ask()
        seen.append(member.watch.is_left_behind(member.now_ms))
    assert seen == [False] * 6 + [True]  # 10 s from its first answer, two seconds a question


def test_each_restart_of_a_member_that_was_left_behind_doubles_its_time_until_it_has_served(watched: Callable[[list[bytes | None]], Watched]) -> None:
    member = watched([WAITS, SERVES, SERVES])

    def seconds_until_left_behind() -> int:
        member.ask()
        seconds = next(each for each in range(1_000) if member.watch.is_left_behind(member.now_ms + each * 1_000))
        member.watch.on_left_behind()
        member.watch.on_started(1, member.now_ms)
        return seconds

    assert [seconds_until_left_behind() for _ in range(7)] == [11, 21, 41, 81, 161, 321, 321]
    for answer in (SERVES, WAITS):
        member.servers[0].answer = answer
        member.ask()
    assert seconds_until_left_behind() == 11


def test_a_server_that_serves_is_not_ready_before_its_files_are_synced(watched: Callable[[list[bytes | None]], Watched], tmp_path: Path) -> None:
    gate, asked = tmp_path / "gate", tmp_path / "asked"
    os.mkfifo(gate)

    def sync(state: str) -> None:
        asked.write_text(state)
        gate.read_bytes()

    server = watched([SERVES], sync)  # type: ignore[call-arg]
    server.ask()
    assert server.watch.serves and not server.watch.is_ready
    writing = os.open(gate, os.O_WRONLY)  # returns when the child has come to its sync
    assert not server.watch.is_ready and asked.read_text() == "/s"
    os.close(writing)
    eventually(lambda: server.watch.is_ready, "the sync has ended")
    asked.unlink()
    server.ask()
    assert server.watch.is_ready and not asked.exists(), "once for each JVM"
    server.watch.on_started(2, server.now_ms)
    server.ask()
    assert not server.watch.is_ready


def _answer(mode: bytes, zxid: bytes) -> bytes:
    return b"Zookeeper version: 3.9\nZxid: 0x%b\nMode: %b\nNode count: 5\n" % (zxid, mode)


@pytest.mark.parametrize(
    ("answers", "syncs"),
    [
        ([_answer(b"follower", b"100000020"), _answer(b"follower", b"100000021")], 1),
        ([_answer(b"follower", b"100000020"), _answer(b"leader", b"200000000"), _answer(b"leader", b"200000001")], 2),
        ([_answer(b"leader", b"100000020"), _answer(b"follower", b"100000020")], 2),
        ([_answer(b"follower", b"100000020"), WAITS, _answer(b"follower", b"100000020")], 2),
    ],
)
def test_the_files_of_a_member_are_synced_again_when_it_serves_after_an_election(
    watched: Callable[[list[bytes | None]], Watched], tmp_path: Path, answers: list[bytes], syncs: int
) -> None:
    """It has written a snapshot that ZooKeeper does not sync; a cut on a loaded machine found it empty."""
    log = tmp_path / "syncs"

    def sync(_state: str) -> None:
        with open(log, "ab", buffering=0) as file:
            file.write(b".")

    member = watched([answers[0], None, None], sync)  # type: ignore[call-arg]
    for answer in answers:
        member.servers[0].answer = answer
        member.ask()
        if member.watch.serves:
            eventually(lambda: member.watch.is_ready, "the sync has ended")
    assert log.read_bytes() == b"." * syncs


def test_what_is_written_while_a_sync_runs_is_synced_after_it(watched: Callable[[list[bytes | None]], Watched], tmp_path: Path) -> None:
    gate, log = tmp_path / "gate", tmp_path / "syncs"
    os.mkfifo(gate)

    def sync(_state: str) -> None:
        with open(log, "ab", buffering=0) as file:
            file.write(b".")
        gate.read_bytes()

    member = watched([_answer(b"follower", b"100000020"), None, None], sync)  # type: ignore[call-arg]
    member.ask()
    assert not member.watch.is_ready
    writing = os.open(gate, os.O_WRONLY)
    member.servers[0].answer = _answer(b"leader", b"200000000")
    member.ask()
    os.close(writing)
    eventually(lambda: member.watch.is_ready or log.read_bytes() == b"..", "the second sync has begun")
    assert not member.watch.is_ready
    os.close(os.open(gate, os.O_WRONLY))
    eventually(lambda: member.watch.is_ready, "it has ended")
    assert log.read_bytes() == b".."


def test_a_server_whose_files_cannot_be_synced_is_never_ready_and_the_reason_is_known(watched: Callable[[list[bytes | None]], Watched]) -> None:
    def sync(_state: str) -> None:
        raise OSError(errno.EIO, "of the disk")

    server = watched([SERVES], sync)  # type: ignore[call-arg]
    server.ask()
    eventually(lambda: server.watch.is_ready or server.watch.sync_problem, "the sync has failed")
    assert not server.watch.is_ready and server.watch.sync_problem == "Input/output error"


def test_a_member_that_serves_is_asked_every_second_and_a_server_alone_when_its_watchdog_wants_to_know(
    watched: Callable[[list[bytes | None]], Watched],
) -> None:
    member, alone = watched([SERVES, None, None]), watched([SERVES])
    for each in (member, alone):
        each.ask()
    assert (member.watch.next_ask_ms(0, 15_000), alone.watch.next_ask_ms(0, 15_000)) == (1_000, 15_000)


def test_the_size_of_the_tree_is_published_for_the_alarm_on_the_heap(watched: Callable[[list[bytes | None]], Watched]) -> None:
    alone = watched([SERVES])
    alone.ask()
    alone.servers[0].answer = SERVES + b"zk_znode_count\t1000\nzk_approximate_data_size\t70000\nzk_max_latency\t3.5\n"
    alone.ask()
    alone.ask()
    assert alone.gauges("znodes", "tree_bytes", "heap_bytes") == [1_000, 570_000, 64 << 20]
