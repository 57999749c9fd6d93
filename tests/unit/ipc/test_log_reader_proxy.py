from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout
from appliance.ipc.frames import listen_unix
from appliance.ipc.log_reader_messages import (
    LOOKUP,
    MAX_MESSAGE_BYTES,
    OFFSETS_MAX,
    OPEN,
    SEGMENTS,
    Answer,
    Question,
    pack_answer,
    unpack_answer,
    unpack_question,
)
from appliance.ipc.log_reader_proxy import UNSENT_MAX, LogReaderProxy
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters
from lab.scratch_layout import open_descriptors

DEADLINE_MS = 1_000


class Asker:
    """An acceptor's proxy of one log-reader, and the log-reader's bare socket."""

    def __init__(self, layout: BoxLayout) -> None:
        self.path = layout.log_reader_socket("d0")
        self.clock = ManualClock()
        self.poller = Poller()
        self.counters = Counters.create_or_adopt(layout, "acceptor@0", 5)
        self.proxy = LogReaderProxy("d0", layout, self.poller, self.clock, self.counters, DEADLINE_MS)
        self.answers: list[tuple[Any, Answer | None, int]] = []
        self.listening: socket.socket | None = None
        self.peer: socket.socket | None = None

    def listen(self) -> None:
        self.listening = listen_unix(self.path, socket.SOCK_SEQPACKET)
        self.clock.advance_ms(25)

    def ask(self, context: Any, kind: int = LOOKUP) -> bool:
        return self.proxy.ask(kind, "syslog", 3, 7, 100, 200, lambda answer, descriptor: self.answers.append((context, answer, descriptor)))

    def questions(self) -> list[Question]:
        if self.peer is None:
            assert self.listening is not None
            self.peer = self.listening.accept()[0]
            self.peer.setblocking(False)
        found = []
        while True:
            try:
                found.append(unpack_question(self.peer.recv(2_000)))
            except BlockingIOError:
                return found

    def answer(self, token: int, kind: int = LOOKUP, descriptors: tuple[int, ...] = ()) -> None:
        assert self.peer is not None
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self.peer.sendmsg([pack_answer(Answer(kind, token, 0, 1, 2, 3, 4, 5))], rights)

    def expire(self) -> int:
        return self.proxy.expire(self.clock.monotonic_ns())

    def failures(self) -> int:
        return self.counters.counter('log_reader.unanswered{disk="d0"}').value

    def close(self) -> None:
        self.proxy.close()
        self.poller.close()
        self.counters.close()
        for end in (self.listening, self.peer):
            if end is not None:
                end.close()


@pytest.fixture
def asker(layout: BoxLayout) -> Iterator[Asker]:
    made = Asker(layout)
    yield made
    made.close()


def test_messages_come_back_as_they_were_packed() -> None:
    answer = Answer(OPEN, 2**40, -1, 1, 2, 3, 4, -5)
    assert unpack_answer(pack_answer(answer)) == answer
    longest = Answer(SEGMENTS, 7, 0, offsets=tuple(range(2**62, 2**62 - OFFSETS_MAX, -1)))
    assert len(pack_answer(longest)) <= MAX_MESSAGE_BYTES
    assert unpack_answer(pack_answer(longest)) == longest


def test_a_request_without_a_listener_fails_and_the_connect_is_not_repeated_at_once(asker: Asker) -> None:
    assert not asker.ask("a")
    asker.listen()
    assert asker.ask("b")


def test_answers_find_their_question_in_any_order(asker: Asker) -> None:
    asker.listen()
    assert asker.ask("a") and asker.ask("b")
    first, second = asker.questions()
    assert (first.topic, first.partition, first.segment_list_generation, first.value_a) == ("syslog", 3, 7, 100)
    asker.answer(second.token)
    asker.answer(first.token)
    asker.poller.poll(0)
    assert [(context, answer and answer.e, descriptor) for context, answer, descriptor in asker.answers] == [("b", 5, -1), ("a", 5, -1)]


