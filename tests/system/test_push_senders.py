"""Libraries that applications log with, by HTTP and GELF: what they sent is stored, to the record."""

from __future__ import annotations

import json
import logging
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from elasticsearch import Elasticsearch, ElasticsearchWarning
from elasticsearch.helpers import bulk, streaming_bulk
from pygelf import GelfHttpHandler, GelfTcpHandler, GelfUdpHandler

from lab import client_packages
from lab.running_box import RunningBox, eventually, listener
from lab.topic_documents import read_documents

pytestmark = [pytest.mark.system, pytest.mark.slow]

SENDERS = {
    "listener": [listener("gelfudp", "gelf", "udp", topic="gelf"), listener("gelftcp", "gelf", topic="gelf")],
    "route": [{"label": {label: "*"}, "topic": topic} for label, topic in (("index", "bulk"), ("job", "loki"), ("sourcetype", "events"))],
    "default": {"topic": "gelf"},
}
MESSAGES = 40


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    directory = tmp_path_factory.mktemp("push")
    box = start_shared(directory / "box", settings={"ingest.syslog.partitions": 2}, senders=SENDERS)
    yield box
    box.stop()
    assert box.leftovers() == []


def numbers(documents: list[dict[str, Any]], word: str) -> list[int]:
    """Those behind the word, sorted."""
    return sorted(int(document["message"].split()[1]) for document in documents if document["message"].split()[0] == word)


def await_stored(box: RunningBox, topic: str, word: str, count: int) -> list[dict[str, Any]]:
    """The documents, once so many have the word (datagrams and plain streams are not answered)."""

    def found() -> list[dict[str, Any]] | None:
        documents = [document for document in read_documents(box, topic) if (document["message"] or "").startswith(f"{word} ")]
        return documents if len(documents) >= count else None

    return list(eventually(found, f"{count} messages of {word}"))


