"""systemd-journal-upload: export format by the piece, cursors as identities, one answer at the end."""

from __future__ import annotations

import gzip
import struct
import zlib

import cramjam
import orjson
import pytest

from services.ingest.protocols.http import journal_upload
from services.ingest.protocols.http.journal_export import BadExport, JournalExportReader
from services.ingest.records.ack_group import AckOutcome
from services.ingest.records.intake import RefusedReason
from tests.support.http_talk import LISTENER, HttpTalk, Response, chunked

TYPE = "application/vnd.fdo.journal"


def entry(number: int, **fields: bytes) -> bytes:
    """An entry as systemd exports it: text as a line, anything else with its size."""
    known = {
        "__CURSOR": b"s=6a8;i=%x;b=f0" % number,
        "__REALTIME_TIMESTAMP": b"%d" % (1_760_000_000_123_456 + number),
        "_HOSTNAME": b"web-1",
        "PRIORITY": b"3",
        "SYSLOG_FACILITY": b"4",
        "SYSLOG_IDENTIFIER": b"sshd",
        "_PID": b"812",
        "MESSAGE": b"line %d" % number,
    }
    return b"".join(field(name, value) for name, value in (known | fields).items()) + b"\n"


def field(name: str, value: bytes) -> bytes:
    is_line = b"\n" not in value and value.isascii()
    return b"%b=%b\n" % (name.encode(), value) if is_line else name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"


BINARY = b"first\n\nMESSAGE=not a field\n\xff"
JOURNAL = entry(1) + entry(2, MESSAGE=BINARY) + entry(3, MESSAGE=b"") + entry(4, MESSAGE=b"\n" * 10) + entry(5)


def upload(talk: HttpTalk, *pieces: bytes, step: int = 0) -> list[Response]:
    return talk.ask(chunked("/upload", *pieces, Content_Type=TYPE), step)


def test_entries_are_events_of_the_journal_s_own_fields() -> None:
    talk = HttpTalk()
    assert [answer.status for answer in upload(talk, JOURNAL)] == [202]
    document = orjson.loads(talk.intake.records[0].value)
    assert document["time"] == "2025-10-09T08:53:20.123Z" and document["event_time_ns"] == 1_760_000_000_123_457_000
    assert (document["host"], document["app"], document["proc_id"], document["severity"], document["facility"]) == ("web-1", "sshd", "812", 3, 4)
    assert document["message"] == "line 1" and document["fields"]["__CURSOR"] == "s=6a8;i=1;b=f0"
    binary = orjson.loads(talk.intake.records[1].value)
    assert binary["message"] == "first\n\nMESSAGE=not a field\n�" and len(binary["bytes_base64"]) == 1


@pytest.mark.parametrize("step", [1, 3, 7, 100])
def test_a_journal_split_anywhere_is_the_same_journal(step: int) -> None:
    whole, pieces = HttpTalk(), HttpTalk()
    upload(whole, JOURNAL)
    upload(pieces, *[JOURNAL[start : start + 11] for start in range(0, len(JOURNAL), 11)], step=step)
    assert [record.value for record in pieces.intake.records] == [record.value for record in whole.intake.records]
    assert len(whole.intake.records) == 5
    assert [unit.identities for unit in whole.intake.closed] == [[each for unit in pieces.intake.closed for each in unit.identities or ()]]


def test_parts_are_taken_and_settled_while_the_body_goes_on() -> None:
    talk = HttpTalk()
    talk.send(chunked("/upload", entry(1) + entry(2)[:-5], Content_Type=TYPE, Expect="100-continue")[: -len(b"0\r\n\r\n")])
    assert talk.connection.take_sent() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert len(talk.intake.records) == 1 and talk.session.unacknowledged_bytes > 0
    talk.intake.complete_all()
    assert talk.session.unacknowledged_bytes == 0
    talk.session.tick(talk.intake.clock_ms + 1_000_000_000)
    assert not talk.connection.closed, "a journal may have nothing to say for days"
    rest = entry(2)[-5:]
    talk.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest))
    assert len(talk.intake.records) == 2 and not talk.answers()
    talk.intake.complete_all()
    assert [answer.status for answer in talk.answers()] == [202]


def test_one_part_that_is_refused_refuses_the_body() -> None:
    talk = HttpTalk()
    talk.send(chunked("/upload", entry(1), entry(2), Content_Type=TYPE))
    first, second = talk.intake.in_flight
    talk.intake.complete(first, AckOutcome.REFUSED)
    talk.intake.complete(second)
    assert [answer.status for answer in talk.answers()] == [503]


def test_a_cursor_is_the_identity_of_its_entry_and_an_entry_without_one_has_none() -> None:
    talk = HttpTalk()
    upload(talk, entry(1) + b"MESSAGE=no cursor\n\n" + entry(1) + entry(2))
    first, without, last = talk.intake.closed
    assert without.identities is None and first.identities is not None and last.identities is not None
    assert first.identities[0] == last.identities[0] != last.identities[1]


