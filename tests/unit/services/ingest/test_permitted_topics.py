"""Records that the routes take to a topic that the token may not use: each protocol over HTTP refuses them in its own words."""

from __future__ import annotations

from collections.abc import Iterable

import orjson
import pytest

from appliance.senders.listener import Listener
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import RefusedReason
from tests.support.http_talk import HttpTalk, chunked
from tests.support.recording_intake import RecordingIntake
from tests.unit.services.ingest.http_requests import HTTP, Asked, ask

LIMITED = HTTP._replace(topics=("we*",))


class RoutedIntake(RecordingIntake):
    """Records of the application `billing` go to `orders`, all others to `web`."""

    def topics_of(self, listener: Listener, record: IngestRecord | None = None) -> Iterable[str]:
        return {"web", "orders"} if record is None else ["orders" if record.app == "billing" else "web"]


def asked(intake: RecordingIntake, path: str, body: bytes, listener: Listener = LIMITED, **headers: bytes) -> Asked:
    answered = ask(intake, path, body, listener=listener, headers={name.replace("_", "-").encode(): value for name, value in headers.items()})
    intake.complete_all()
    return answered


def hec(*apps: str) -> bytes:
    return b"".join(orjson.dumps({"event": {"message": app, "app": app}}) for app in apps)


def loki(*apps: str) -> bytes:
    return orjson.dumps({"streams": [{"stream": {"app": app}, "values": [["1760000000000000000", app]]} for app in apps]})


def otlp(*apps: str) -> bytes:
    resources = [{"attributes": [{"key": "service.name", "value": {"stringValue": app}}]} for app in apps]
    logs = [{"resource": resource, "scopeLogs": [{"logRecords": [{"body": {"stringValue": "x"}}]}]} for resource in resources]
    return orjson.dumps({"resourceLogs": logs})


def gelf(*apps: str) -> bytes:
    return b"\n".join(orjson.dumps({"version": "1.1", "host": "h", "short_message": app, "_app": app}) for app in apps)


CASES = {"/services/collector/event": (hec, 400), "/loki/api/v1/push": (loki, 403), "/v1/logs": (otlp, 200), "/gelf": (gelf, 403)}


@pytest.mark.parametrize("path", CASES)
def test_only_records_whose_topic_is_allowed_are_taken(path: str) -> None:
    make, status = CASES[path]
    intake = RoutedIntake()
    answer = asked(intake, path, make("shop", "billing", "shop"), content_type=b"application/json").answer
    assert answer.status == status and [record.app for record in intake.records] == ["shop", "shop"]
    assert intake.refused == {RefusedReason.FORBIDDEN_TOPIC: 1}
    assert b"orders" in answer.body or path.startswith("/services")


@pytest.mark.parametrize("path", CASES)
def test_without_topics_and_with_topics_that_allow_all_nothing_is_refused(path: str) -> None:
    make, _ = CASES[path]
    for topics in ((), ("web", "orders"), ("*",)):
        intake = RoutedIntake()
        answer = asked(intake, path, make("shop", "billing"), HTTP._replace(topics=topics), content_type=b"application/json").answer
        assert answer.status in (200, 202, 204) and len(intake.records) == 2 and not intake.refused


def test_an_otlp_answer_counts_the_refused_records() -> None:
    answer = asked(RoutedIntake(), "/v1/logs", otlp("billing", "shop", "billing"), content_type=b"application/json").json
    assert answer["partialSuccess"]["rejectedLogRecords"] == "2"


def test_the_collector_names_the_first_event_and_acknowledges_the_others() -> None:
    intake = RoutedIntake()
    answer = asked(intake, "/services/collector/event", hec("shop", "shop", "billing"), x_splunk_request_channel=b"channel").json
    assert (answer["code"], answer["text"], answer["invalid-event-number"]) == (7, "Incorrect index", 2) and "ackId" in answer
    assert len(intake.records) == 2


def test_entries_of_a_journal_keep_their_cursors_and_the_upload_ends_with_403() -> None:
    def entry(app: str, cursor: str) -> bytes:
        return f"__CURSOR={cursor}\nSYSLOG_IDENTIFIER={app}\nMESSAGE=x\n\n".encode()

    entries = [entry("shop", "a"), entry("billing", "b"), entry("shop", "c")]
    identities = []
    for listener, status in ((HTTP, 202), (LIMITED, 403)):
        talk = HttpTalk(listener)
        talk.connection.intake = talk.intake = intake = RoutedIntake()
        talk.session = type(talk.session)(talk.connection)
        (answer,) = talk.ask(chunked("/upload", b"".join(entries), Content_Type="application/vnd.fdo.journal"))
        assert answer.status == status
        identities.append([identity for unit in intake.closed for identity in unit.identities or ()])
    assert identities[1] == [identities[0][0], identities[0][2]]
    talk.intake.refused.clear()
    (answer,) = talk.ask(chunked("/upload", entries[1], Content_Type="application/vnd.fdo.journal"))
    assert answer.status == 403 and talk.intake.refused == {RefusedReason.FORBIDDEN_TOPIC: 1}
