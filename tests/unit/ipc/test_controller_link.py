from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout
from appliance.ipc.frames import MAX_PAYLOAD_BYTES, Frame, FrameSocket, PeerGone, accept, listen_unix
from appliance.ipc.request_frames import (
    AUTO_CREATE,
    AUTO_CREATE_DONE,
    GENERATION,
    IMAGE_CHANGED,
    KAFKA_REQUEST,
    KAFKA_RESPONSE,
    pack_kafka_request,
    unpack_kafka_request,
)
from appliance.ipc.request_link import ControllerLink, CoordinatorLink
from appliance.runtime.poller import Poller
from appliance.security.principals import OF_BOX, UNAUTHENTICATED
from appliance.shm.counters import Counters


class LinkedController:
    """A line to the controller, and a controller that does what the test says."""

    def __init__(self, layout: BoxLayout) -> None:
        self.layout = layout
        self.clock = ManualClock()
        self.poller = Poller()
        self.generations: list[int] = []
        self.answers: list[tuple[str, bytes | None]] = []
        self.link = ControllerLink(layout, self.poller, self.clock, self.generations.append)
        self.listening: socket.socket | None = None
        self.peer: FrameSocket | None = None

    def turn(self) -> int:
        self.clock.advance_ms(25)
        self.poller.poll(0)
        return self.link.do_work(self.clock.monotonic_ns())

    def start_controller(self) -> None:
        self.listening = listen_unix(self.layout.controller_socket)
        self.turn()
        self.peer = accept(self.listening)
        assert self.peer is not None

    def kill_controller(self) -> None:
        assert self.peer is not None and self.listening is not None
        self.peer.close()
        self.listening.close()

    def request(self, name: str, payload: bytes = b"", timeout_ms: int = 10_000, kind: int = KAFKA_REQUEST) -> None:
        self.link.request(kind, payload or name.encode(), timeout_ms, lambda answer: self.answers.append((name, answer)))

    def received(self) -> list[Frame]:
        assert self.peer is not None
        return self.peer.receive()

    def answer(self, frame: Frame, payload: bytes, kind: int = KAFKA_RESPONSE) -> None:
        assert self.peer is not None
        self.peer.send(kind, frame.token, payload)

    def close(self) -> None:
        self.link.close()
        self.poller.close()
        if self.peer is not None:
            self.kill_controller()


@pytest.fixture
def linked(layout: BoxLayout) -> Iterator[LinkedController]:
    made = LinkedController(layout)
    yield made
    made.close()


def test_a_kafka_request_comes_back_as_it_was_packed() -> None:
    assert unpack_kafka_request(pack_kafka_request(19, 7, "clíent", "::1", b"body")) == (19, 7, "clíent", "::1", b"body", UNAUTHENTICATED)
    assert unpack_kafka_request(pack_kafka_request(19, 7, "", "", b"body", OF_BOX.pack())) == (19, 7, "", "", b"body", OF_BOX)


def test_answers_find_their_request_in_any_order(linked: LinkedController) -> None:
    linked.start_controller()
    linked.request("a")
    linked.request("b", kind=AUTO_CREATE)
    first, second = linked.received()
    assert (first.kind, first.payload, second.kind) == (KAFKA_REQUEST, b"a", AUTO_CREATE)
    linked.answer(second, b"done", AUTO_CREATE_DONE)
    linked.answer(first, b"body")
    linked.turn()
    assert linked.answers == [("b", b"done"), ("a", b"body")]


def test_news_of_the_image_are_passed_on(linked: LinkedController) -> None:
    linked.start_controller()
    assert linked.peer is not None
    for generation in (7, 8):
        linked.peer.send(IMAGE_CHANGED, 0, GENERATION.pack(generation))
    linked.turn()
    assert linked.generations == [7, 8]


def test_requests_wait_while_the_controller_is_away(linked: LinkedController) -> None:
    linked.request("a")
    linked.request("b")
    linked.turn()
    assert not linked.link.connected
    linked.start_controller()
    assert [frame.payload for frame in linked.received()] == [b"a", b"b"]


def test_unanswered_requests_are_sent_to_the_next_controller_process(linked: LinkedController) -> None:
    linked.start_controller()
    linked.request("answered")
    linked.request("unanswered")
    linked.answer(linked.received()[0], b"1")
    linked.turn()
    linked.kill_controller()
    linked.turn()
    assert not linked.link.connected
    linked.request("asked in between")
    linked.start_controller()
    frames = linked.received()
    assert [frame.payload for frame in frames] == [b"unanswered", b"asked in between"]
    for frame in frames:
        linked.answer(frame, b"2")
    linked.turn()
    assert linked.answers == [("answered", b"1"), ("unanswered", b"2"), ("asked in between", b"2")]


