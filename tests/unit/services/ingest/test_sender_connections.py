"""The connections of senders with real sockets: limits, pauses, deadlines, proxies, and how
connections end.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.senders.listener import Listener, ListenerTransport, Protocol, ProxyMode
from services.ingest.listeners.listening_socket import SWEEPS_FOR_OTHERS
from services.ingest.listeners.proxy_header import V2_START
from services.ingest.listeners.sender_connection import UNSENT_BYTES_MAX
from services.ingest.listeners.sender_limits import SMALL_BYTES
from services.ingest.records.ack_group import AckOutcome
from tests.support.stepped_room import SteppedRoom

PROXY_V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 40312 514\r\n"
PROXY_V2 = V2_START + b"\x21\x11\x00\x0c" + bytes([192, 0, 2, 7, 198, 51, 100, 1]) + (40312).to_bytes(2, "big") + (514).to_bytes(2, "big")
RELP_OPEN = b"1 open 15 commands=syslog\n"


@pytest.fixture
def room(tmp_path: Path) -> Iterator[SteppedRoom]:
    room = SteppedRoom(tmp_path, ingest_connection_window_bytes=65536)
    yield room
    room.close()


def test_what_senders_of_several_listeners_send_arrives_with_its_listener_and_source(room: SteppedRoom) -> None:
    room.listen("one")
    room.listen("two")
    first, second = room.connect("one"), room.connect("two")
    first.sendall(b"<13>a\n")
    second.sendall(b"<13>b\n")
    room.run_until(lambda: len(room.intake.messages) == 2)
    found = {message: unit for unit, message in room.intake.taken}
    assert (found[b"<13>a"].listener.name, found[b"<13>b"].listener.name) == ("one", "two")
    assert found[b"<13>a"].source.address == b"127.0.0.1:%d" % first.getsockname()[1]
    assert room.counter('ingest.input_bytes{listener="one"}') == 6


@pytest.mark.parametrize("by_reset", [False, True], ids=["end", "reset"])
def test_a_connection_that_ends_leaves_its_last_line_and_nothing_else(room: SteppedRoom, by_reset: bool) -> None:
    room.listen()
    sender = room.connect()
    sender.sendall(b"<13>whole\n<13>half")
    room.run_until(lambda: room.intake.messages == [b"<13>whole"])
    if by_reset:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sender.close()
    room.run_until(lambda: len(room.room) == 0)
    assert room.intake.messages == [b"<13>whole", b"<13>half"]


def test_connections_beyond_the_limits_are_closed_and_counted(tmp_path: Path) -> None:
    room = SteppedRoom(tmp_path, max_connections=3, max_connections_per_ip=2)
    room.listen()
    senders = [room.connect() for _ in range(3)]
    room.run_until(lambda: room.closed("connection-limit") == 1)
    assert len(room.room) == 2
    senders[0].close()
    room.run_until(lambda: len(room.room) == 1)
    room.connect()
    room.run_until(lambda: len(room.room) == 2)
    assert room.closed("connection-limit") == 1
    room.close()


def test_a_sender_whose_partition_takes_no_more_is_not_read_until_it_does(room: SteppedRoom) -> None:
    room.listen()
    slow, other = room.connect(), room.connect()
    room.intake.meets = ("syslog", 3)
    slow.sendall(b"<13>1\n")
    room.run_until(lambda: room.intake.messages == [b"<13>1"])
    room.intake.meets = None
    slow.sendall(b"<13>2\n")
    other.sendall(b"<13>o\n")
    room.run_until(lambda: b"<13>o" in room.intake.messages)
    for _ in range(3):
        room.step()
    assert b"<13>2" not in room.intake.messages
    room.room.resume(lambda partition: partition == ("syslog", 3))
    for _ in range(3):
        room.step()
    assert b"<13>2" not in room.intake.messages
    room.room.resume(lambda partition: False)
    room.run_until(lambda: b"<13>2" in room.intake.messages)
    assert room.counter("ingest.connections_paused") == 1


def test_a_window_of_unsettled_bytes_stops_the_reading_and_settling_starts_it(room: SteppedRoom) -> None:
    room.listen(protocol=Protocol.RELP)
    sender = room.connect()
    text = b"x" * 40_000
    stream = RELP_OPEN + b"".join(b"%d syslog %d %b\n" % (number, len(text), text) for number in range(2, 12))
    sender.settimeout(10)
    sender.sendall(stream)  # loopback's buffers hold that much
    room.run_until(lambda: sum(map(len, room.intake.messages)) > 65536)
    for _ in range(5):
        room.step()
    assert len(room.intake.messages) < 10
    for _ in range(20):
        room.intake.complete_all()
        room.step()
    room.run_until(lambda: len(room.intake.messages) == 10)


def test_large_frames_of_all_are_read_one_after_the_other_while_they_are_too_much_together_and_small_ones_at_once(tmp_path: Path) -> None:
    room = SteppedRoom(tmp_path, ingest_unfinished_bytes=1 << 17, ingest_connection_window_bytes=1 << 30)
    room.listen(protocol=Protocol.RELP, message_bytes_max=1 << 20)
    small, *large = [room.connect() for _ in range(4)]
    for sender in (small, *large):
        sender.sendall(RELP_OPEN)
    frame = b"2 syslog 300000 " + b"x" * 300_000 + b"\n"
    unsent = dict.fromkeys(large, frame)

    def push() -> None:
        for sender, left in unsent.items():
            try:
                unsent[sender] = left[sender.send(left[:20_000]) :] if left else b""
            except BlockingIOError:
                pass

    for _ in range(40):
        push()
        room.step(0)
        assert room.counter("ingest.unfinished_bytes") < (1 << 17) + 300_000 + 3 * 65536
    assert room.counter("ingest.connections_crowded")
    small.sendall(b"2 syslog 1 y\n")
    room.run_until(lambda: b"y" in room.intake.messages)
    room.run_until(lambda: push() or len(room.intake.messages) == 4)  # type: ignore[func-returns-value]
    room.step()
    assert room.counter("ingest.unfinished_bytes") == 0
    room.close()


def test_a_large_frame_behind_a_partition_that_takes_no_more_holds_up_no_other(tmp_path: Path) -> None:
    """It began first, so it would be read alone; it is not read at all before its partition goes on."""
    room = SteppedRoom(tmp_path, ingest_unfinished_bytes=1 << 17, ingest_connection_window_bytes=1 << 30)
    room.listen(protocol=Protocol.RELP, message_bytes_max=1 << 20)
    stuck, *others = [room.connect() for _ in range(4)]
    for sender in (stuck, *others):
        sender.sendall(RELP_OPEN)
        room.step()
    frame = b" syslog 300000 " + b"x" * 300_000 + b"\n"
    room.intake.meets = ("syslog", 0)
    stuck.sendall(b"2 syslog 1 y\n" + (b"3" + frame)[:40_000])
    room.run_until(lambda: room.intake.messages == [b"y"])
    room.step()
    assert room.counter("ingest.unfinished_bytes") > SMALL_BYTES and room.counter("ingest.connections_paused") == 1
    room.intake.meets = None
    unsent = dict.fromkeys(others, b"2" + frame)

    def push() -> None:
        for sender, left in unsent.items():
            try:
                unsent[sender] = left[sender.send(left[:20_000]) :] if left else b""
            except BlockingIOError:
                pass

    room.run_until(lambda: push() or len(room.intake.messages) == 4, "the others' frames are whole")  # type: ignore[func-returns-value]
    assert room.counter("ingest.connections_crowded"), "all together were too much"
    unsent[stuck] = (b"3" + frame)[40_000:]
    room.room.resume(lambda _partition: False)
    room.run_until(lambda: push() or len(room.intake.messages) == 5)  # type: ignore[func-returns-value]
    room.close()


def test_a_stop_takes_of_a_sender_that_never_pauses_what_a_kernel_may_keep(room: SteppedRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.ingest.listeners.sender_connections.DRAIN_BYTES_MAX", 1 << 19)
    room.listen()
    sender = room.connect()
    room.run_until(lambda: len(room.room) == 1)
    line = b"<13>" + b"x" * 995 + b"\n"

    def push() -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sender.send(line * 200)

    push()
    turns = 0
    while not room.room.drain():
        push()
        room.room.do_work()
        turns += 1
    taken = len(room.intake.messages) * len(line)
    assert turns > 0 and (1 << 19) - len(line) <= taken < (1 << 20), "all that had come, and no more"


def test_without_free_descriptors_no_connection_is_accepted_and_nothing_spins(room: SteppedRoom) -> None:
    room.listen()
    room.step()
    held = resource.getrlimit(resource.RLIMIT_NOFILE)
    sender = room.connect()
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, held[1]))
    try:
        room.run_until(lambda: room.counter("ingest.accept_failures") == 1)
        for _ in range(20):
            room.step(0)
        assert room.counter("ingest.accept_failures") == 1 and not len(room.room)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, held)
    sender.sendall(b"<13>x\n")
    room.pass_time(1)
    room.run_until(lambda: room.intake.messages == [b"<13>x"])


def test_what_another_ingest_could_accept_is_not_refused_for_some_seconds(tmp_path: Path) -> None:
    room = SteppedRoom(tmp_path, ingests=2)
    room.listen()
    room.step()
    held = resource.getrlimit(resource.RLIMIT_NOFILE)
    sender = room.connect()
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, held[1]))
    try:
        room.run_until(lambda: room.counter("ingest.accept_failures") == 1)
        room.pass_time(SWEEPS_FOR_OTHERS - 1)
        assert not room.is_ended(sender) and not room.closed("descriptor-limit"), "the other ingest has that long"
        room.pass_time(2)
        assert room.is_ended(sender) and room.closed("descriptor-limit") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, held)
        room.close()


def test_a_sender_for_which_no_descriptor_is_free_for_a_second_is_refused_and_counted(room: SteppedRoom) -> None:
    room.listen()
    room.step()
    held = resource.getrlimit(resource.RLIMIT_NOFILE)
    senders = [room.connect() for _ in range(3)]
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, held[1]))
    try:
        room.run_until(lambda: room.counter("ingest.accept_failures") == 1)
        assert not any(room.is_ended(sender) for sender in senders), "a descriptor may become free within a second"
        room.pass_time(1)
        assert all(room.is_ended(sender) for sender in senders) and room.closed("descriptor-limit") == 3
        senders.clear()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, held)
    room.connect().sendall(b"<13>x\n")
    room.pass_time(1)
    room.run_until(lambda: room.intake.messages == [b"<13>x"], "ingest accepts again")


def test_answers_go_out_after_settlement_also_to_a_peer_that_has_ended_its_side(room: SteppedRoom) -> None:
    room.listen(protocol=Protocol.RELP)
    sender = room.connect()
    sender.sendall(RELP_OPEN + b"2 syslog 1 x\n")
    sender.shutdown(socket.SHUT_WR)
    room.run_until(lambda: len(room.intake.closed) == 1)
    for _ in range(3):
        room.step()
    assert len(room.room) == 1
    room.intake.complete_all()
    room.run_until(lambda: len(room.room) == 0)
    sender.settimeout(10)
    assert sender.recv(1000).endswith(b"\n2 rsp 6 200 OK\n")


def test_a_close_lets_the_answer_arrive_although_the_peer_goes_on_sending(room: SteppedRoom) -> None:
    room.listen(protocol=Protocol.RELP)
    sender = room.connect()
    sender.sendall(b"1 rubbish 0\n" + b"y" * 300_000)
    room.run_until(lambda: room.closed("relp-not-open") == 1)
    room.step()
    sender.sendall(b"more")
    room.step()
    sender.settimeout(10)
    assert sender.recv(1000).endswith(b"0 serverclose 0\n")
    sender.close()
    room.run_until(lambda: len(room.room) == 0)
    assert not room.intake.messages


def test_a_closed_connection_whose_peer_never_ends_is_given_up(room: SteppedRoom) -> None:
    room.listen(protocol=Protocol.RELP)
    sender = room.connect()
    sender.sendall(b"1 rubbish 0\n")
    room.run_until(lambda: room.closed("relp-not-open") == 1)
    room.pass_time(3)
    assert len(room.room) == 0


def test_a_frame_that_trickles_in_is_given_up_and_a_silent_sender_is_not(room: SteppedRoom) -> None:
    room.listen(idle_ms_max=5_000)
    loris, silent = room.connect(), room.connect()
    silent.sendall(b"<13>x\n")
    for _ in range(8):
        loris.send(b"y")
        room.step()
        room.pass_time(1)
    assert room.closed("idle") == 1
    assert len([message for message in room.intake.messages if message != b"<13>x"]) == 1  # what came is kept
    room.pass_time(100)
    assert not room.is_ended(silent) and len(room.room) == 1


@pytest.mark.slow
def test_answers_that_the_peer_does_not_take_stop_its_reading_and_then_end_it(room: SteppedRoom) -> None:
    room.listen(protocol=Protocol.RELP, idle_ms_max=5_000)
    sender = room.connect()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sender.sendall(RELP_OPEN)
    transaction = 2
    command = b"%s" % (b"a" * 32)
    pending = b""
    for _ in range(100_000):  # commands that are not known are answered at once, with more bytes than they have
        if not pending:
            pending = b"".join(b"%d %b 0\n" % (transaction + index, command) for index in range(1000))
            transaction += 1000
        try:
            pending = pending[sender.send(pending) :]
        except BlockingIOError:
            break
        room.step()
    (connection,) = room.room._connections.values()
    assert UNSENT_BYTES_MAX < connection.unsent_bytes < 4 * UNSENT_BYTES_MAX
    room.pass_time(8)
    assert room.closed("answers-not-taken") == 1 and len(room.room) == 0


# -- proxies


@pytest.mark.parametrize("header", [PROXY_V1, PROXY_V2], ids=["v1", "v2"])
def test_a_proxy_of_the_named_networks_is_believed(room: SteppedRoom, header: bytes) -> None:
    room.listen(proxy=ProxyMode.YES, proxy_from=("127.0.0.0/8",))
    sender = room.connect()
    for byte in header:
        sender.send(bytes([byte]))
        room.step()
    sender.sendall(b"<13>x\n")
    room.run_until(lambda: room.intake.messages == [b"<13>x"])
    source = room.intake.taken[0][0].source
    assert (source.host, source.proxied_source) == (b"192.0.2.7", b"192.0.2.7:40312")
    assert source.address.startswith(b"127.0.0.1:")


def test_the_header_of_an_unlisted_proxy_is_recorded_and_not_trusted(room: SteppedRoom) -> None:
    room.listen(proxy=ProxyMode.V1)
    sender = room.connect()
    sender.sendall(PROXY_V1 + b"<13>x\n")
    room.run_until(lambda: room.intake.messages == [b"<13>x"])
    source = room.intake.taken[0][0].source
    assert (source.host, source.proxied_source) == (b"127.0.0.1", b"192.0.2.7:40312")


@pytest.mark.parametrize(
    ("mode", "networks", "data", "reason"),
    [
        (ProxyMode.YES, ("192.0.2.0/24",), PROXY_V1, "proxy-not-allowed"),
        (ProxyMode.REQUIRED, (), b"<13>x\n", "proxy-header"),
        (ProxyMode.YES, (), b"PROXY TCP4 nonsense\r\n", "proxy-header"),
        (ProxyMode.NO, (), b"\x16\x03\x01\x02\x00\x01", "tls-on-plain-port"),
        (ProxyMode.NO, (), b"POST / HTTP/1.1\r\nHost: 127.0.0.1:5514\r\n\r\n<10>forged\n", "http-on-plain-port"),
        (ProxyMode.V1, (), b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", "http-on-plain-port"),
        (ProxyMode.YES, (), PROXY_V1 + b"OPTIONS * HTTP/1.1\r\n\r\n", "http-on-plain-port"),
        (ProxyMode.NO, (), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "http-on-plain-port"),
    ],
)
def test_a_connection_against_the_proxy_rules_is_closed_and_counted(
    room: SteppedRoom, mode: ProxyMode, networks: tuple[str, ...], data: bytes, reason: str
) -> None:
    room.listen(proxy=mode, proxy_from=networks)
    sender = room.connect()
    sender.sendall(data)
    room.run_until(lambda: room.is_ended(sender))
    assert room.closed(reason) == 1 and not room.intake.messages


def test_a_header_that_does_not_come_has_a_deadline(room: SteppedRoom) -> None:
    room.listen(proxy=ProxyMode.REQUIRED, idle_ms_max=5_000)
    sender = room.connect()
    sender.sendall(b"PROX")
    room.pass_time(7)
    assert room.closed("handshake-timeout") == 1 and room.is_ended(sender)


def test_a_silent_sender_where_a_header_may_come_is_kept_and_its_header_has_its_own_time(room: SteppedRoom) -> None:
    room.listen(proxy=ProxyMode.V1, idle_ms_max=5_000)
    sender, slow = room.connect(), room.connect()
    room.run_until(lambda: len(room.room) == 2)
    room.pass_time(100)
    sender.sendall(PROXY_V1[:9])
    slow.sendall(PROXY_V1[:9])
    room.step()
    room.pass_time(3)
    sender.sendall(PROXY_V1[9:] + b"<13>x\n")
    room.run_until(lambda: room.intake.messages == [b"<13>x"])
    room.pass_time(5)
    assert room.closed("handshake-timeout") == 1 and room.is_ended(slow) and not room.is_ended(sender)


def test_a_proxy_that_sends_for_itself_counts_once(tmp_path: Path) -> None:
    room = SteppedRoom(tmp_path, max_connections_per_ip=1)
    room.listen(proxy=ProxyMode.YES, proxy_from=("127.0.0.1",))
    room.connect().sendall(PROXY_V1.replace(b"192.0.2.7", b"127.0.0.1") + b"<13>x\n")
    room.run_until(lambda: room.intake.messages == [b"<13>x"])
    room.close()


def test_senders_behind_a_believed_proxy_count_for_themselves(tmp_path: Path) -> None:
    room = SteppedRoom(tmp_path, max_connections_per_ip=2)
    room.listen(proxy=ProxyMode.REQUIRED, proxy_from=("127.0.0.1",))
    for number in range(4):
        room.connect().sendall(PROXY_V1.replace(b"192.0.2.7", b"192.0.2.%d" % number) + b"<13>x\n")
        room.run_until(lambda number=number: len(room.intake.messages) == number + 1)  # type: ignore[misc]
    for _ in range(2):
        room.connect().sendall(PROXY_V1.replace(b"192.0.2.7", b"192.0.2.0") + b"<13>x\n")
        room.run_until(lambda: len(room.intake.messages) == 5)
    room.run_until(lambda: room.closed("connection-limit") == 1)
    assert len(room.intake.messages) == 5
    room.close()


# -- the end


def test_a_stop_takes_what_has_arrived_and_answers_what_is_under_way(room: SteppedRoom) -> None:
    room.listen("syslog")
    room.listen("relp", Protocol.RELP)
    plain, relay = room.connect("syslog"), room.connect("relp")
    relay.sendall(RELP_OPEN)
    room.run_until(lambda: len(room.room) == 2 and b"rsp" in _peek(relay))
    plain.sendall(b"<13>last\n<13>half")
    relay.sendall(b"2 syslog 1 x\n")
    room.room.accept(False)
    for _ in range(100):
        if room.room.drain() and len(room.intake.messages) == 2:
            break
    room.room.finish_all()
    assert sorted(room.intake.messages) == [b"<13>half", b"<13>last", b"x"]
    was_empty = [room.room.is_empty]
    assert room.is_ended(plain)
    room.intake.complete_all(AckOutcome.STORED)
    room.room.do_work()
    assert [*was_empty, room.room.is_empty] == [False, True]
    relay.settimeout(10)
    assert relay.recv(1000).endswith(b"2 rsp 6 200 OK\n")


def test_a_stop_does_not_wait_for_ever_for_what_cannot_be_settled(room: SteppedRoom) -> None:
    room.listen(protocol=Protocol.RELP)
    relay = room.connect()
    relay.sendall(RELP_OPEN + b"2 syslog 1 x\n")
    room.run_until(lambda: len(room.intake.in_flight) == 1)
    room.room.finish_all()
    room.pass_time(4)
    states = [room.room.is_empty]
    room.pass_time(2)
    assert [*states, room.room.is_empty] == [False, True]
    room.intake.complete_all()  # no connection is left to acknowledge to


def _peek(sender: socket.socket) -> bytes:
    try:
        return sender.recv(1000, socket.MSG_PEEK)
    except BlockingIOError:
        return b""


def await_wait(thread: threading.Thread) -> None:
    """Until a thread is where the kernel can wake it; where the kernel does not tell, for half a second."""
    deadline = time.monotonic() + 0.5
    while Path(f"/proc/self/task/{thread.native_id}/wchan").read_text() not in ("ep_poll", "do_epoll_wait") and time.monotonic() < deadline:
        os.sched_yield()


def test_ingests_that_share_a_socket_take_connections_in_turns(tmp_path: Path) -> None:
    """One that always gets them all would leave the cores of the others idle."""
    rooms = [SteppedRoom(tmp_path, ingests=2) for _ in range(2)]
    listening = socket.create_server(("127.0.0.1", 0))
    ended, at_end = socket.socketpair()
    at_end.close()
    for room in rooms:
        room.listen_at(listening.dup(), Listener("test", Protocol.SYSLOG, ListenerTransport.TCP, 0))
    changed, is_over = threading.Condition(), threading.Event()

    def work(room: SteppedRoom) -> None:
        while not is_over.is_set():
            room.step(1000)  # the kernel wakes one of those that wait
            with changed:
                changed.notify()

    threads = [threading.Thread(target=work, args=(room,)) for room in rooms]
    for thread in threads:
        thread.start()
    try:
        for count in range(1, 13):
            for thread in threads:
                await_wait(thread)
            rooms[0].connect()
            with changed:
                assert changed.wait_for(lambda count=count: sum(len(room.room) for room in rooms) == count, 10)  # type: ignore[misc]
    finally:
        is_over.set()
        for room in rooms:
            room.poller.register(ended.fileno(), select.EPOLLIN, lambda _events: None)
        for thread in threads:
            thread.join()
    assert min(len(room.room) for room in rooms) >= 3
    for room in rooms:
        room.close()
    listening.close()
    ended.close()


RELP_HI = RELP_OPEN + b"2 syslog 6 <13>hi\n"


def left_while_blocked(room: SteppedRoom) -> tuple[socket.socket, socket.socket]:
    """A sender that was cut while its partition took no more, and that is there again."""
    room.listen(protocol=Protocol.RELP)
    room.intake.meets = ("syslog", 3)
    first = room.connect()
    first.sendall(RELP_HI)
    room.run_until(lambda: len(room.intake.closed) == 1)
    room.intake.meets = None
    first.sendall(b"3 syslog 6 <13>ho\n")
    first.close()
    second = room.connect()
    return first, second


def test_a_dropped_blocked_connection_is_marked_as_left_before_the_next_one_of_its_sender_is_read(room: SteppedRoom) -> None:
    _, second = left_while_blocked(room)
    second.sendall(RELP_HI)
    room.run_until(lambda: len(room.intake.closed) == 2)
    assert room.intake.streams[0].has_left and not room.intake.streams[0].ends
    assert room.intake.messages == [b"<13>hi"] * 2 and len(room.room) == 2, "the first is not read on"
    room.room.resume(lambda _: False)
    room.run_until(lambda: room.intake.messages == [b"<13>hi", b"<13>hi", b"<13>ho"])


def test_a_dropped_blocked_connection_without_pending_records_is_closed_before_the_next_one_is_read(room: SteppedRoom) -> None:
    _, second = left_while_blocked(room)
    room.intake.complete_all()
    second.sendall(RELP_OPEN + b"2 syslog 6 <13>ho\n")
    room.run_until(lambda: len(room.intake.closed) == 2)
    assert room.intake.streams[0].ends == [False] and len(room.room) == 1
    assert room.intake.messages == [b"<13>hi", b"<13>ho"]


def test_an_open_connection_does_not_delay_another_one_of_the_same_address(room: SteppedRoom) -> None:
    room.listen(protocol=Protocol.RELP)
    room.intake.meets = ("syslog", 3)
    first = room.connect()
    first.sendall(RELP_HI)
    room.run_until(lambda: len(room.intake.closed) == 1)
    room.intake.meets = None
    room.connect().sendall(RELP_HI)
    room.run_until(lambda: len(room.intake.closed) == 2)
    assert not room.intake.streams[0].has_left


def test_a_dropped_connection_is_drained_a_turn_at_a_time_and_the_next_one_of_its_sender_waits(room: SteppedRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.ingest.listeners.sender_connections.RECEIVE_BYTES", 64)
    monkeypatch.setattr("services.ingest.listeners.sender_connections.TURN_BYTES", 256)
    room.listen(protocol=Protocol.RELP)
    first, second = room.connect(), room.connect()
    numbers = range(2, 102)
    first.sendall(RELP_OPEN + b"".join(b"%d syslog 8 <13>%04d\n" % (number, number) for number in numbers))
    first.close()
    second.sendall(RELP_HI)
    room.run_until(lambda: len(room.intake.messages) == 101)
    assert room.intake.messages[:-1] == [b"<13>%04d" % number for number in numbers] and room.intake.messages[-1] == b"<13>hi"


def test_content_that_opens_to_less_costs_what_was_received(room: SteppedRoom) -> None:
    room.listen(protocol=Protocol.HTTP)
    body = gzip.compress(b"") * 2_000
    sender = room.connect()
    sender.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    room.run_until(lambda: select.select([sender], [], [], 0)[0])
    (connection,) = room.room._connections.values()
    before = connection.bucket.bytes_left
    connection.charge(-1_000)
    assert connection.bucket.bytes_left == before
    connection.charge(10)
    assert connection.bucket.bytes_left == before - 10
