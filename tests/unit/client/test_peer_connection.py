from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ProtocolViolation
from appliance.client.address import Address
from appliance.client.peer_connection import PAUSE_MS_MAX, PAUSE_MS_QUICK, QUICK_PAUSES, PeerAnswer, PeerConnection, reconnect_pause_ms
from appliance.protocol import transaction_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.transaction_apis import TxnMarkerResult, WriteTxnMarkersRequest, WriteTxnMarkersResponse
from appliance.runtime.poller import Poller
from lab.scratch_layout import open_descriptors
from tests.support.scripted_peer import PeerRequest, ScriptedPeer, answer_frame, until

MARKERS = WriteTxnMarkersRequest()
WRITTEN = WriteTxnMarkersResponse((TxnMarkerResult(7),))
TIMEOUT_MS = 30_000


class Asking:
    """A connection, its poller and clock, and a peer that the test plays."""

    def __init__(self) -> None:
        self.poller = Poller()
        self.clock = ManualClock()
        self.peer = ScriptedPeer(self.turn)
        self.connection = PeerConnection(self.peer.address, "broker-1-test", self.poller, self.clock, None, answer_bytes_max=1 << 20)
        self.answers: list[Any] = []
        self._unanswered = 0

    def turn(self) -> None:
        self.poller.poll(1)
        self.connection.do_work(self.clock.monotonic_ns())

    def until(self, condition: Callable[[], object]) -> None:
        until(condition, self.turn, "it did not come to pass")

    def ask(self, timeout_ms: int = TIMEOUT_MS) -> None:
        self.connection.ask(transaction_apis.WRITE_TXN_MARKERS_REQUEST, transaction_apis.WRITE_TXN_MARKERS_RESPONSE, MARKERS, self.answers.append, timeout_ms)

    def answer(self, request: PeerRequest, response: WriteTxnMarkersResponse = WRITTEN) -> None:
        self.peer.answer(request, transaction_apis.WRITE_TXN_MARKERS_RESPONSE.encode(request.version, response))

    def until_answered(self, count: int = 1) -> list[Any]:
        self.until(lambda: len(self.answers) >= count)
        return self.answers

    def close(self) -> None:
        self.connection.close()
        self.peer.die()
        self.poller.close()


@pytest.fixture
def asking() -> Iterator[Asking]:
    before = open_descriptors()
    made = Asking()
    yield made
    made.close()
    assert open_descriptors() == before


def test_a_question_is_answered_in_the_newest_version_of_both(asking: Asking) -> None:
    asking.ask()
    request = asking.peer.next_request()
    assert (request.api_key, request.version, request.client_id) == (ApiKey.WRITE_TXN_MARKERS, 2, "broker-1-test")
    asking.answer(request)
    assert asking.until_answered() == [WRITTEN]
    assert asking.connection.is_ready and not asking.connection.under_way and not asking.connection.problem


def test_the_first_request_opens_the_connection(asking: Asking) -> None:
    for _ in range(3):
        asking.turn()
    asking.ask()
    asking.peer.next_request()
    assert asking.peer.accepted == 1


def test_requests_are_sent_one_behind_the_other_and_answered_in_order(asking: Asking) -> None:
    for producer_id in range(3):
        asking.ask()
        request = asking.peer.next_request()  # none waits for the answer of the one before
        asking.answer(request, WriteTxnMarkersResponse((TxnMarkerResult(producer_id),)))
    answers = asking.until_answered(3)
    assert [answer.markers[0].producer_id for answer in answers] == [0, 1, 2]


def test_an_answer_that_trickles_in_is_whole_in_the_end(asking: Asking) -> None:
    asking.ask()
    request = asking.peer.next_request()
    frame = answer_frame(request, transaction_apis.WRITE_TXN_MARKERS_RESPONSE.encode(request.version, WRITTEN))
    for byte in frame:
        assert not asking.answers
        asking.peer.send(bytes([byte]))
        asking.turn()
    assert asking.until_answered() == [WRITTEN]


def test_what_is_under_way_when_the_peer_hangs_up_is_lost_and_the_next_question_finds_a_new_connection(asking: Asking) -> None:
    asking.ask()
    asking.ask()
    asking.peer.next_request()
    asking.peer.hang_up()
    assert asking.until_answered(2) == [None, None]
    assert asking.connection.problem == "it closed the connection"
    asking.clock.advance_ms(PAUSE_MS_QUICK)
    asking.ask()
    asking.answer(asking.peer.next_request())
    assert asking.until_answered(3)[2] == WRITTEN
    assert asking.peer.accepted == 2