def test_a_deadline_ends_a_request_whether_it_was_sent_or_waits(linked: LinkedController) -> None:
    linked.request("waits", timeout_ms=30)
    linked.turn()
    assert linked.answers == []
    linked.turn()
    assert linked.answers == [("waits", None)]
    linked.start_controller()
    linked.request("sent", timeout_ms=30)
    linked.turn()
    linked.turn()
    assert linked.answers[1:] == [("sent", None)]


def test_a_request_that_is_too_late_is_not_sent_any_more(linked: LinkedController) -> None:
    linked.request("late", timeout_ms=20)
    linked.start_controller()
    assert linked.answers == [("late", None)] and linked.received() == []


def test_an_answer_after_the_deadline_is_dropped(linked: LinkedController) -> None:
    linked.start_controller()
    linked.request("a", timeout_ms=30)
    (frame,) = linked.received()
    linked.turn()
    linked.turn()
    linked.answer(frame, b"late")
    linked.turn()
    assert linked.answers == [("a", None)]


def test_a_hang_up_noticed_while_sending_keeps_the_request(linked: LinkedController) -> None:
    linked.start_controller()
    linked.kill_controller()
    linked.request("a")
    assert not linked.link.connected and linked.answers == []
    linked.start_controller()
    assert [frame.payload for frame in linked.received()] == [b"a"]


def test_a_large_request_goes_on_when_the_controller_reads(linked: LinkedController) -> None:
    linked.start_controller()
    payload = bytes(range(256)) * 8_192
    linked.request("large", payload)
    linked.request("behind")
    frames: list[Frame] = []
    for _ in range(100):
        frames += linked.received()
        linked.turn()
        if len(frames) == 2:
            break
    assert [frame.payload for frame in frames] == [payload, b"behind"]


def test_a_request_that_no_frame_holds_is_answered_empty_at_once(linked: LinkedController) -> None:
    linked.start_controller()
    linked.request("huge", bytes(MAX_PAYLOAD_BYTES + 1))
    assert linked.answers == [("huge", b"")] and linked.received() == []


def test_a_callback_may_ask_again(linked: LinkedController) -> None:
    linked.start_controller()
    linked.link.request(KAFKA_REQUEST, b"first", 10_000, lambda answer: linked.request("second"))
    linked.answer(linked.received()[0], b"")
    linked.turn()
    assert [frame.payload for frame in linked.received()] == [b"second"]


def test_closing_hangs_up(linked: LinkedController) -> None:
    linked.start_controller()
    linked.link.close()
    with pytest.raises(PeerGone):
        linked.received()


def test_a_request_that_killed_two_controller_processes_is_not_sent_again(linked: LinkedController) -> None:
    lost: list[str] = []
    linked.link.request(KAFKA_REQUEST, b"deadly", 10_000, lambda _answer: None, lambda: lost.append("deadly"))
    linked.request("beside")
    for life in range(2):
        linked.start_controller()
        assert [frame.payload for frame in linked.received()] == [b"deadly", b"beside"] and not lost, life
        linked.kill_controller()
        linked.turn()
    linked.request("later")
    linked.start_controller()
    assert [frame.payload for frame in linked.received()] == [b"later"]
    assert lost == ["deadly"] and linked.answers == [("beside", None)]


def test_a_silent_coordinator_loses_its_requests_also_those_that_wait_for_members(layout: BoxLayout) -> None:
    clock, poller, answers = ManualClock(), Poller(), []
    counters = Counters.create_or_adopt(layout, "coordinator", 1)
    link = CoordinatorLink(layout, poller, clock)
    with listen_unix(layout.coordinator_socket) as listening:
        clock.advance_ms(1_000)
        link.do_work(clock.monotonic_ns())
        peer = accept(listening)
        assert peer is not None
        for name in ("first", "second"):
            link.request(KAFKA_REQUEST, name.encode(), 5_000, lambda answer, name=name: answers.append((name, answer)), answer_timeout_ms=86_400_000)  # type: ignore[misc]
            for _ in range(100):
                counters.beat(clock.monotonic_ns())
                clock.advance_ms(1_000)
                link.do_work(clock.monotonic_ns())
            assert answers == [], "it runs, and its members wait"
            clock.advance_ms(8_000)
            assert link.do_work(clock.monotonic_ns()) == 1 and answers.pop() == (name, None)
        peer.send(KAFKA_RESPONSE, peer.receive()[0].token, b"late")
        poller.poll(0)
        assert answers == []
        peer.close()
    link.close()
    poller.close()
    counters.close()
