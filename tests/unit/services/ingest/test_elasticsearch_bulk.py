"""`_bulk`: documents become records, and each item of the answer says what became of one, in their order."""

from __future__ import annotations

from collections.abc import Iterable

import orjson
import pytest

from appliance.senders.listener import Listener
from services.ingest.protocols.elasticsearch import elasticsearch_actions, elasticsearch_bulk
from services.ingest.protocols.elasticsearch.elasticsearch_answers import answer_filter
from services.ingest.protocols.http.http_endpoints import PATHS, FoundPath, find_path
from services.ingest.records.ack_group import AckOutcome
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import RefusedReason
from tests.support.recording_intake import RecordingIntake
from tests.unit.services.ingest.http_requests import HTTP, ask, documents, stored

INDEX = b'{"index":{"_index":"web"}}\n'


def lines(*documents: object) -> bytes:
    return b"".join(orjson.dumps(document) + b"\n" for document in documents)


def statuses(items: list[dict[str, dict[str, int]]]) -> list[tuple[str, int]]:
    return [(operation, item["status"]) for entry in items for operation, item in entry.items()]


def test_a_document_is_a_record_with_its_index_as_a_label_and_its_timestamp_as_its_time() -> None:
    intake = RecordingIntake()
    source = {"@timestamp": "2026-11-22T15:00:00.123Z", "message": "hello", "host": {"name": "web-1"}, "log": {"level": "error"}, "http": {"status": 502}}
    asked = stored(intake, "/_bulk", lines({"create": {"_index": "web"}}, source))
    (record,), (document,) = intake.records, documents(intake)
    assert record.labels == {"index": "web"} and record.host == "web-1" and record.severity == 3 and record.time_ms == 1_795_359_600_123
    assert document["message"] == "hello" and document["time"] == "2026-11-22T15:00:00.123Z" and document["labels"] == {"index": "web"}
    assert document["fields"]["http"] == {"status": 502} and document["fields"]["host"] == {"name": "web-1"}
    assert (b"X-Elastic-Product", b"Elasticsearch") in asked.answer.headers
    (item,) = asked.json["items"]
    assert asked.json["errors"] is False and item["create"]["status"] == 201 and item["create"]["_index"] == "web" and "_id" not in item["create"]


def test_items_are_answered_in_order_each_for_itself() -> None:
    intake = RecordingIntake()
    body = lines({"index": {"_id": "a"}}, {"n": 1}, {"delete": {"_id": "b"}}, {"update": {"_id": "c"}}, {"doc": {}}, {"create": {}})
    body += b"{broken\n" + lines({"index": {}}, [1], {"index": {"_index": "other"}}, {"n": 2})
    asked = ask(intake, "/web/_bulk", body)
    assert not asked.answers, "nothing is said before it is stored"
    intake.complete(intake.closed[0], rejected=[(1, "larger than the topic allows")])
    assert statuses(asked.json["items"]) == [("index", 201), ("delete", 400), ("update", 400), ("create", 400), ("index", 400), ("index", 400)]
    assert asked.json["errors"] is True and asked.answer.status == 200
    items = [next(iter(entry.values())) for entry in asked.json["items"]]
    assert [item["_index"] for item in items] == ["web"] * 5 + ["other"] and items[0]["_id"] == "a"
    assert items[3]["error"]["type"] == "document_parsing_exception" and items[5]["error"]["reason"] == "larger than the topic allows"
    assert [record.labels for record in intake.records] == [{"index": "web", "id": "a"}, {"index": "other"}]
    assert intake.refused[RefusedReason.MALFORMED] == 4


