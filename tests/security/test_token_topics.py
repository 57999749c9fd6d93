"""A token with topics of its own against a box: what the routes would take elsewhere is refused in every protocol over HTTP."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import LogsServiceStub

from lab.running_box import RunningBox, eventually, start_box
from lab.topic_documents import read_documents

pytestmark = [pytest.mark.system, pytest.mark.slow]
JSON = "application/json"
SETTINGS = """
"host.figures.interval.ms" = 0
[[ingest.listener]]
name = "http"
topic = "web"
token = ["all", { value = "web", topics = ["web"] }]
[[ingest.route]]
app = "billing"
topic = "orders"
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """Records of the application `billing` go to the topic `orders`, all others to `web`; one token may write to `web` only."""
    directory = tmp_path_factory.mktemp("tokens")
    (directory / "millrace.toml").write_text(SETTINGS)
    box = start_box(directory / "box", config=directory / "millrace.toml")
    assert post(box, "/gelf", gelf("billing"), JSON, "all")[0] == 202, "the topic exists, and another token may write to it"
    yield box
    assert box.stop() == 0


def post(box: RunningBox, path: str, body: bytes, media_type: str, token: str = "web") -> tuple[int, bytes]:
    with closing(HTTPConnection(*box.ingest, timeout=20)) as connection:
        connection.request("POST", path, body, {"Content-Type": media_type, "Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def gelf(app: str) -> bytes:
    return json.dumps({"version": "1.1", "host": "h", "short_message": f"gelf {app}", "_app": app}).encode()


def otlp() -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    for app in ("billing", "shop"):
        logs = request.resource_logs.add()
        name = logs.resource.attributes.add()
        name.key, name.value.string_value = "service.name", app
        logs.scope_logs.add().log_records.add().body.string_value = f"otlp {app}"
    return request


def journal_entry(app: str) -> bytes:
    message = f"journal {app}".encode()
    lines = b"__CURSOR=c-%b\nSYSLOG_IDENTIFIER=%b\nMESSAGE\n" % (app.encode(), app.encode())
    return lines + struct.pack("<Q", len(message)) + message + b"\n\n"


def messages(box: RunningBox, topic: str) -> list[str]:
    return sorted(str(document["message"]) for document in read_documents(box, topic))


def test_no_protocol_writes_to_a_topic_that_the_token_does_not_have(box: RunningBox) -> None:
    """Only `/ingest/NAME` and `_bulk` asked: the token of the shop wrote into `orders` by the name of another application."""
    assert post(box, "/ingest/orders", b'{"message":"forged"}', JSON)[0] == 403
    bulk = b'{"index":{}}\n{"message":"bulk billing","app":"billing"}\n{"index":{}}\n{"message":"bulk shop","app":"shop"}\n'
    status, body = post(box, "/logs/_bulk", bulk, JSON)
    assert status == 200 and [item["index"]["status"] for item in json.loads(body)["items"]] == [403, 201]

    status, body = post(box, "/v1/logs", otlp().SerializeToString(), "application/x-protobuf")
    assert status == 200 and ExportLogsServiceResponse.FromString(body).partial_success.rejected_log_records == 1
    with grpc.insecure_channel(f"{box.ingest[0]}:{box.ingest[1]}") as channel:
        answer = LogsServiceStub(channel).Export(otlp(), metadata=[("authorization", "Bearer web")], timeout=20)
    assert answer.partial_success.rejected_log_records == 1 and "orders" in answer.partial_success.error_message

    events = b"".join(json.dumps({"event": {"message": f"hec {app}", "app": app}}).encode() for app in ("shop", "billing"))
    status, body = post(box, "/services/collector/event", events, JSON)
    assert (status, json.loads(body)) == (400, {"text": "Incorrect index", "code": 7, "invalid-event-number": 1})
    status, body = post(box, "/services/collector/event?channel=c1", events, JSON)
    assert (status, json.loads(body)["code"]) == (400, 7)

    streams = [{"stream": {"app": app}, "values": [["1760000000000000000", f"loki {app}"]]} for app in ("shop", "billing")]
    status, body = post(box, "/loki/api/v1/push", json.dumps({"streams": streams}).encode(), JSON)
    assert status == 403 and b"orders" in body

    status, body = post(box, "/gelf", gelf("shop") + b"\n" + gelf("billing"), JSON)
    assert status == 403 and b"orders" in body
    assert post(box, "/gelf", gelf("billing"), JSON)[0] == 403

    entries = journal_entry("shop") + journal_entry("billing")
    status, body = post(box, "/upload", entries, "application/vnd.fdo.journal")
    assert status == 403 and b"orders" in body
    assert post(box, "/upload", journal_entry("billing"), "application/vnd.fdo.journal")[0] == 403

    assert messages(box, "orders") == ["gelf billing"], "the one of the token that may"
    wanted = sorted(["bulk shop", "otlp shop", "otlp shop", "hec shop", "hec shop", "loki shop", "gelf shop", "journal shop"])
    eventually(lambda: messages(box, "web") == wanted, "what the token may send is stored")
    counted = {label: value for label, value in box.counters("ingest@0").values.items() if label.startswith("ingest.refused")}
    assert sum(value for label, value in counted.items() if 'reason="forbidden_topic"' in label) == 11
