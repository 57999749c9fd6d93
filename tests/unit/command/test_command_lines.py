"""Lines in (`millrace send`) and lines out (`millrace topic tail`)."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.client import messages
from appliance.client.fetch import PartitionRecords, StartAt
from appliance.command.failures import UsageProblem
from appliance.command.ingest_tap import tap_json, tap_line
from appliance.command.record_text import record_line
from appliance.command.search import Form, Printer, search
from appliance.command.send import Sending, read_chunks, send
from appliance.command.topic_tail import JsonFormat, LineFormat, TailProgress, TailRange, TemplateFormat, copy_records, value_filter
from appliance.records.batch import read_batch_header
from appliance.records.record import Record
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker, HangUp

RECORD = Record(41, 1000, b"host-7", b'{"a": 1}', (("source", b"10.0.0.1"), ("none", None)))


def test_a_record_without_severity_has_a_dash_in_its_place() -> None:
    assert record_line(0, b'{"message": "m"}', False).split(maxsplit=1)[1] == "- - -: m"
    assert record_line(0, b'{"message": "m", "severity": 3}', False).split(maxsplit=1)[1] == "- - 3: m"


def test_a_search_of_an_empty_interval_is_refused_and_counts_by_no_field_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageProblem, match=r"--until .* is not after --since"):
        search("x", since="1h", until="2h")
    printer = Printer(Form.LINES, topic="t", by="minut,host", shows_progress=False)
    printer.take({"count": {"by": [None, "web1"], "count": 3}})
    printer.take({"end": {"matches": 3, "scanned_bytes": 1, "notes": [], "unordered": 0, "stopped": "", "not_searched": []}})
    printer.finish(quiet=True)
    shown = capsys.readouterr()
    assert "web1" in shown.out and "no record has a field minut; of time there are second, minute" in shown.err and "field host" not in shown.err


def test_a_match_and_the_records_around_it_are_marked_and_groups_are_divided(capsys: pytest.CaptureFixture[str]) -> None:
    def record(offset: int, **around: Any) -> dict[str, Any]:
        return {"partition": 0, "offset": offset, "timestamp": 0, "value": f"line {offset}", **around}

    matches = [record(2, before=[record(1)], after=[record(3)]), record(4, after=[record(5)]), record(9)]
    for form in (Form.CONTEXT, Form.RAW, Form.JSON):
        printer = Printer(form, topic="t", by="", shows_progress=False)
        for each in matches:
            printer.take({"record": each})
        shown = capsys.readouterr().out.splitlines()
        if form is Form.CONTEXT:
            assert [line[:2] + line[-6:] * (line != "--") for line in shown] == ["  line 1", "> line 2", "  line 3", "> line 4", "  line 5", "--", "> line 9"]
        elif form is Form.RAW:
            assert shown == ["line 1", "line 2", "line 3", "line 4", "line 5", "line 9"]
        else:
            assert [len(json.loads(line).get("after", ())) for line in shown] == [1, 1, 0]
    with pytest.raises(UsageProblem, match=r"-A, -B, -C"):
        search("x", context=2, count=True)


class ListTail:
    """Gives what it was made with, then nothing."""

    def __init__(self, polls: list[list[PartitionRecords]]) -> None:
        self.polls = polls
        self.next_offsets: dict[int, int] = {}

    def poll(self, timeout_ms: int) -> list[PartitionRecords]:
        return self.polls.pop(0)


class ListProducer:
    """Keeps what it is given."""

    topic = "numbers"

    def __init__(self) -> None:
        self.taken: list[tuple[bytes | None, bytes | None]] = []
        self.handed_over: list[int] = []
        self.flushed = False

    @property
    def sent(self) -> int:
        return len(self.taken)

    acknowledged = sent

    def send(self, value: bytes | None, key: bytes | None = None) -> None:
        self.taken.append((key, value))

    def hand_over(self) -> None:
        self.handed_over.append(len(self.taken))

    def flush(self) -> None:
        self.flushed = True


def send_chunks(chunks: list[bytes], separator: bytes | None = None) -> ListProducer:
    producer: Any = ListProducer()
    Sending(producer, separator, show_progress=False).run(iter(chunks))
    assert producer.flushed
    return producer


@pytest.fixture
def broker() -> Iterator[FakeKafkaBroker]:
    made = FakeKafkaBroker()
    yield made
    made.close()


def test_a_response_that_was_lost_does_not_make_send_store_lines_twice(broker: FakeKafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_response(request: Any) -> dict[str, Any]:
        broker.produce(request)
        broker.answers[messages.PRODUCE] = broker.produce
        raise HangUp

    broker.answers[messages.PRODUCE] = lose_response
    read_end, write_end = os.pipe()
    os.write(write_end, b"one\ntwo\nthree\n")
    os.close(write_end)
    with os.fdopen(read_end) as lines:
        monkeypatch.setattr("sys.stdin", lines)
        send(TOPIC, bootstrap=str(broker.address))
    headers = [read_batch_header(batch) for batch in broker.appended[0]]
    assert len(headers) == 2 and headers[0] == headers[1], "the retry is the same batch under the same sequence"
    assert (headers[0].producer_id, headers[0].base_sequence, headers[0].records_count) == (77, 0, 3), "a broker recognises it"


def test_a_value_is_printed_byte_for_byte() -> None:
    assert LineFormat().format(0, RECORD) == b'{"a": 1}\n'
    assert LineFormat().format(0, RECORD._replace(value=b"\xff\x1b[2J")) == b"\xff\x1b[2J\n"
    assert LineFormat().format(0, RECORD._replace(value=None)) == b"\n"


def test_what_was_asked_for_goes_before_the_value() -> None:
    line = LineFormat(keys=True, headers=True, offsets=True)
    assert line.format(3, RECORD) == b'3:41\thost-7\tsource=10.0.0.1,none=null\t{"a": 1}\n'
    assert line.format(3, RECORD._replace(key=None, headers=())) == b'3:41\tnull\t\t{"a": 1}\n'


def test_a_terminal_never_gets_control_characters_of_a_record() -> None:
    shown = LineFormat(escape=True).format(0, RECORD._replace(value=b"a\tb\x1b[2J\x07\x7f\xff\xc2\x9b31m\r\n\xe2\x82\xac"))
    assert shown.decode() == "a\tb\\x1b[2J\\x07\\x7f\\xff\\x9b31m\\x0d\\x0a€\n"


def test_the_tail_ends_after_as_many_records_as_asked() -> None:
    records = [RECORD._replace(value=b"%d" % number) for number in range(5)]
    target = io.BytesIO()
    following: Any = ListTail([[PartitionRecords(0, records[:2])], [], [PartitionRecords(1, records[2:]), PartitionRecords(0, records)]])
    copy_records(following, LineFormat(), target, 4)
    assert target.getvalue() == b"0\n1\n2\n3\n"


def test_asking_for_no_record_reads_nothing() -> None:
    following: Any = ListTail([])
    copy_records(following, LineFormat(), io.BytesIO(), 0)


def test_lines_become_records_wherever_chunks_are_cut() -> None:
    text = b"one\n\ntwo\nthree"
    for cut in range(1, len(text)):
        assert send_chunks([text[:cut], text[cut:]]).taken == [(None, b"one"), (None, b""), (None, b"two"), (None, b"three")]


def test_a_last_line_with_its_newline_is_not_followed_by_an_empty_record() -> None:
    assert send_chunks([b"one\n"]).taken == [(None, b"one")]
    assert send_chunks([]).taken == []


def test_the_key_is_what_is_before_the_first_separator() -> None:
    assert send_chunks([b"k::v::w\nplain\n::v\n"], b"::").taken == [(b"k", b"v::w"), (None, b"plain"), (b"", b"v")]


def test_whole_lines_are_handed_over_when_the_input_pauses() -> None:
    producer = send_chunks([b"one\ntw", b"", b"o\n"])
    assert producer.handed_over == [1]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


def test_a_pause_of_the_input_is_reported_once(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    chunks = read_chunks(reading)
    os.write(writing, b"one\n")
    assert next(chunks) == b"one\n"
    assert next(chunks) == b""
    os.write(writing, b"two\n")
    assert next(chunks) == b"two\n"
    os.close(writing)
    assert list(chunks) == []


def test_a_tail_ends_at_its_ends_and_shows_matches_only() -> None:
    records = [RECORD._replace(offset=number, value=b"line %d" % number) for number in range(10)]
    target = io.BytesIO()
    following: Any = ListTail([[PartitionRecords(0, records[:4]), PartitionRecords(1, records[:2])], [PartitionRecords(0, records[4:])]])
    following.next_offsets = {0: 4, 1: 2}
    progress = TailProgress(matches=value_filter("line [13579]"), ends={0: 4, 1: 2})
    progress.next_offsets = following.next_offsets
    copy_records(following, LineFormat(), target, 0, progress)
    assert progress.is_over(following) and target.getvalue() == b""
    assert [record.offset for record in progress.wanted(0, records)] == [1, 3]
    assert progress.words() == "0 records; next offsets 0:4 1:2"


@pytest.mark.parametrize("levels", [101, 400, 990, 100_000])
def test_a_value_of_many_levels_is_shown_as_text(levels: int) -> None:
    value = b'{"a":' * levels + b"1" + b"}" * levels
    shown = json.loads(JsonFormat("t").format(0, RECORD._replace(value=value)))
    assert shown["value"] == value.decode()
    assert value.decode() in record_line(0, value, is_coloured=True)
    document = {"listener": "relp", "sender": "10.0.0.7:1", "topic": "t", "time_ms": 0, "value": value.decode()}
    assert json.loads(tap_json(document))["value"] == value.decode() and value.decode() in tap_line(document, is_coloured=False)


def test_a_record_as_json_and_by_a_template() -> None:
    shown = json.loads(JsonFormat("lines").format(3, RECORD))
    assert shown == {
        "topic": "lines", "partition": 3, "offset": 41, "timestamp": RECORD.timestamp, "key": "host-7",
        "headers": [{"name": "source", "value": "10.0.0.1"}, {"name": "none", "value": None}], "value": {"a": 1},
    }  # fmt: skip
    assert json.loads(JsonFormat("lines").format(3, RECORD._replace(value=b"\xff")))["value_base64"] == "/w=="
    assert TemplateFormat("lines", r"%t-%p:%o %k\t%s 100%%\n").format(3, RECORD) == b'lines-3:41 host-7\t{"a": 1} 100%\n'
    with pytest.raises(UsageProblem, match="%x is unknown"):
        TemplateFormat("lines", "%x")


def test_a_line_has_the_colour_of_its_severity() -> None:
    value = b'{"severity":3,"message":"no"}'
    shown = LineFormat(escape=True, colours=True).format(0, RECORD._replace(value=value))
    assert shown == b"\x1b[31m" + value + b"\x1b[0m\n"
    assert LineFormat(escape=True, colours=True).format(0, RECORD) == b'{"a": 1}\n'


def test_bounds_of_a_tail_that_contradict_each_other_are_refused() -> None:
    assert TailRange.chosen(False, "2h", None, None, False, 10_000_000) == (2_800_000, None, None, True)
    assert TailRange.chosen(False, None, None, None, True, 0) == (StartAt.EARLIEST, None, None, False)
    assert TailRange.chosen(False, None, "1h", 7, False, 3_600_001) == (StartAt.EARLIEST, 7, 1, False)
    for wrong in ((True, "2h", None, None, False, 0), (False, "soon", None, None, False, 0), (True, None, None, 3, False, 0)):
        with pytest.raises(UsageProblem):
            TailRange.chosen(*wrong)
    with pytest.raises(UsageProblem, match="no regular expression"):
        value_filter("(")