def test_if_the_record_that_was_too_large_is_unknown_none_is_reported_as_stored() -> None:
    intake = RecordingIntake()
    asked = ask(intake, "/_bulk", (INDEX + b"{}\n") * 2 + lines({"delete": {"_index": "web"}}))
    intake.complete(intake.closed[0], rejected=[(-1, "too_large")])
    assert statuses(asked.json["items"]) == [("index", 400), ("index", 400), ("delete", 400)]
    assert asked.json["items"][0]["index"]["error"]["reason"] == "too_large"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n",
        INDEX.strip(),
        INDEX,
        b'{"index":{}}\n{}\n',
        INDEX + b"{}",
        b"nonsense\n{}\n",
        b'{"index":[]}\n{}\n',
        b'{"attempts":0,"index":{"_index":"web"}}\n{}\n',
        b"{}\n{}\n",
        b'{"upsert":{"_index":"web"}}\n{}\n',
        INDEX + b"{}\n" + b"[]\n{}\n",
    ],
)
def test_a_request_that_cannot_be_split_into_actions_is_refused_as_a_whole(body: bytes) -> None:
    intake = RecordingIntake()
    asked = ask(intake, "/_bulk", body)
    assert asked.answer.status == 400 and asked.json["error"]["reason"] and asked.json["status"] == 400
    assert not intake.taken


def test_more_items_than_one_turn_takes_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elasticsearch_actions, "RECORDS_MAX", 2)
    intake = RecordingIntake()
    assert ask(intake, "/_bulk", (INDEX + b"{}\n") * 3).answer.status == 413 and intake.refused == {RefusedReason.TOO_LARGE: 1} and not intake.taken
    assert stored(intake, "/_bulk", (INDEX + b"{}\n") * 2).answer.status == 200


def test_empty_lines_between_items_and_line_feeds_of_windows_are_nothing() -> None:
    intake = RecordingIntake()
    asked = stored(intake, "/_bulk", b"\n" + INDEX.replace(b"\n", b"\r\n") + b'{"n":1}\r\n\r\n' + INDEX + b'{"n":2}\n')
    assert [document["fields"] for document in documents(intake)] == [{"n": 1}, {"n": 2}] and len(asked.json["items"]) == 2


def test_what_stands_behind_the_action_is_nothing() -> None:
    asked = stored(RecordingIntake(), "/_bulk", lines({"index": {"_index": "web"}, "attempts": 0}, {}))
    assert statuses(asked.json["items"]) == [("index", 201)]


def test_an_id_makes_a_document_one_thing_and_another_document_under_it_another() -> None:
    intake = RecordingIntake()
    first = lines({"index": {"_index": "web", "_id": "1"}}, {"n": 1}, {"index": {"_index": "web"}}, {"n": 2})
    ask(intake, "/_bulk", first)
    intake.wall_ms += 1
    ask(intake, "/_bulk", first)
    ask(intake, "/_bulk", lines({"index": {"_index": "web", "_id": "1"}}, {"n": 3}))
    (once, without), (again, without_again), (changed,) = (unit.identities or () for unit in intake.closed)
    assert once == again != changed and without != without_again and len(once) == 16


def test_without_ids_a_request_has_no_identity_and_with_a_key_it_is_one_thing() -> None:
    intake = RecordingIntake()
    ask(intake, "/_bulk", INDEX + b"{}\n")
    ask(intake, "/_bulk", lines({"index": {"_index": "web", "_id": "1"}}, {}) + INDEX + b"{}\n", headers={b"idempotency-key": b"k"})
    plain, keyed = (unit.identities for unit in intake.closed)
    assert plain is None and keyed is not None and len(keyed) == 1


def test_what_was_stored_before_is_answered_as_stored() -> None:
    intake = RecordingIntake()
    asked = ask(intake, "/_bulk", lines({"create": {"_index": "web", "_id": "1"}}, {"n": 1}))
    intake.complete_all(AckOutcome.DUPLICATE)
    assert statuses(asked.json["items"]) == [("create", 201)]


def test_what_cannot_be_stored_now_is_answered_429_with_when_to_come_again() -> None:
    intake = RecordingIntake()
    asked = ask(intake, "/_bulk", INDEX + b"{}\n")
    intake.complete_all(AckOutcome.REFUSED)
    assert asked.answer.status == 429 and asked.json["error"]["type"] == "es_rejected_execution_exception"
    assert dict(asked.answer.headers)[b"Retry-After"] == b"1" and dict(asked.answer.headers)[b"X-Elastic-Product"] == b"Elasticsearch"