def test_values_of_one_name_are_a_list() -> None:
    talk = HttpTalk()
    upload(talk, entry(1)[:-1] + b"TAG=a\nTAG=b\n\n")
    assert orjson.loads(talk.intake.records[0].value)["fields"]["TAG"] == ["a", "b"]


@pytest.mark.parametrize("large", [b"x" * 2000, b"\n" * 2000])
@pytest.mark.parametrize("step", [0, 1, 500])
def test_an_entry_over_the_limit_is_counted_and_the_next_one_taken(large: bytes, step: int) -> None:
    talk = HttpTalk(LISTENER._replace(frame_bytes_max=1000))
    assert [answer.status for answer in upload(talk, entry(1), entry(2, MESSAGE=large), entry(3), step=step)] == [202]
    assert len(talk.intake.records) == 2 and talk.intake.refused == {RefusedReason.TOO_LARGE: 1}


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_an_entry_at_the_limit_is_the_same_however_it_is_cut(step: int) -> None:
    stream = b"A=" + b"x" * 95 + b"\n\n" + b"A=" + b"x" * 97 + b"\n\n" + b"A=" + b"x" * 98 + b"\n\n"  # 98, 100 and 101 bytes with their line breaks
    reader = JournalExportReader(100)
    entries = [entry for start in range(0, len(stream), step) for entry in reader.feed(stream[start : start + step])]
    assert [entry is not None for entry in entries] == [True, True, False]


def test_a_body_that_ends_inside_an_entry_is_400_and_what_was_whole_is_stored() -> None:
    talk = HttpTalk()
    assert [answer.status for answer in upload(talk, entry(1) + entry(2)[:-1])] == [400]
    assert len(talk.intake.records) == 1 and talk.intake.refused == {RefusedReason.INCOMPLETE: 1}


def test_what_is_no_export_format_is_400_while_the_body_still_goes_on() -> None:
    talk = HttpTalk()
    talk.send(chunked("/upload", b"MESSAGE\n\x01\0\0\0\0\0\0\0ab", Content_Type=TYPE)[: -len(b"0\r\n\r\n")])
    assert [answer.status for answer in talk.answers()] == [400] and talk.intake.refused == {RefusedReason.MALFORMED: 1}


def test_a_connection_lost_inside_the_body_leaves_what_was_whole() -> None:
    talk = HttpTalk()
    talk.send(chunked("/upload", entry(1), Content_Type=TYPE)[: -len(b"0\r\n\r\n")])
    talk.session.lost()
    talk.intake.complete_all()
    assert len(talk.intake.records) == 1 and not talk.connection.sent


def test_a_compressed_journal_is_opened_as_it_comes_and_another_type_is_415() -> None:
    talk = HttpTalk()
    body = zlib.compress(JOURNAL)
    assert [answer.status for answer in talk.ask(chunked("/upload", body[:50], body[50:], Content_Type=TYPE, Content_Encoding="deflate"))] == [202]
    assert len(talk.intake.records) == 5
    assert [answer.status for answer in talk.ask(chunked("/upload", b"x", Content_Type="text/plain"))] == [415]
    assert talk.intake.refused[RefusedReason.NO_INPUT] == 1


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_a_piece_that_opens_to_too_many_entries_is_413(coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_upload, "PIECE_ENTRIES_MAX", 1_000)
    monkeypatch.setattr(journal_upload, "READ_BYTES", 400)
    compress = {"gzip": gzip.compress, "zstd": lambda data: bytes(cramjam.zstd.compress(data))}[coding]
    talk = HttpTalk()
    answers = talk.ask(chunked("/upload", compress(b"A=\n\n" * 100_000), Content_Type=TYPE, Content_Encoding=coding))
    assert [answer.status for answer in answers] == [413] and talk.intake.refused == {RefusedReason.TOO_LARGE: 1}
    assert len(talk.intake.records) <= 1_100
    assert [answer.status for answer in HttpTalk().ask(chunked("/upload", compress(JOURNAL), Content_Type=TYPE, Content_Encoding=coding))] == [202]


def test_a_slow_sender_of_a_large_value_costs_no_search_from_its_start_per_byte() -> None:
    reader = JournalExportReader(1 << 20)
    reader.feed(b"MESSAGE\n" + struct.pack("<Q", 500_000))
    for _ in range(5_000):
        assert not reader.feed(b"\n" * 100)
    assert reader.feed(b"\n\n") == [{b"MESSAGE": b"\n" * 500_000}]


@pytest.mark.parametrize("stream", [b"=value\n\n", b"N" * 300 + b"\n", b"NAME\n\x02\0\0\0\0\0\0\0abX"])
def test_bad_export_is_found(stream: bytes) -> None:
    with pytest.raises(BadExport):
        JournalExportReader(1000).feed(stream)


@pytest.mark.parametrize("step", [1, 17, 100])
def test_a_name_that_does_not_end_is_found_in_whatever_pieces_it_comes(step: int) -> None:
    reader, stream = JournalExportReader(10_000), b"M" * 300
    with pytest.raises(BadExport, match="a name of a field does not end"):
        for start in range(0, len(stream), step):
            reader.feed(stream[start : start + step])
