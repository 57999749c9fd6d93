"""Splunk's collector: events and lines become records, its own codes say what is wrong, and acknowledgements are true only of what is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest

from appliance.senders.listener import Token
from services.ingest.protocols.http.http_endpoints import FoundPath, find_path
from services.ingest.protocols.splunk import splunk_acks, splunk_events, splunk_hec
from services.ingest.protocols.splunk.splunk_acks import AckLedger
from services.ingest.protocols.splunk.splunk_hec import CHANNEL_BYTES_MAX
from services.ingest.records.ack_group import AckGroup, AckOutcome
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import RefusedReason
from tests.support.http_talk import LISTENER, HttpTalk, request
from tests.support.recording_intake import RecordingIntake
from tests.unit.services.ingest.http_requests import Asked, ask, documents, stored

EVENT, RAW, ACK = "/services/collector/event", "/services/collector/raw", "/services/collector/ack"
CHANNEL = {b"x-splunk-request-channel": b"FE0ECFAD-13D5-401B-847D-77833BD77131"}


@pytest.fixture(autouse=True)
def new_incarnation(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """No acknowledgements of other tests; called, none of this one either."""

    def begin() -> None:
        monkeypatch.setattr(splunk_hec.COLLECTOR, "_acks", AckLedger())

    begin()
    return begin


def ask_acks(intake: RecordingIntake, *ack_ids: int, headers: dict[bytes, bytes] = CHANNEL) -> dict[str, bool]:
    answer: dict[str, bool] = ask(intake, ACK, orjson.dumps({"acks": ack_ids}), headers=headers).json["acks"]
    return answer


def send(intake: RecordingIntake, text: str = "hello", headers: dict[bytes, bytes] = CHANNEL) -> int:
    ack_id: int = ask(intake, EVENT, orjson.dumps({"event": text}), headers=headers).json["ackId"]
    return ack_id


def test_an_event_is_a_record_and_its_envelope_says_where_and_when() -> None:
    intake = RecordingIntake()
    envelope = {
        "time": 1_760_000_000.123,
        "host": "web-1",
        "source": "/var/log/x",
        "sourcetype": "nginx",
        "index": "main",
        "fields": {"dc": "fra", "ids": [1, 2]},
    }
    asked = stored(intake, EVENT, orjson.dumps({**envelope, "event": {"message": "hello", "level": "warn", "deep": {"a": 1}}, "unknown": 7}))
    assert asked.json == {"text": "Success", "code": 0}
    (record,), (document,) = intake.records, documents(intake)
    assert (record.host, record.app, record.severity, record.time_ms) == ("web-1", "nginx", 4, 1_760_000_000_123)
    assert record.labels == {"source": "/var/log/x", "sourcetype": "nginx", "index": "main", "dc": "fra", "ids": [1, 2]}
    assert document["message"] == "hello" and document["fields"]["deep"] == {"a": 1} and document["fields"]["unknown"] == 7


@pytest.mark.parametrize("between", [b"", b" ", b"\n", b"\r\n\r\n"])
def test_events_follow_each_other_with_or_without_white_space(between: bytes) -> None:
    intake = RecordingIntake()
    events = [orjson.dumps({"event": text}) for text in ("one", 'a "}{" in a text', "}{", "four")]
    stored(intake, EVENT, between.join(events) + between)
    assert [document["message"] for document in documents(intake)] == ["one", 'a "}{" in a text', "}{", "four"]


@pytest.mark.parametrize(("time", "time_ms"), [("1760000000", 1_760_000_000_000), ("1760000000.5", 1_760_000_000_500), (1_760_000_000_123, 1_760_000_000_123)])
def test_a_time_is_a_number_or_its_text(time: object, time_ms: int) -> None:
    intake = RecordingIntake()
    stored(intake, EVENT, orjson.dumps({"event": "x", "time": time}))
    assert intake.records[0].time_ms == time_ms


def test_what_is_no_text_and_no_object_is_a_message_too() -> None:
    intake = RecordingIntake()
    stored(intake, EVENT, b'{"event":7}{"event":[1,{"a":2}]}{"event":false}')
    assert [document["message"] for document in documents(intake)] == ["7", '[1,{"a":2}]', "false"]


@pytest.mark.parametrize(
    ("body", "code", "number"),
    [
        (b"", 5, None),
        (b"  \n ", 5, None),
        (b"{", 6, 0),
        (b'{"event":"a"}{"event":', 6, 1),
        (b'{"event":"a"}nonsense', 6, 1),
        (b"[]", 6, 0),
        (b'{"event":"a"}{"time":1}', 12, 1),
        (b'{"event":""}', 13, 0),
        (b'{"event":null}', 13, 0),
        (b'{"event":"a","fields":{"a":{}}}', 15, 0),
        (b"[" * 100_000, 6, 0),
    ],
)
def test_a_request_that_cannot_be_read_is_refused_whole_with_the_event_that_is_wrong(body: bytes, code: int, number: int | None) -> None:
    intake = RecordingIntake()
    asked = ask(intake, EVENT, body, headers=CHANNEL)
    assert asked.answer.status == 400 and asked.json["code"] == code and asked.json.get("invalid-event-number") == number
    assert not intake.taken and intake.refused[RefusedReason.MALFORMED] == 1


@pytest.mark.parametrize(("path", "line"), [(EVENT, b'{"event":1}'), (EVENT, b'{"event":"}{"}'), (RAW, b"x\n")])
def test_more_events_than_one_turn_takes_are_refused(path: str, line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splunk_events, "RECORDS_MAX", 2)
    intake = RecordingIntake()
    asked = ask(intake, path, line * 3)
    assert asked.answer.status == 413 and asked.json["code"] == 27 and intake.refused == {RefusedReason.TOO_LARGE: 1}
    assert stored(intake, path, line * 2).json["code"] == 0


def test_lines_are_records_with_what_the_query_says() -> None:
    intake = RecordingIntake()
    stored(intake, RAW, b"one\r\n\ntwo \xff\n", query="host=web-2&sourcetype=syslog&time=1760000000")
    assert [document["message"] for document in documents(intake)] == ["one", "two \ufffd"]
    assert {(record.host, record.time_ms) for record in intake.records} == {("web-2", 1_760_000_000_000)}
    assert intake.records[0].labels == {"sourcetype": "syslog"}


def test_without_a_channel_the_answer_waits_for_the_disk() -> None:
    intake = RecordingIntake()
    asked = ask(intake, EVENT, b'{"event":"a"}')
    assert not asked.answers
    intake.complete_all(AckOutcome.REFUSED)
    assert asked.answer.status == 503 and asked.json == {"text": "Server is busy", "code": 9}
    assert dict(asked.answer.headers)[b"Retry-After"] == b"1"


def test_with_a_channel_the_answer_is_a_number_that_is_true_when_it_is_stored() -> None:
    intake = RecordingIntake()
    first, second = send(intake, "one"), send(intake, "two")
    assert second == first + 1 and ask_acks(intake, first, second, 7) == {str(first): False, str(second): False, "7": False}
    intake.complete(intake.closed[1])
    assert ask_acks(intake, first, second) == {str(first): False, str(second): True}
    intake.complete(intake.closed[0], AckOutcome.DUPLICATE)
    assert ask_acks(intake, first, second) == {str(first): True, str(second): True}, "an acknowledgement is reported again"


def identities(intake: RecordingIntake) -> list[bytes]:
    """Of the units so far."""
    return [unit.identities[0] for unit in intake.closed if unit.identities]


def test_equal_requests_of_one_incarnation_are_distinct_and_the_next_one_matches_them_in_order(new_incarnation: Callable[[], None]) -> None:
    intake = RecordingIntake()
    ask_acks(intake)
    for _ in range(3):
        send(intake)
    send(intake, headers={b"x-splunk-request-channel": b"other"})
    assert len(set(identities(intake))) == 4
    new_incarnation()
    again = RecordingIntake()
    for _ in range(3):
        send(again)
    assert identities(again) == identities(intake)[:3]


def test_an_occurrence_is_free_again_when_its_acknowledgement_is_reported_and_the_lowest_remain() -> None:
    intake = RecordingIntake()
    ask_acks(intake)
    ack_ids = [send(intake) for _ in range(3)]
    zero, one, two = identities(intake)
    intake.complete_all()
    assert not intake.forgotten
    ask_acks(intake, ack_ids[0])
    assert intake.forgotten == [two], "one of the three is reported, and a new incarnation may be sent two"
    ask_acks(intake, ack_ids[0])
    assert intake.forgotten == [two], "once"
    send(intake)
    assert identities(intake)[-1] == two, "not one that is remembered"
    ask_acks(intake, *ack_ids)
    assert intake.forgotten == [two, one, zero]


def test_what_was_refused_has_its_occurrence_when_it_comes_again() -> None:
    intake = RecordingIntake()
    ask_acks(intake)
    send(intake)
    intake.complete_all(AckOutcome.REFUSED)
    send(intake)
    assert len(set(identities(intake))) == 1 and not intake.forgotten


def test_a_channel_that_has_not_polled_keeps_no_identities() -> None:
    intake = RecordingIntake()
    before = send(intake)
    intake.complete_all()
    ask_acks(intake)
    after = send(intake)
    other = send(intake, headers={b"x-splunk-request-channel": b"other"})
    assert [unit.keeps_identity for unit in intake.closed] == [False, True, False] and other
    assert len(set(identities(intake))) == 2, "what is not remembered holds no occurrence"
    intake.complete_all()
    assert ask_acks(intake, before, after) == {str(before): True, str(after): True} and intake.forgotten == [identities(intake)[1]]


def test_a_replay_on_a_channel_without_polls_is_acknowledged_and_forgotten() -> None:
    intake = RecordingIntake()
    ack_id = send(intake)
    intake.closed[0].keeps_identity = True  # the intake knew it
    intake.complete_all(AckOutcome.DUPLICATE)
    send(intake)
    assert len(set(identities(intake))) == 2, "the next equal one is new"
    ask_acks(intake, ack_id)
    assert intake.forgotten == identities(intake)[:1]


def test_a_key_of_the_sender_is_its_own_identity() -> None:
    intake = RecordingIntake()
    ack_ids = [send(intake, headers={**CHANNEL, b"idempotency-key": b"k"}) for _ in range(2)]
    intake.complete_all()
    assert len(set(identities(intake))) == 1 and all(unit.keeps_identity for unit in intake.closed)
    assert all(ask_acks(intake, *ack_ids).values()) and not intake.forgotten


def test_identities_that_can_no_longer_be_polled_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splunk_acks, "UNTOLD_MAX", 1)
    monkeypatch.setattr(splunk_hec.COLLECTOR, "_acks", AckLedger(1))
    intake = RecordingIntake()
    ask_acks(intake)
    send(intake)
    send(intake)
    intake.complete_all()
    send(intake, "other")
    assert intake.forgotten == identities(intake)[1:2], "one too many waits to be asked for"
    intake.complete_all()
    intake.forgotten.clear()
    send(intake, headers={b"x-splunk-request-channel": b"other"})
    assert intake.forgotten == [identities(intake)[0], identities(intake)[2]], "the older one is too many too, and the channel had to go"


def test_an_ack_id_of_a_dead_ingest_is_false_and_not_reused(new_incarnation: Callable[[], None]) -> None:
    intake = RecordingIntake()
    before = send(intake)
    intake.complete_all()
    new_incarnation()
    intake.wall_ms += 5_000
    assert ask_acks(intake, before) == {str(before): False}
    after = send(intake)
    intake.complete_all()
    assert before != after and ask_acks(intake, before, after) == {str(before): False, str(after): True} and after < 1 << 53


class FullIntake(RecordingIntake):
    """Refuses at once what it is given."""

    def take(self, unit: AckGroup, records: Sequence[IngestRecord]) -> None:
        unit.outcome = AckOutcome.REFUSED


def test_what_is_refused_at_once_gets_no_number() -> None:
    intake = FullIntake()
    asked = ask(intake, EVENT, b'{"event":"a"}', headers=CHANNEL)
    assert asked.answer.status == 503 and asked.json == {"text": "Server is busy", "code": 9}
    intake.complete_all(AckOutcome.REFUSED)


def test_the_name_of_a_channel_is_bounded_for_events_and_for_questions() -> None:
    intake = RecordingIntake()
    for name, status in ((b"c" * CHANNEL_BYTES_MAX, 200), (b"c" * (CHANNEL_BYTES_MAX + 1), 400)):
        for path, body in ((EVENT, b'{"event":"a"}'), (ACK, b'{"acks":[1]}')):
            asked = ask(intake, path, body, headers={b"x-splunk-request-channel": name})
            assert asked.answer.status == status and (status == 200 or asked.json == {"text": "Invalid data channel", "code": 11})
    assert intake.refused == {RefusedReason.MALFORMED: 2}


def test_a_request_that_was_refused_is_never_true() -> None:
    intake = RecordingIntake()
    ack_id = send(intake)
    intake.complete_all(AckOutcome.REFUSED)
    assert ask_acks(intake, ack_id) == {str(ack_id): False} and not intake.forgotten


def test_channels_and_what_they_wait_for_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splunk_acks, "IN_FLIGHT_MAX", 3)
    monkeypatch.setattr(splunk_acks, "UNTOLD_MAX", 2)
    monkeypatch.setattr(splunk_acks, "UNPOLLED_MAX", 1)
    monkeypatch.setattr(splunk_acks, "TOLD_MAX", 1)
    book = AckLedger(2)
    channel = book.channel(b"a", b"")
    assert channel is not None and book.channel(b"b", b"") is not None
    taken = [channel.open(b"%d" % number) for number in range(3)]
    ack_ids = [one.ack_id for one in taken]
    assert not any(channel.ask([7]).values()), "it polls"
    assert channel.is_full and book.channel(b"c", b"") is not None and book.find(b"b") is None, "the one that waits for nothing goes"
    for one in taken:
        channel.on_completed(one, True, True)
    assert channel.take_forgotten() == [b"0"]
    assert channel.ask(ack_ids) == dict(zip(ack_ids, (False, True, True))) and channel.take_forgotten() == [b"1", b"2"] and not channel._equals
    assert channel.ask(ack_ids) == dict(zip(ack_ids, (False, False, True)))
    silent = book.channel(b"d", b"")
    assert silent is not None
    for one in [silent.open(b"%d" % number) for number in range(3)]:
        silent.on_completed(one, True, False)
    assert len(silent._untold) == 1
    for name in (b"c", b"d"):
        waiting = book.channel(name, b"")
        assert waiting is not None
        waiting.open(b"")
    assert book.channel(b"e", b"") is None and len(book) == 2


@pytest.mark.parametrize(("body", "headers", "code"), [(b"{}", CHANNEL, 6), (b"[", CHANNEL, 6), (b'{"acks":["1"]}', CHANNEL, 6), (b'{"acks":[1]}', {}, 10)])
def test_a_question_that_is_none_is_refused(body: bytes, headers: dict[bytes, bytes], code: int) -> None:
    asked: Asked = ask(RecordingIntake(), ACK, body, headers=headers)
    assert asked.answer.status == 400 and asked.json["code"] == code


def test_a_raw_listener_keeps_events_with_their_envelopes_and_lines_as_they_are() -> None:
    talk = HttpTalk(LISTENER._replace(raw=True))
    envelopes: list[dict[str, Any]] = [{"event": "hello", "host": "web-1"}, {"event": {"a": 1}, "time": 1.5, "more": 2}, {"event": ["x"]}]
    talk.ask(request(EVENT, b"".join(map(orjson.dumps, envelopes))) + request(RAW, b"hello\n"))
    *events, line = [record.value for record in talk.intake.records]
    assert [orjson.loads(value) for value in events] == envelopes and line == b"hello"


def test_docker_asks_by_options_and_without_a_token_whether_a_collector_is_there() -> None:
    talk = HttpTalk(LISTENER._replace(tokens=(Token("secret"),)))
    asked = [request(f"/services/collector{path}", method="OPTIONS") for path in ("/event/1.0", "/raw", "")]
    assert [(answer.status, answer.headers["allow"], answer.body) for answer in talk.ask(b"".join(asked))] == [(200, "OPTIONS, POST", b"")] * 3


def test_the_line_of_dockers_event_is_its_message() -> None:
    intake = RecordingIntake()
    event = {"line": "hello", "source": "stdout", "tag": "4f1c"}
    assert stored(intake, f"{EVENT}/1.0", orjson.dumps({"event": event, "time": "1760000000.123000", "host": "web-1"})).json["code"] == 0
    (record,), (document,) = intake.records, documents(intake)
    assert (record.time_ms, document["message"], document["fields"]) == (1_760_000_000_123, "hello", {"source": "stdout", "tag": "4f1c"})


def test_health_and_refusals_have_their_own_words() -> None:
    intake = RecordingIntake()
    assert ask(intake, "/services/collector/health", method="GET").json["code"] == 17
    intake.is_blocked = True
    asked = ask(intake, "/services/collector/health/1.0", method="GET")
    assert asked.answer.status == 503 and asked.json["code"] == 18
    found = find_path("POST", EVENT)
    assert isinstance(found, FoundPath)
    without, wrong = (found.path.unauthorized_answer(_request_with(intake, value)) for value in (b"", b"Splunk nonsense"))
    assert (without.status, orjson.loads(without.body)["code"]) == (401, 2) and (wrong.status, orjson.loads(wrong.body)["code"]) == (403, 4)


def _request_with(intake: RecordingIntake, authorization: bytes) -> Any:
    return ask(intake, EVENT, headers={b"authorization": authorization}).request