def test_a_request_is_refused_from_the_record_on_where_back_pressure_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elasticsearch_bulk, "SLICE_RECORDS", 2)
    intake = RecordingIntake()
    intake.is_blocked = True  # asked between slices only: the session asks before the first
    body = b"".join(lines({"index": {"_index": "web", "_id": str(number)}}, {"n": number}) for number in range(5))
    asked = stored(intake, "/_bulk", body)
    assert statuses(asked.json["items"]) == [("index", 201)] * 2 + [("index", 429)] * 3 and asked.json["errors"] is True
    assert len(intake.records) == 2 and len(intake.closed[0].identities or ()) == 2


def test_filter_path_shows_what_clients_ask_for() -> None:
    intake = RecordingIntake()
    body = INDEX + b"{}\n" + lines({"delete": {"_index": "web", "_id": "1"}})
    asked = stored(intake, "/_bulk", body, query="filter_path=errors,items.*.error,items.*.status")
    good, bad = asked.json["items"]
    assert (
        set(asked.json) == {"errors", "items"}
        and asked.json["errors"] is True
        and good == {"index": {"status": 201}}
        and set(bad["delete"]) == {"status", "error"}
    )
    asked = stored(RecordingIntake(), "/_bulk", INDEX + b"{}\n", query="filter_path=errors,items.*.error")
    assert asked.json == {"errors": False}
    asked = stored(RecordingIntake(), "/_bulk", lines({"index": {"_index": "web", "_id": "7"}}, {}), query="filter_path=-took,-items.index._shards")
    assert "took" not in asked.json and asked.json["items"][0]["index"]["_id"] == "7" and "_shards" not in asked.json["items"][0]["index"]


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("a", {"a": {"b": 1, "c": [{"d": 2}, {"e": 3}]}}),
        ("a.b", {"a": {"b": 1}}),
        ("a.c.d", {"a": {"c": [{"d": 2}]}}),
        ("**.e", {"a": {"c": [{"e": 3}]}}),
        ("a.*", {"a": {"b": 1, "c": [{"d": 2}, {"e": 3}]}}),
        ("x,*.b", {"a": {"b": 1}, "x": None}),
        ("-a.c", {"a": {"b": 1}, "x": None}),
        ("nothing", {}),
        ("a,-a.b,-**.d", {"a": {"c": [{}, {"e": 3}]}}),
    ],
)
def test_a_filter_follows_names_lists_and_wild_cards(path: str, left: dict[str, object]) -> None:
    shown = answer_filter(path)
    assert shown is not None
    assert shown.apply({"a": {"b": 1, "c": [{"d": 2}, {"e": 3}]}, "x": None}) == left


@pytest.mark.parametrize("path", ["", "x" * 2000, ",".join(["**.a"] * 40), ".".join(["**"] * 20)])
def test_a_filter_that_would_cost_too_much_is_none(path: str) -> None:
    assert answer_filter(path) is None


@pytest.mark.parametrize(
    ("accept", "content_type"), [(b"application/vnd.elasticsearch+json; compatible-with=9", b"compatible-with=9"), (b"*/*", b"application/json")]
)
def test_a_client_gets_the_content_type_of_its_version(accept: bytes, content_type: bytes) -> None:
    asked = stored(RecordingIntake(), "/_bulk", INDEX + b"{}\n", headers={b"accept": accept})
    assert asked.answer.content_type.endswith(content_type)