def test_a_peer_that_closes_an_idle_connection_has_done_nothing_wrong(asking: Asking) -> None:
    asking.ask()
    asking.answer(asking.peer.next_request())
    asking.until_answered()
    asking.peer.hang_up()
    asking.until(lambda: not asking.connection.is_ready)
    assert not asking.connection.problem and not asking.connection.failures
    asking.ask()  # no pause is due
    asking.answer(asking.peer.next_request())
    assert asking.until_answered(2) == [WRITTEN, WRITTEN]


def test_a_box_that_is_away_is_tried_again_at_growing_pauses(asking: Asking) -> None:
    asking.peer.die()
    for failures in range(1, 5):
        asking.ask()
        asking.until_answered(failures)
        assert asking.answers[-1] is None and asking.connection.failures == failures
        assert asking.connection.problem == "connection refused"
        asking.ask()
        asking.clock.advance_ms(reconnect_pause_ms(failures - 1) - 1)
        asking.turn()
        assert asking.connection.failures == failures
        asking.clock.advance_ms(1)
        asking.until(lambda failures=failures: asking.connection.failures == failures + 1)
        asking.answers.pop()
        asking.connection.failures = failures
        asking.clock.advance_ms(PAUSE_MS_QUICK)
    asking.peer.come_back()
    asking.ask()
    asking.answer(asking.peer.next_request())
    asking.until(lambda: asking.answers[-1] == WRITTEN)
    assert not asking.connection.failures


def test_pauses_are_short_for_a_while_and_bounded() -> None:
    assert [reconnect_pause_ms(failures) for failures in (0, 1, 2, 3, 50)] == [20, 40, 80, PAUSE_MS_QUICK, PAUSE_MS_QUICK]
    assert reconnect_pause_ms(QUICK_PAUSES) == reconnect_pause_ms(10_000) == PAUSE_MS_MAX


def test_a_request_without_a_reply_in_time_closes_the_connection(asking: Asking) -> None:
    asking.ask(timeout_ms=1_000)
    asking.ask()
    asking.peer.next_request()
    asking.clock.advance_ms(999)
    asking.turn()
    assert not asking.answers
    asking.clock.advance_ms(1)
    assert asking.until_answered(2) == [None, None]
    assert not asking.connection.is_ready and asking.connection.problem == "it did not answer in time"


def test_a_peer_that_accepts_and_says_nothing_is_given_up(asking: Asking) -> None:
    asking.ask()
    asking.peer.accept()
    asking.turn()
    asking.clock.advance_ms(5_001)
    assert asking.until_answered() == [None]
    assert asking.connection.problem == "it could not be reached in time"


def test_a_question_waits_no_longer_than_its_time_for_a_pause_to_end(asking: Asking) -> None:
    asking.peer.die()
    asking.ask()
    asking.until_answered()
    asking.ask(timeout_ms=10)
    asking.clock.advance_ms(11)
    assert asking.until_answered(2) == [None, None]
    assert asking.connection.failures == 1


def test_a_version_that_the_peer_does_not_serve_is_no_answer_and_no_hang_up(asking: Asking) -> None:
    asking.connection.ask(
        transaction_apis.END_TXN_REQUEST, transaction_apis.END_TXN_RESPONSE, None, asking.answers.append, TIMEOUT_MS, version_min=90, version_max=99
    )
    asking.ask()
    asking.answer(asking.peer.next_request())
    assert asking.until_answered(2) == [WRITTEN, None] or asking.answers == [None, WRITTEN]
    assert asking.connection.is_ready
    assert "API 26 in versions 0 to 5, 90 to 99 are asked for" in asking.connection.problem


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (struct.pack(">i", 1 << 30), "an answer of 1073741824 bytes"),
        (struct.pack(">i", -1), "a frame of -1 bytes"),
        (struct.pack(">i", 3), "an answer of 3 bytes"),
        (struct.pack(">iiB", 5, 77, 0), "an answer to request 77 while 2 was due"),
        (struct.pack(">iiB", 5, 2, 200), "response header v1 cannot be read"),
        (struct.pack(">iiBBB", 7, 2, 0, 200, 200), "WriteTxnMarkers response v2"),
    ],
)
def test_a_peer_that_breaks_the_protocol_is_hung_up_on(asking: Asking, frame: bytes, problem: str) -> None:
    asking.ask()
    assert asking.peer.next_request().correlation_id == 2
    asking.peer.send(frame)
    assert asking.until_answered() == [None]
    assert asking.connection.problem.startswith("it breaks the protocol: ") and problem in asking.connection.problem
    assert not asking.connection.is_ready


