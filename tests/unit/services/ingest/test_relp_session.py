"""A RELP session, settled by hand."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.protocols.syslog.relp_session import RelpSession
from services.ingest.records.ack_group import AckOutcome, digest_of
from services.ingest.records.intake import Oddity, RefusedReason
from tests.support.recording_connection import RecordingConnection

OPEN = b"1 open 52 relp_version=0\nrelp_software=x\ncommands=syslog,other\n"
OPENED = b"1 rsp 60 200 OK\nrelp_version=0\nrelp_software=millrace\ncommands=syslog\n"


def make(**options: Any) -> tuple[RelpSession, RecordingConnection]:
    connection = RecordingConnection(Listener("relp", Protocol.RELP, ListenerTransport.TCP, 0)._replace(**options))
    return RelpSession(connection), connection


def opened(**options: Any) -> tuple[RelpSession, RecordingConnection]:
    session, connection = make(**options)
    session.received(OPEN)
    assert connection.take_sent() == OPENED
    return session, connection


def lines(first: int, *texts: bytes) -> bytes:
    return b"".join(b"%d syslog %d %b\n" % (first + index, len(text), text) for index, text in enumerate(texts))


def test_a_burst_is_one_unit_and_is_answered_when_it_is_settled_and_not_before() -> None:
    session, connection = opened()
    session.received(lines(2, b"<13>one", b"<13>two"))
    (unit,) = connection.intake.in_flight
    assert connection.intake.messages == [b"<13>one", b"<13>two"]
    assert unit.identities == [digest_of(b"<13>one"), digest_of(b"<13>two")]
    assert unit.stream is connection.intake.streams[0]
    assert connection.take_sent() == b"" and session.unacknowledged_bytes > 0
    connection.intake.complete(unit)
    assert connection.take_sent() == b"2 rsp 6 200 OK\n3 rsp 6 200 OK\n"
    assert session.unacknowledged_bytes == 0


def test_answers_keep_the_order_of_frames_whatever_settles_first() -> None:
    session, connection = opened()
    session.received(lines(2, b"a"))
    session.received(lines(3, b"b"))
    first, second = connection.intake.in_flight
    connection.intake.complete(second, AckOutcome.DUPLICATE)
    assert connection.take_sent() == b""
    connection.intake.complete(first)
    assert connection.take_sent() == b"2 rsp 6 200 OK\n3 rsp 6 200 OK\n"


def test_a_line_that_can_never_be_stored_is_answered_500_and_the_others_are_not_held_back() -> None:
    session, connection = opened()
    session.received(lines(2, b"a", b"b", b"c"))
    connection.intake.complete(connection.intake.in_flight[0], rejected=[(1, "record too\nlarge")])
    assert connection.take_sent() == b"2 rsp 6 200 OK\n3 rsp 20 500 record too large\n4 rsp 6 200 OK\n"
    assert not connection.is_closed


def test_what_is_refused_for_now_is_not_answered_and_the_sender_is_sent_away_with_it() -> None:
    """librelp forgets a frame that is answered 500; it brings an unanswered one again."""
    session, connection = opened()
    for number in (2, 3, 4):
        session.received(lines(number, b"x"))
    first, second, third = connection.intake.in_flight
    connection.intake.complete(third)
    connection.intake.complete(second, AckOutcome.REFUSED)
    connection.intake.complete(first)
    assert connection.take_sent() == b"2 rsp 6 200 OK\n0 serverclose 0\n"
    assert connection.closed == "relp-refused"


def test_a_close_is_answered_behind_everything_before_it() -> None:
    session, connection = opened()
    session.received(lines(2, b"a") + b"3 close 0\n")
    assert connection.take_sent() == b"" and not connection.is_closed
    connection.intake.complete_all()
    assert connection.take_sent() == b"2 rsp 6 200 OK\n3 rsp 0\n0 serverclose 0\n"
    assert connection.closed == "relp-closed"
    session.lost()
    assert connection.intake.streams[0].ends == [True, False]


@pytest.mark.parametrize(
    ("stream", "answer", "reason"),
    [
        (b"1 syslog 1 x\n", b"1 rsp 27 500 the session is not open\n0 serverclose 0\n", "relp-not-open"),
        (OPEN + lines(3, b"x"), OPENED + b"3 rsp 30 500 transaction 2 was expected\n0 serverclose 0\n", "relp-transaction-order"),
        (OPEN + b"2 open 15 commands=syslog\n", OPENED + b"2 rsp 31 500 the session is open already\n0 serverclose 0\n", "relp-opened-twice"),
        (OPEN + b"rubbish", OPENED + b"0 serverclose 0\n", "relp-bad-frame"),
        (OPEN + b"2 syslog 99999999 ", OPENED + b"0 serverclose 0\n", "relp-frame-too-large"),
    ],
)
def test_mistakes_are_answered_in_relps_words_and_end_the_session(stream: bytes, answer: bytes, reason: str) -> None:
    session, connection = make()
    session.received(stream)
    assert connection.take_sent() == answer
    assert connection.closed == reason
    assert connection.intake.refused.total() == 1
    session.received(lines(2, b"late"))
    assert connection.intake.messages == []


def test_an_offer_without_syslog_is_refused() -> None:
    session, connection = make()
    session.received(b"1 open 13 commands=mail\n")
    assert connection.take_sent().startswith(b"1 rsp 63 500 ")
    assert connection.closed == "relp-no-syslog"


def test_what_came_before_a_mistake_is_stored_and_answered() -> None:
    session, connection = opened()
    session.received(lines(2, b"good") + b"rubbish\n")
    assert connection.intake.messages == [b"good"] and not connection.is_closed
    connection.intake.complete_all()
    assert connection.take_sent() == b"2 rsp 6 200 OK\n0 serverclose 0\n"
    assert connection.closed == "relp-bad-frame" and connection.intake.refused[RefusedReason.MALFORMED] == 1


def test_an_unknown_command_gets_an_error_and_the_session_continues() -> None:
    session, connection = opened()
    session.received(b"2 starttls 0\n" + lines(3, b"x"))
    assert connection.take_sent() == b"2 rsp 33 500 command starttls is not known\n"
    assert connection.intake.messages == [b"x"]


def test_a_frame_that_is_sent_again_while_it_is_under_way_is_taken_once_and_answered_once() -> None:
    session, connection = opened()
    session.received(lines(2, b"slow", b"too"))
    session.received(lines(2, b"slow"))
    session.received(lines(4, b"next"))
    assert connection.intake.messages == [b"slow", b"too", b"next"]
    connection.intake.complete_all()
    assert connection.take_sent() == b"2 rsp 6 200 OK\n3 rsp 6 200 OK\n4 rsp 6 200 OK\n"


def test_transactions_go_round() -> None:
    session, connection = make()
    session.received(OPEN.replace(b"1 open", b"999999998 open"))
    session.received(b"999999999 syslog 1 a\n1 syslog 1 b\n2 syslog 1 c\n")
    connection.take_sent()
    connection.intake.complete_all()
    assert connection.take_sent() == b"999999999 rsp 6 200 OK\n1 rsp 6 200 OK\n2 rsp 6 200 OK\n"


def test_a_long_line_is_cut_and_counted() -> None:
    session, connection = opened(message_bytes_max=100)
    session.received(lines(2, b"x" * 150))
    assert connection.intake.messages == [b"x" * 100]
    assert connection.intake.oddities[Oddity.TRUNCATED] == 1


def test_a_lost_session_sends_no_answer_and_its_stream_is_marked_as_broken() -> None:
    session, connection = opened()
    session.received(lines(2, b"x"))
    session.lost()
    connection.intake.complete_all()
    assert connection.take_sent() == b""
    assert connection.intake.streams[0].ends == [False]


def test_a_frame_that_does_not_go_on_ends_the_session_and_an_idle_one_does_not() -> None:
    session, connection = opened(idle_ms_max=5_000)
    for now_ms in range(0, 100_000, 1_000):
        session.tick(now_ms)
    assert not connection.is_closed
    session.received(b"2 sysl")
    for now_ms in range(100_000, 107_000, 1_000):
        session.tick(now_ms)
    assert connection.closed == "idle" and connection.intake.refused[RefusedReason.TIMED_OUT] == 1


def test_a_sender_that_leaves_with_every_answer_has_them_and_one_that_does_not_may_come_again() -> None:
    """Many leave without a `close`; the same lines in their next session are new then."""
    for has_delivered, ends in ((True, [True, False]), (False, [False])):
        session, connection = opened()
        session.received(lines(2, b"start", b"done"))
        connection.intake.complete(connection.intake.in_flight[0])
        connection.has_delivered = has_delivered
        session.finished()
        session.lost()
        assert connection.intake.streams[0].ends == ends


def test_what_comes_before_a_close_is_answered_before_it_even_if_it_is_held_back() -> None:
    session, connection = opened()
    session.received(lines(2, b"start", b"done") + b"4 close 0\n")
    (stream,) = connection.intake.streams
    assert stream.is_hurried and stream.ends == [] and connection.take_sent() == b""
    session.finished()  # it said so: nothing of it comes again
    assert not stream.has_left
    connection.intake.complete(connection.intake.in_flight[0])
    assert connection.take_sent() == b"2 rsp 6 200 OK\n3 rsp 6 200 OK\n4 rsp 0\n0 serverclose 0\n"
    assert stream.ends == [True] and connection.closed == "relp-closed"


def test_a_sender_that_ends_its_side_with_answers_due_waits_for_them() -> None:
    session, connection = opened()
    session.received(lines(2, b"start"))
    session.finished()
    assert connection.intake.streams[0].has_left and connection.intake.streams[0].ends == []


def test_half_a_frame_at_the_end_is_counted() -> None:
    session, connection = opened()
    session.received(lines(2, b"start")[:-3])
    session.finished()
    session.lost()
    assert connection.intake.refused == {RefusedReason.INCOMPLETE: 1} and not connection.intake.messages