def test_a_single_document_is_answered_as_one() -> None:
    intake = RecordingIntake()
    asked = stored(intake, "/web/_doc/7", b'{\n  "message": "a\\nb"\n}')
    assert asked.answer.status == 201 and asked.json["_id"] == "7" and asked.json["result"] == "created"
    assert documents(intake)[0]["message"] == "a\nb" and intake.records[0].labels == {"index": "web", "id": "7"}
    asked = stored(intake, "/web/_doc", b"[]")
    assert asked.answer.status == 400 and asked.json["error"]["type"] == "document_parsing_exception"


def test_names_that_are_no_text_are_answered_all_the_same() -> None:
    intake = RecordingIntake()
    asked = stored(intake, "/_bulk", b'{"index":{"_index":"\\ud800","_id":18446744073709551617,"routing":{"a":1}}}\n{"\\udfff":1}\n')
    assert asked.answer.status in (200, 400)
    asked = stored(intake, "/_bulk", b'{"index":{"_index":"web","_id":7,"routing":{"a":1}}}\n{"n":123456789012345678901234567890}\n')
    assert statuses(asked.json["items"]) == [("index", 201)] and b"123456789012345678901234567890" in intake.records[-1].value


def test_an_index_is_put_and_documents_in_its_place_are_not() -> None:
    intake = RecordingIntake()
    assert ask(intake, "/web", b"", method="PUT").json == {"acknowledged": True, "shards_acknowledged": True, "index": "web"}
    assert ask(intake, "/web", b'{"settings":{},"aliases":{"logs":{}}}', method="PUT").answer.status == 200
    for body in (b'{"message":"x"}', b"[]", b"x", INDEX + b"{}\n"):
        assert ask(intake, "/web", body, method="PUT").answer.status == 400
    assert isinstance(find_path("PUT", "/web"), FoundPath) and not isinstance(find_path("POST", "/web"), FoundPath)


def test_what_clients_ask_at_the_start_makes_them_go_on() -> None:
    intake = RecordingIntake()
    for path in PATHS:
        if path.module != "elasticsearch_probes":
            continue
        for method in (*path.methods, "HEAD"):
            asked = ask(intake, path.pattern.format(name="name", index="index"), method=method)
            assert (b"X-Elastic-Product", b"Elasticsearch") in asked.answer.headers, path
            assert asked.answer.status == (404 if (path.pattern, method) == ("/{index}", "GET") else 200), path
            assert path.function == "cat_health" or orjson.loads(asked.answer.body) is not None
    assert ask(intake, "/_cluster/health", method="GET").json["status"] == "green"
    intake.is_blocked = True
    assert ask(intake, "/_cluster/health", method="GET").json["status"] == "yellow"
    asked = ask(intake, "/_index_template/logs", b"{}", method="PUT")
    assert asked.json["acknowledged"] is True and b"not used here" in dict(asked.answer.headers)[b"Warning"]


def test_items_that_go_to_a_topic_of_others_are_refused_one_by_one_and_counted() -> None:
    class RoutedIntake(RecordingIntake):
        def topics_of(self, listener: Listener, record: IngestRecord | None = None) -> Iterable[str]:
            return {"orders" if record is not None and record.labels == {"index": "orders"} else "web"}

    intake, limited = RoutedIntake(), HTTP._replace(topics=("web",))
    asked = ask(intake, "/_bulk", lines({"index": {"_index": "a"}}, {"n": 1}, {"create": {"_index": "orders"}}, {"n": 2}), listener=limited)
    intake.complete_all()
    assert statuses(asked.json["items"]) == [("index", 201), ("create", 403)] and asked.json["errors"]
    assert asked.json["items"][1]["create"]["error"]["type"] == "security_exception"
    single = ask(intake, "/orders/_doc", b'{"n":3}', listener=limited)
    intake.complete_all()
    assert (single.answer.status, single.json["error"]["type"]) == (403, "security_exception")
    assert len(intake.records) == 1 and intake.refused == {RefusedReason.FORBIDDEN_TOPIC: 2}
    unlimited = ask(intake, "/orders/_doc", b'{"n":4}')
    intake.complete_all()
    assert unlimited.answer.status == 201, "without topics the routes alone decide"