@pytest.mark.skipif(client_packages.missing_js() is not None, reason=str(client_packages.missing_js()))
def test_what_libraries_for_javascript_send_is_stored_once(box: RunningBox) -> None:
    where = {
        "winston-elasticsearch": (box.ingest, "bulk"),
        "winston-loki-json": (box.ingest, "loki"),
        "winston-loki-protobuf": (box.ingest, "loki"),
        "gelf-pro-udp": (box.sender("gelfudp"), "gelf"),
        "gelf-pro-tcp": (box.sender("gelftcp"), "gelf"),
    }
    script = client_packages.SOURCES / "js" / "push_sender.mjs"
    senders = {
        name: subprocess.Popen(
            [str(client_packages.NODE), str(script), name, address.host, str(address.port), str(MESSAGES), str(client_packages.JS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for name, (address, _) in where.items()
    }
    for name, sender in senders.items():
        said, _ = sender.communicate(timeout=60)
        assert sender.returncode == 0 and not said, f"{name}: {said.decode()}"
    for name, (_, topic) in where.items():
        documents = await_stored(box, topic, name, MESSAGES)
        assert numbers(documents, name) == list(range(MESSAGES)), name
        assert Counter(document["severity_name"] for document in documents) == {"err": MESSAGES // 2, "info": MESSAGES // 2}, name
        if topic == "loki":
            assert documents[0]["labels"]["part"] == "cart" and documents[0]["app"] == "shop"
        if topic == "gelf":
            longest = max(len(document["fields"]["full_message"]) for document in documents)
            assert longest > 100_000, "a message in many datagrams"


def test_what_elasticsearch_py_sends_is_stored_and_its_ids_are_known_again(box: RunningBox) -> None:
    actions = [
        {
            "_op_type": "create" if number % 2 else "index",
            "_index": "web",
            "_id": f"id-{number}",
            "message": f"py {number}",
            "level": "warn",
            "nested": {"n": [number]},
        }
        for number in range(2_000)
    ]
    with Elasticsearch(f"http://{box.ingest}", request_timeout=60) as client:
        assert client.info()["tagline"] == "You Know, for Search" and client.ping() and client.cluster.health()["status"] == "green"
        with pytest.warns(ElasticsearchWarning, match="not used here"):
            assert client.indices.put_index_template(name="web", index_patterns=["web*"])["acknowledged"]
        assert client.indices.exists(index="web") and client.indices.exists_index_template(name="web")
        assert bulk(client, actions, chunk_size=500, refresh=True) == (2_000, [])
        assert bulk(client, actions, chunk_size=700) == (2_000, []), "the same again"
        answers = list(
            streaming_bulk(client, [{"_op_type": "delete", "_index": "web", "_id": "id-1"}, {"_index": "web", "message": "py 2000"}], raise_on_error=False)
        )
        assert [(good, next(iter(item.values()))["status"]) for good, item in answers] == [(False, 400), (True, 201)]
        assert client.index(index="web", id="7", document={"message": "py 2001"})["result"] == "created"
    documents = read_documents(box, "bulk")
    assert numbers(documents, "py") == list(range(2_002))
    one = next(document for document in documents if document["message"] == "py 5")
    assert one["labels"] == {"index": "web", "id": "id-5"} and one["severity_name"] == "warning" and one["fields"]["nested"] == {"n": [5]}


# pygelf's HTTP handler drops each connection when it has written, unanswered.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_what_pygelf_sends_is_stored_whole_however_it_goes(box: RunningBox) -> None:
    (udp, tcp, web) = box.sender("gelfudp"), box.sender("gelftcp"), box.ingest
    handlers = {
        "udp": GelfUdpHandler(udp.host, udp.port, include_extra_fields=True),
        "udp-chunks": GelfUdpHandler(udp.host, udp.port, chunk_size=200, compress=False, include_extra_fields=True),
        "tcp": GelfTcpHandler(tcp.host, tcp.port, include_extra_fields=True),
        "http": GelfHttpHandler(web.host, web.port, include_extra_fields=True),
    }
    for name, handler in handlers.items():
        logger = logging.Logger(name)
        logger.addHandler(handler)
        for number in range(MESSAGES):
            logger.error("pygelf-%s %d", name, number, extra={"colour": "green", "text": "x" * 3_000})
        handler.close()
    for name in handlers:
        documents = await_stored(box, "gelf", f"pygelf-{name}", MESSAGES)
        assert numbers(documents, f"pygelf-{name}") == list(range(MESSAGES)), name
        assert {(document["fields"]["colour"], len(document["fields"]["text"]), document["severity_name"]) for document in documents} == {
            ("green", 3_000, "err")
        }


def curl(box: RunningBox, path: str, *options: str) -> dict[str, Any]:
    command = ["curl", "-sS", "--max-time", "20", f"http://{box.ingest}/services/collector{path}", "-H", "Authorization: Splunk token", *options]
    answer: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return answer


def test_what_curl_sends_to_the_collector_is_stored_and_acknowledged(box: RunningBox) -> None:
    event = '{"time":1760000000.5,"sourcetype":"nginx","host":"web-1","event":"curl %d"}'
    assert curl(box, "/health")["code"] == 17
    assert curl(box, "/event", "-d", event % 0 + event % 1) == {"text": "Success", "code": 0}
    assert numbers(read_documents(box, "events"), "curl") == [0, 1], "stored before it is answered"
    channel = ("-H", "X-Splunk-Request-Channel: 6b7d")
    answer = curl(box, "/raw?sourcetype=lines", "--data-binary", "curl 2\ncurl 3\n", *channel)
    again = curl(box, "/raw?sourcetype=lines", "--data-binary", "curl 2\ncurl 3\n", *channel)
    ids = [answer["ackId"], again["ackId"]]
    ask = ("-d", json.dumps({"acks": ids}), *channel)
    eventually(lambda: all(curl(box, "/ack", *ask)["acks"].values()), "both are acknowledged")
    assert numbers(read_documents(box, "events"), "curl") == [0, 1, 2, 2, 3, 3], "the same bytes again are new lines"
    assert curl(box, "/event", "-d", "{}")["code"] == 12
