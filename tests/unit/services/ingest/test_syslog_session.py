"""Plain syslog as a session, over streams and datagrams."""

from __future__ import annotations

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.protocols.session import DATAGRAM_HANDLERS, SESSIONS, DatagramHandler, handler_of, session_of
from services.ingest.protocols.syslog.syslog_framing import CutMessage
from services.ingest.protocols.syslog.syslog_session import SyslogSession
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.event import EventSource
from services.ingest.records.intake import Oddity
from tests.support.recording_connection import RecordingConnection
from tests.support.recording_intake import RecordingIntake

LISTENER = Listener("test", Protocol.SYSLOG, ListenerTransport.UDP, 0, message_bytes_max=10, idle_ms_max=5_000)


def test_both_framings_are_taken_under_one_ack_group_and_no_answer_is_sent() -> None:
    connection = RecordingConnection()
    session = SyslogSession(connection)
    session.received(b"7 <13>one7 <13>two")
    session.received(memoryview(b"<13>three\n<13>fo"))
    session.finished()
    assert connection.intake.messages == [b"<13>one", b"<13>two", b"<13>three", b"<13>fo"]
    assert len({id(unit) for unit, _ in connection.intake.taken}) == 1
    assert not connection.intake.closed and not connection.sent


def test_oddities_are_counted_once() -> None:
    connection = RecordingConnection(LISTENER)
    session = SyslogSession(connection)
    session.received(b"<13>a line that is too long\n<13>x\n")
    session.received(b"<13>y\n")
    assert connection.intake.oddities == {Oddity.TRUNCATED: 1}
    session.received(b"5 <13>aoops\n5 <13>b")
    assert connection.intake.oddities[Oddity.FRAMING_RESYNCHRONISED] == 1


def test_a_line_that_does_not_go_on_is_kept_and_its_sender_loses_its_place() -> None:
    connection = RecordingConnection(LISTENER)
    session = SyslogSession(connection)
    session.received(b"<13>x\n<13>un")
    for now_ms in range(0, 5_001, 1_000):
        session.tick(now_ms)
    assert not connection.is_closed
    session.received(b"fi")  # a byte now and then does not help
    session.tick(6_000)
    assert connection.closed == "idle"
    assert connection.intake.messages == [b"<13>x", b"<13>unfi"]


def test_a_sender_with_whole_lines_may_be_silent_for_ever() -> None:
    connection = RecordingConnection(LISTENER)
    session = SyslogSession(connection)
    session.received(b"<13>x\n")
    for now_ms in range(0, 1_000_000, 1_000):
        session.tick(now_ms)
    assert not connection.is_closed


def test_datagrams_lose_their_octet_count_and_are_cut_where_they_are_too_long() -> None:
    intake = RecordingIntake()
    handler: DatagramHandler = handler_of(Protocol.SYSLOG)(LISTENER, intake)
    unit = AckGroup(LISTENER, EventSource(b"192.0.2.7:1", b"192.0.2.7", b"udp"))
    handler.received(unit, [b"<13>one", b"7 <13>two", b"<13>far too long"])
    assert intake.messages == [b"<13>one", b"<13>two", b"<13>far to"]
    assert type(intake.messages[2]) is CutMessage and intake.oddities == {Oddity.TRUNCATED: 1}


def test_every_protocol_of_the_tables_is_there() -> None:
    assert all(callable(session_of(protocol)) for protocol in SESSIONS)
    assert all(callable(handler_of(protocol)) for protocol in DATAGRAM_HANDLERS)