def test_an_answer_to_no_question_is_a_breach(asking: Asking) -> None:
    asking.ask()
    request = asking.peer.next_request()
    asking.answer(request)
    asking.until_answered()
    asking.answer(request)
    asking.until(lambda: not asking.connection.is_ready)
    assert asking.answers == [WRITTEN]


def test_a_peer_that_refuses_to_tell_its_versions_is_none_of_ours(asking: Asking) -> None:
    asking.peer.answers_versions = False
    asking.ask()
    asking.peer.refuse_versions(asking.peer.next_request())
    assert asking.until_answered() == [None]
    assert "ApiVersions 3 is refused" in asking.connection.problem


def test_a_reply_is_received_into_the_buffer_of_its_owner_and_waits_for_one(asking: Asking) -> None:
    home = memoryview(bytearray(1 << 20))
    places: list[memoryview | None] = [None, None, home[100:]]
    sizes: list[int] = []

    def take(size_bytes: int) -> memoryview | None:
        sizes.append(size_bytes)
        return places.pop(0)

    def encode(version: int) -> bytes:
        return transaction_apis.WRITE_TXN_MARKERS_REQUEST.encode(version, MARKERS)

    asking.connection.request(ApiKey.WRITE_TXN_MARKERS, 0, 1, encode, asking.answers.append, TIMEOUT_MS, take)
    request = asking.peer.next_request()
    body = b"x" * 300_000
    asking.peer.answer(request, body)
    (answer,) = asking.until_answered()
    assert isinstance(answer, PeerAnswer) and sizes == [5 + len(body)] * 3
    assert (answer.version, answer.position, answer.limit) == (1, 5, 5 + len(body))
    assert home[105 : 105 + len(body)] == body


def test_a_connection_may_be_closed_and_asked_again_from_within_an_answer(asking: Asking) -> None:
    def first(body: object) -> None:
        asking.answers.append(body)
        asking.connection.close()
        asking.ask()

    asking.connection.ask(transaction_apis.WRITE_TXN_MARKERS_REQUEST, transaction_apis.WRITE_TXN_MARKERS_RESPONSE, MARKERS, first, TIMEOUT_MS)
    asking.answer(asking.peer.next_request())
    asking.until_answered()
    asking.peer.hang_up()
    asking.answer(asking.peer.next_request())
    assert asking.until_answered(2) == [WRITTEN, WRITTEN]


def test_a_reader_that_cannot_read_an_answer_ends_the_connection(asking: Asking) -> None:
    def refuse(answer: PeerAnswer | None) -> None:
        asking.answers.append(answer)
        raise ProtocolViolation("peer-answer", "nonsense")

    asking.connection.request(ApiKey.WRITE_TXN_MARKERS, 0, 1, lambda _version: b"\1\0", refuse, TIMEOUT_MS)
    asking.ask()
    asking.answer(asking.peer.next_request())
    asking.until_answered(2)
    assert asking.answers[1] is None and asking.connection.problem == "it breaks the protocol: nonsense"


def test_a_box_that_moved_is_asked_where_it_is_now(asking: Asking) -> None:
    asking.ask()
    asking.peer.next_request()
    other = ScriptedPeer(asking.turn)
    asking.connection.set_address(other.address)
    assert asking.until_answered() == [None]
    asking.ask()
    request = other.next_request()
    other.answer(request, transaction_apis.WRITE_TXN_MARKERS_RESPONSE.encode(request.version, WRITTEN))
    assert asking.until_answered(2) == [None, WRITTEN]
    asking.connection.close()
    other.die()


def test_a_name_is_looked_up_without_waiting(asking: Asking) -> None:
    asking.connection.set_address(Address("localhost", asking.peer.address.port))
    asking.ask()
    asking.connection.do_work(asking.clock.monotonic_ns())
    asking.answer(asking.peer.next_request())
    assert asking.until_answered() == [WRITTEN]


def test_a_host_that_does_not_exist_is_a_failure(asking: Asking) -> None:
    asking.connection.set_address(Address("no host has a blank", 1))
    asking.ask()
    asking.until_answered()
    assert asking.answers == [None] and asking.connection.problem == "there is no host no host has a blank"