def test_an_open_brings_a_descriptor(asker: Asker) -> None:
    asker.listen()
    asker.ask("a", OPEN)
    bell = os.eventfd(5)
    asker.answer(asker.questions()[0].token, OPEN, (bell,))
    os.close(bell)
    asker.poller.poll(0)
    ((_, _, descriptor),) = asker.answers
    assert os.eventfd_read(descriptor) == 5 and not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_a_deadline_ends_the_oldest_questions_first(asker: Asker) -> None:
    asker.listen()
    asker.ask("a")
    asker.clock.advance_ms(DEADLINE_MS // 2)
    asker.ask("b")
    asker.clock.advance_ms(DEADLINE_MS // 2)
    assert asker.expire() == 1 and asker.answers == [("a", None, -1)] and asker.failures() == 1
    asker.clock.advance_ms(DEADLINE_MS // 2)
    assert asker.expire() == 1 and asker.answers[1:] == [("b", None, -1)]
    assert asker.expire() == 0


def test_the_descriptor_of_a_late_answer_is_closed(asker: Asker) -> None:
    asker.listen()
    asker.ask("a", OPEN)
    (question,) = asker.questions()
    asker.clock.advance_ms(DEADLINE_MS)
    asker.expire()
    before = open_descriptors()
    bell = os.eventfd(0)
    asker.answer(question.token, OPEN, (bell,))
    os.close(bell)
    asker.poller.poll(0)
    assert asker.answers == [("a", None, -1)] and open_descriptors() <= before


def test_a_second_descriptor_in_one_answer_is_closed(asker: Asker) -> None:
    asker.listen()
    asker.ask("a", OPEN)
    (question,) = asker.questions()
    before = open_descriptors()
    bells = (os.eventfd(1), os.eventfd(2))
    asker.answer(question.token, OPEN, bells)
    for bell in bells:
        os.close(bell)
    asker.poller.poll(0)
    ((_, _, descriptor),) = asker.answers
    assert open_descriptors() - before == {descriptor}
    os.close(descriptor)


def test_a_closed_connection_fails_all_requests_and_the_next_incarnation_is_used(asker: Asker) -> None:
    asker.listen()
    asker.ask("a")
    asker.ask("b")
    asker.questions()
    assert asker.peer is not None and asker.listening is not None
    asker.peer.close()
    asker.listening.close()
    asker.poller.poll(0)
    assert asker.answers == [("a", None, -1), ("b", None, -1)] and asker.failures() == 2
    asker.peer = None
    assert not asker.ask("no log-reader")
    asker.listen()
    assert asker.ask("c")
    assert [question.token for question in asker.questions()] == [3]


def test_a_question_asked_of_a_dead_log_reader_ends_those_before_it(asker: Asker) -> None:
    asker.listen()
    asker.ask("a")
    asker.questions()
    assert asker.peer is not None
    asker.peer.close()
    assert not asker.ask("b")
    assert asker.answers == [("a", None, -1)]


def test_questions_wait_for_a_log_reader_that_does_not_read_up_to_a_bound_and_come_in_order(asker: Asker) -> None:
    asker.listen()
    asked = 0
    while asker.ask(asked):
        asked += 1
        assert asked <= 2 * UNSENT_MAX
    assert asked > UNSENT_MAX
    assert asker.failures() == 1 and asker.answers == []
    seen = [question.token for question in asker.questions()]
    while asker.poller.poll(0):
        seen += [question.token for question in asker.questions()]
    assert seen == list(range(1, asked + 1))


def test_a_callback_may_ask_again_while_a_hang_up_is_handled(asker: Asker) -> None:
    asker.listen()
    results: list[bool] = []
    asker.proxy.ask(LOOKUP, "syslog", 3, 7, 1, 2, lambda answer, descriptor: results.append(asker.ask("again")))
    asker.questions()
    assert asker.peer is not None
    asker.peer.close()
    asker.poller.poll(0)
    assert len(results) == 1
