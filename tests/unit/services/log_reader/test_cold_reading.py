"""A real log-reader and real proxies, stepped by hand: which bytes are returned, how long they are
held, and how often the disk is read.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.base.clock import SystemClock
from appliance.base.errors import ErrorCode
from appliance.base.layout import BoxLayout, Disk
from appliance.base.logging import Logger
from appliance.base.settings import Box
from appliance.ipc.log_reader_messages import FIRST_WHATEVER, LOOKUP, READ, WHOLE_BATCHES, Answer, Extent, Question, ReadAnswer, pack_question, unpack_answer
from appliance.ipc.log_reader_proxy import ArenaPart, LogReaderProxy
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import Poller
from appliance.shm.arena import PIECE_BYTES
from appliance.shm.counters import Counters
from appliance.storage import file_io
from appliance.storage.segment_files import LOG_SUFFIX, segment_path
from lab.scratch_layout import open_descriptors, purposes_left, scratch_layout
from services.log_reader import cold_reading
from services.log_reader.agent import LogReaderAgent
from tests.support.cold_segments import make_cold, write_segment

MIB = 1 << 20
SECONDS = 10


class Silent:
    def ready(self) -> None: ...

    def status(self, text: str) -> None: ...


class Stand:
    """One log-reader with 4 slots over one segment of 5 MiB in batches of about 100 KiB, and as many acceptors as wanted."""

    def __init__(self, layout: BoxLayout, directory: Path) -> None:
        self.layout = layout
        self.clock = SystemClock()
        self.path = Path(segment_path(str(directory / "logs-0"), 0, LOG_SUFFIX))
        self.content = write_segment(self.path, 50, 10, 10_000)
        self.batch = len(self.content) // 50
        settings = {"log.reader.arena.bytes": 4 * MIB, "log.scrub.bytes.per.second": 0}
        self.box = Box("cold", 1, [Disk("d0", str(directory))], "", "", "", 0, 0, 0, settings=settings)  # type: ignore[arg-type]
        self.proxies: list[LogReaderProxy] = []
        self.poller = Poller()
        self.counters = Counters.create_or_adopt(layout, "acceptor@0", 5)
        self.lives = 0
        self.start()

    def start(self) -> None:
        self.lives += 1
        self.reader_poller = Poller()
        self.reader_counters = Counters.create_or_adopt(self.layout, "log-reader@d0", self.lives)
        self.log = os.open(os.devnull, os.O_WRONLY)
        log = Logger("log-reader@d0", descriptor=self.log)
        context = ServiceContext(
            self.layout, self.box, self.clock, self.reader_counters, self.reader_poller, "log-reader@d0", "d0", self.lives, Silent(), log, {}
        )
        self.agent = LogReaderAgent(context)

    def stop(self) -> None:
        self.agent.close()
        self.reader_poller.close()
        self.reader_counters.close()
        os.close(self.log)

    def proxy(self) -> LogReaderProxy:
        made = LogReaderProxy("d0", self.layout, self.poller, self.clock, self.counters, 60_000)
        self.proxies.append(made)
        return made

    def step_until(self, condition: Callable[[], object]) -> None:
        deadline = self.clock.monotonic_ms() + SECONDS * 1000
        while not condition():
            assert self.clock.monotonic_ms() < deadline, "not in time"
            self.agent.do_work()
            self.reader_poller.poll(1)
            self.poller.poll(0)
            for proxy in self.proxies:
                if proxy.arena.released:
                    proxy.send_releases()

    def ask(self, proxy: LogReaderProxy, position: int, size_bytes: int, flags: int = WHOLE_BATCHES, limit: int = 0, inode: int = 0) -> Asked:
        asked = Asked(proxy)
        extent = Extent(size_bytes, limit or len(self.content), inode or self.path.stat().st_ino, flags)
        self.step_until(lambda: proxy.ask(READ, "logs", 0, 0, 0, position, asked.on_answer, extent))
        return asked

    def get(self, proxy: LogReaderProxy, position: int, size_bytes: int, flags: int = WHOLE_BATCHES, limit: int = 0, inode: int = 0) -> Asked:
        asked = self.ask(proxy, position, size_bytes, flags, limit, inode)
        self.step_until(lambda: asked.is_done)
        return asked

    def count(self, counter: str) -> int:
        return self.reader_counters.counter(f"log_reader.{counter}").value

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.close()
        self.stop()
        self.poller.close()
        self.counters.close()


class Asked:
    def __init__(self, proxy: LogReaderProxy) -> None:
        self.proxy = proxy
        self.is_done = False
        self.error: int | None = None
        self.told: ReadAnswer | None = None
        self.parts: list[ArenaPart] = []

    def on_answer(self, answer: Answer | None, _descriptor: int) -> None:
        self.is_done = True
        self.error = None if answer is None else answer.error_code
        if answer is not None and not answer.error_code:
            self.told = ReadAnswer.unpacked(answer.offsets)
            self.parts = self.proxy.arena.take(self.told)

    @property
    def bytes(self) -> bytes:
        return b"".join(part.memory for part in self.parts)

    def let_go(self) -> None:
        self.parts = []


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    with scratch_layout() as layout:
        made = Stand(layout, tmp_path)
        yield made
        made.close()
        assert not [name for name in purposes_left(layout) if name.startswith("arena")]


def test_an_answer_ends_behind_a_batch_and_says_which_offset_follows(stand: Stand) -> None:
    make_cold(stand.path)
    proxy = stand.proxy()
    position, offset = 0, 0
    while position < len(stand.content):
        got = stand.get(proxy, position, 300_000)
        assert got.told is not None and got.told.size_bytes == len(got.bytes) == 2 * stand.batch
        assert got.bytes == stand.content[position : position + 2 * stand.batch]
        position, offset = position + len(got.bytes), offset + 20
        assert got.told.next_offset == offset
    assert stand.count("reads") == 5 and stand.count("read_bytes") == len(stand.content)


def test_a_log_reader_waits_longer_than_processes_with_rings(stand: Stand) -> None:
    """All that it serves comes through its poller."""
    assert stand.agent.may_park() and stand.agent.park_ms() == 250


def test_no_byte_behind_the_limit_is_returned(stand: Stand) -> None:
    proxy = stand.proxy()
    got = stand.get(proxy, 0, MIB, limit=3 * stand.batch)
    assert got.bytes == stand.content[: 3 * stand.batch]
    further = stand.get(proxy, 0, MIB, limit=5 * stand.batch)
    assert further.bytes == stand.content[: 5 * stand.batch] and stand.count("reads") == 2, "what was read before did not reach so far"


def test_overlapping_readers_share_one_read(stand: Stand) -> None:
    proxies = [stand.proxy() for _ in range(3)]
    asked = [stand.ask(proxy, number * stand.batch, 4 * stand.batch) for number, proxy in enumerate(proxies)]
    stand.step_until(lambda: all(one.is_done for one in asked))
    assert [one.bytes for one in asked] == [stand.content[number * stand.batch : (number + 4) * stand.batch] for number in range(3)]
    assert stand.count("reads") == 1 and stand.count("coalesced") >= 2


def test_a_consumer_that_goes_on_finds_the_next_pieces_read_already(stand: Stand) -> None:
    make_cold(stand.path)
    proxy = stand.proxy()
    stand.get(proxy, 0, stand.batch)
    assert stand.count("read_ahead") == 0
    stand.get(proxy, stand.batch, stand.batch)
    stand.step_until(lambda: stand.count("reads") == 2)
    assert stand.count("read_ahead") == 1, "and no further, because that would take more than half of the memory"


def test_a_first_batch_that_is_longer_than_asked_for_goes_whole_where_it_must(stand: Stand) -> None:
    proxy = stand.proxy()
    short = stand.get(proxy, 0, 1000)
    assert short.told is not None and not short.parts and short.told.first_batch_bytes == stand.batch
    whole = stand.get(proxy, 9 * stand.batch + 0, 1000, WHOLE_BATCHES | FIRST_WHATEVER)
    assert whole.bytes == stand.content[9 * stand.batch : 10 * stand.batch]
    crossing = MIB // stand.batch
    whole = stand.get(proxy, crossing * stand.batch, 1000, WHOLE_BATCHES | FIRST_WHATEVER)
    assert whole.bytes == stand.content[crossing * stand.batch :][: stand.batch] and len(whole.parts) == 2


def test_a_batch_larger_than_an_answer_is_reported_and_can_be_read_in_pieces(stand: Stand) -> None:
    content = write_segment(stand.path, 1, 1, 4 * MIB)
    proxy = stand.proxy()
    told = stand.get(proxy, 0, MIB, WHOLE_BATCHES | FIRST_WHATEVER, limit=len(content)).told
    assert told is not None and told.first_batch_bytes == len(content) and not told.parts
    position = 0
    while position < len(content):
        got = stand.get(proxy, position, 2 * MIB, 0, limit=len(content))
        assert got.bytes and got.bytes == content[position : position + len(got.bytes)]
        position += len(got.bytes)
        got.let_go()


def test_held_memory_is_never_used_again_and_a_release_lets_others_go_on(stand: Stand) -> None:
    first, second = stand.proxy(), stand.proxy()
    held = [stand.get(first, number * PIECE_BYTES, 10_000, 0) for number in range(4)]
    seen = [one.bytes for one in held]
    waiting = stand.ask(second, 4 * PIECE_BYTES, 10_000, 0)
    for _ in range(50):
        stand.agent.do_work()
        stand.reader_poller.poll(1)
        stand.poller.poll(0)
    assert not waiting.is_done and [one.bytes for one in held] == seen
    held[2].let_go()
    stand.step_until(lambda: waiting.is_done)
    assert waiting.bytes == stand.content[4 * PIECE_BYTES :][:10_000]
    assert all(held[number].bytes == seen[number] for number in (0, 1, 3))


def test_a_connection_that_closes_while_its_owner_sends_does_not_free_held_slots(stand: Stand) -> None:
    proxy = stand.proxy()
    held = [stand.get(proxy, number * PIECE_BYTES, 10_000, 0) for number in range(4)]
    proxy.hang_up()
    waiting = stand.ask(stand.proxy(), 4 * PIECE_BYTES, 10_000, 0)
    for _ in range(50):
        stand.agent.do_work()
        stand.reader_poller.poll(1)
        stand.poller.poll(0)
    assert not waiting.is_done
    for one in held:
        one.let_go()
    asked_again = stand.ask(proxy, 0, 10_000, 0)  # pending frames go out with the next connection
    stand.step_until(lambda: waiting.is_done and asked_again.is_done)
    assert waiting.error == 0 and asked_again.error == 0


def test_what_a_dead_acceptor_held_is_free(stand: Stand) -> None:
    stand.get(stand.proxy(), 0, 1000, 0).let_go()
    child = os.fork()
    if child == 0:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.connect(stand.layout.log_reader_socket("d0"))
                for number in range(4):
                    extent = Extent(1000, len(stand.content), stand.path.stat().st_ino, 0)
                    sock.send(pack_question(Question(READ, number, 0, 0, 0, number * PIECE_BYTES, "logs", extent)))
                for _ in range(4):
                    assert not unpack_answer(sock.recv(2000)).error_code
                sock.recv(1)  # until it is killed
        finally:
            os._exit(1)
    try:
        stand.step_until(lambda: stand.count("held_slots") == 4)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    stand.step_until(lambda: stand.count("held_slots") == 0)
    assert stand.agent.cold.pieces.available == 4


def test_an_answer_that_comes_too_late_is_given_back(stand: Stand) -> None:
    proxy = stand.proxy()
    asked = stand.ask(proxy, 0, 1000, 0)
    proxy.expire(stand.clock.monotonic_ns() + 6_000_000_000)
    assert asked.is_done and asked.error is None and proxy.reads_hang
    stand.step_until(lambda: not proxy.reads_hang)
    stand.step_until(lambda: stand.count("held_slots") == 0 and stand.count("reads") == 1)


def test_a_disk_that_cannot_read_is_an_error_of_that_question(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "input/output error")

    proxy = stand.proxy()
    before = stand.get(proxy, 0, 1000, 0)
    monkeypatch.setattr(file_io, "preadv", fail)
    assert stand.get(proxy, PIECE_BYTES, 1000, 0).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert stand.get(proxy, 0, 1000, 0).bytes == before.bytes, "what was read is still there"
    monkeypatch.undo()
    assert stand.get(proxy, PIECE_BYTES, 1000, 0).bytes == stand.content[PIECE_BYTES:][:1000]
    assert stand.count("failed_reads") == 1


def test_another_file_under_the_same_name_is_not_taken_for_it(stand: Stand) -> None:
    old = stand.path.stat().st_ino
    proxy = stand.proxy()
    held = stand.get(proxy, 0, 1000, 0)
    stand.path.rename(stand.path.with_suffix(".away"))
    content = write_segment(stand.path, 3, 1, 100)
    assert stand.get(proxy, 0, 1000, 0, limit=len(content)).bytes == content[:1000]
    assert stand.get(proxy, 0, 1000, 0, inode=old).bytes == held.bytes, "it is open, so it is the one that the asker knows"
    stand.agent.cold.last_request_ns = 1
    stand.agent.cold.sweep(10**18)
    assert stand.get(proxy, 0, 1000, 0, inode=old).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_segment_that_is_gone_is_said_to_be(stand: Stand) -> None:
    inode = stand.path.stat().st_ino
    stand.path.unlink()
    assert stand.get(stand.proxy(), 0, 1000, 0, inode=inode).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_memory_and_files_are_released_when_cold_reads_end(stand: Stand) -> None:
    proxy = stand.proxy()
    before = open_descriptors()
    held, other = stand.get(proxy, 0, 1000, 0), stand.get(proxy, PIECE_BYTES, 1000, 0)
    other.let_go()
    stand.step_until(lambda: stand.count("held_slots") == 1)
    cold = stand.agent.cold
    assert cold.memory.allocated_slots == 2
    cold.sweep(stand.clock.monotonic_ns() + cold_reading.IDLE_NS + 1)
    assert cold.memory.allocated_slots == 1 and held.bytes == stand.content[:1000]
    assert not [path for path in (os.readlink(f"/proc/self/fd/{fd}") for fd in open_descriptors() - before) if path.endswith(".log")]
    assert stand.get(proxy, PIECE_BYTES, 1000, 0).bytes == stand.content[PIECE_BYTES:][:1000]


def test_what_a_dead_log_reader_had_read_can_be_sent_and_the_next_one_is_asked(stand: Stand) -> None:
    proxy = stand.proxy()
    held = stand.get(proxy, 0, 1000, 0)
    stand.stop()
    stand.poller.poll(0)
    stand.start()
    again = stand.get(proxy, PIECE_BYTES, 1000, 0)
    assert again.bytes == stand.content[PIECE_BYTES:][:1000] and held.bytes == stand.content[:1000]
    held.let_go()
    stand.step_until(lambda: not proxy.arena.released)


def test_a_look_up_in_a_topic_that_was_created_anew_goes_by_its_own_segments(stand: Stand) -> None:
    """As many segments came and went as in the former one, so the generation of the list is the same."""
    directory = stand.path.parent

    def create(topic_id: str, bases: list[int]) -> list[int]:
        directory.mkdir(exist_ok=True)
        (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
        for base in bases:
            write_segment(Path(segment_path(str(directory), base, LOG_SUFFIX)), 2, 2, 100)
        return stand.agent.reading(Question(LOOKUP, 1, 0, 7, 0, 0, "logs")).segments()

    assert create("AAAAAAAAAAAAAAAAAAAAAQ", [0, 500, 1000]) == [0, 500, 1000]
    directory.rename(directory.with_name("logs-0.x-delete"))
    assert create("AAAAAAAAAAAAAAAAAAAAAg", [0, 40, 80]) == [0, 40, 80]
