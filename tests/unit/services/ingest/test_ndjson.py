"""`POST /ingest/TOPIC`: documents and lines of any HTTP client."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from appliance.senders.listener import Token
from services.ingest.protocols.http import ndjson
from services.ingest.protocols.http.http_request import RECORDS_MAX
from services.ingest.records.ack_group import AckOutcome
from services.ingest.records.intake import Oddity, RefusedReason
from tests.support.http_talk import LISTENER, HttpTalk, Response, request


def post(talk: HttpTalk, body: bytes, media_type: str = "application/x-ndjson", target: str = "/ingest/web") -> Response:
    (answer,) = talk.ask(request(target, body, Content_Type=media_type))
    return answer


def documents(talk: HttpTalk) -> list[dict[str, Any]]:
    return [orjson.loads(record.value) for record in talk.intake.records]


def test_each_line_is_a_document_and_empty_ones_are_none() -> None:
    talk = HttpTalk()
    answer = post(talk, b'{"message":"a","level":"warn"}\r\n\n  \n{"n":1}')
    assert answer.status == 200 and answer.words == {"received": 2, "stored": 2, "rejected": 0}
    first, second = documents(talk)
    assert (first["message"], first["severity"], second["fields"]) == ("a", 4, {"n": 1})
    assert {unit.topic for unit in talk.intake.closed} == {"web"}


@pytest.mark.parametrize(("body", "messages"), [(b'[{"message":"a"},{"message":"b"}]', ["a", "b"]), (b'{"message":"a"}', ["a"]), (b"[]", [])])
def test_json_is_an_array_of_documents_or_one(body: bytes, messages: list[str]) -> None:
    talk = HttpTalk()
    assert post(talk, body, "application/json; charset=utf-8").status == 200
    assert [document["message"] for document in documents(talk)] == messages


def test_lines_of_text_are_messages() -> None:
    talk = HttpTalk()
    assert post(talk, b"one\ntwo words\n\xff\n", "text/plain").words["stored"] == 3
    assert [document["message"] for document in documents(talk)] == ["one", "two words", "�"]


def test_a_line_that_is_no_object_is_kept_and_said_to_be_unparsed() -> None:
    talk = HttpTalk()
    assert post(talk, b'{"broken\n7\n{"n":1}').words == {"received": 3, "stored": 3, "rejected": 0, "unparsed": 2}
    broken, number, _ = documents(talk)
    assert (broken["parsed"], broken["raw"], number["raw"]) == (False, '{"broken', "7")
    assert talk.intake.oddities == {Oddity.UNPARSED: 2}


def test_an_array_that_is_no_json_is_refused() -> None:
    talk = HttpTalk()
    assert post(talk, b'[{"a":1},', "application/json").status == 400 and talk.intake.refused == {RefusedReason.MALFORMED: 1}


@pytest.mark.parametrize(("target", "name"), [("nowhere", "nowhere"), ("a%20b", "a b"), ("..", ".."), ("%F6", "\ufffd")])
def test_a_topic_that_is_not_there_or_cannot_be_is_404_and_nothing_is_kept(target: str, name: str) -> None:
    talk = HttpTalk(LISTENER._replace(topics=("*",)), topics=("web", "a b", "..", "\ufffd"))
    answer = post(talk, b"{}", target=f"/ingest/{target}")
    assert answer.status == 404 and name in answer.words["what"] and talk.intake.refused == {RefusedReason.NO_TOPIC: 1}
    assert not talk.intake.closed


def test_what_can_never_be_stored_is_named_and_only_nothing_at_all_is_422() -> None:
    talk = HttpTalk()
    talk.send(request("/ingest/web", b"{}\n{}\n", Content_Type="application/x-ndjson") * 2)
    first, second = talk.intake.in_flight
    talk.intake.complete(first, AckOutcome.STORED, [(1, "too large")])
    talk.intake.complete(second, AckOutcome.STORED, [(0, "too large"), (1, "too large")])
    some, all_of_it = talk.answers()
    assert some.status == 200 and some.words == {"received": 2, "stored": 1, "rejected": 1, "reasons": [{"record": 1, "reason": "too large"}]}
    assert all_of_it.status == 422


def test_raw_keeps_the_sender_s_own_bytes() -> None:
    talk = HttpTalk(LISTENER._replace(raw=True))
    post(talk, b'{"a" : 1}\nno json\n')
    post(talk, b"text", "text/plain")
    assert [record.value for record in talk.intake.records] == [b'{"a" : 1}', b"no json", b"text"]


def test_very_many_records_are_413(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RECORDS_MAX == 100_000
    monkeypatch.setattr(ndjson, "RECORDS_MAX", 100)
    assert post(HttpTalk(), b"{}\n" * 101).status == post(HttpTalk(), b"\n" * 201).status == 413
    assert post(HttpTalk(), b"{}\n\n" * 100).status == 200
    assert post(HttpTalk(), b"[" + b"{}," * 100 + b"{}]", "application/json").status == 413


def test_another_content_type_is_415() -> None:
    talk = HttpTalk()
    assert post(talk, b"a,b", "text/csv").status == 415 and talk.intake.refused == {RefusedReason.NO_INPUT: 1}


def test_a_topic_of_other_senders_is_refused_whether_it_exists_or_not() -> None:
    talk = HttpTalk(topics=("web", "orders"))
    talk.intake.routed_topics = {"web"}
    assert [post(talk, b"{}", target=f"/ingest/{topic}").status for topic in ("web", "orders", "nothing", "__consumer_offsets")] == [200, 403, 403, 403]
    assert talk.intake.refused == {RefusedReason.FORBIDDEN_TOPIC: 3} and len(talk.intake.records) == 1


def test_a_name_that_no_topic_can_have_is_not_said_to_be_created() -> None:
    answer = post(HttpTalk(topics=("web",)), b"{}", target="/ingest/bad%20name")
    assert answer.status == 404 and b"name a topic by letters" in answer.body and b"millrace topic create" not in answer.body


def test_a_token_may_open_some_paths_only() -> None:
    talk = HttpTalk(LISTENER._replace(tokens=(Token("web", paths=("/ingest/web*", "/v1/logs")), Token("any"))), topics=("web-1", "orders"))

    def status(topic: str, token: str) -> int:
        (answer,) = talk.ask(request(f"/ingest/{topic}", b"{}", Authorization=f"Bearer {token}"))
        return answer.status

    assert [status(topic, token) for token in ("web", "any") for topic in ("web-1", "orders")] == [200, 401, 200, 200]
    assert status("web-1/../orders", "web") != 200 and status("%6frders", "web") == 401, "decoded before it is compared"


def test_each_token_has_its_topics_and_the_listener_s_otherwise() -> None:
    tokens = (Token("any"), Token("web", ("web*",)))
    talk = HttpTalk(LISTENER._replace(tokens=tokens, topics=("orders",)), topics=("web", "web-2", "orders"))

    def status(topic: str, token: str) -> int:
        (answer,) = talk.ask(request(f"/ingest/{topic}", b"{}", Authorization=f"Bearer {token}"))
        return answer.status

    assert [status(topic, "web") for topic in ("web", "web-2", "orders")] == [200, 200, 403]
    assert [status(topic, "any") for topic in ("web", "web-2", "orders")] == [403, 403, 200]
