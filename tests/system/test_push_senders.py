"""Libraries that applications log with, by HTTP and GELF: what they sent is stored, to the record; also when ingest is killed under them."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from elasticsearch import Elasticsearch, ElasticsearchWarning
from elasticsearch.helpers import bulk, streaming_bulk
from pygelf import GelfHttpHandler, GelfTcpHandler, GelfUdpHandler

from tests.support import client_packages
from tests.support.running_box import RunningBox, eventually, start_box
from tests.support.topic_documents import read_documents

pytestmark = [pytest.mark.system, pytest.mark.slow]

TABLE = """
listen gelfudp gelf udp :0 topic=gelf
listen gelftcp gelf tcp :0 topic=gelf
route label.index=killed -> killed-bulk
route label.index=* -> bulk
route label.job=* -> loki
route label.sourcetype=killed -> killed-events
route label.sourcetype=* -> events
default -> gelf
"""
MESSAGES = 40
OMELASTICSEARCH = Path(sys.prefix) / "peers/usr/lib/x86_64-linux-gnu/rsyslog/omelasticsearch.so"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    directory = tmp_path_factory.mktemp("push")
    (directory / "ingest.table").write_text(TABLE)
    box = start_box(directory / "box", settings={"ingest.table.file": str(directory / "ingest.table"), "ingest.syslog.partitions": 2})
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

    return list(eventually(found, f"{count} messages of {word}", 20))


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
    with Elasticsearch(f"http://{box.ingest}") as client:
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
    eventually(lambda: all(curl(box, "/ack", *ask)["acks"].values()), "both are acknowledged", 10)
    assert numbers(read_documents(box, "events"), "curl") == [0, 1, 2, 2, 3, 3], "the same bytes again are new lines"
    assert curl(box, "/event", "-d", "{}")["code"] == 12


def kill_now_and_then(box: RunningBox, sender: Thread, times: int) -> None:
    """kill -9 of ingest while the sender is at work."""
    for _ in range(times):
        wanted = _received(box) + 200
        eventually(partial(_has_received, box, sender, wanted), "more comes in", 20)
        assert sender.is_alive(), "it is killed while something is on its way"
        box.await_restart("ingest@0", box.kill("ingest@0"))


def _has_received(box: RunningBox, sender: Thread, wanted: int) -> bool:
    return not sender.is_alive() or _received(box) >= wanted


def _received(box: RunningBox) -> int:
    return sum(value for label, value in box.counters("ingest@0").values.items() if label.startswith("ingest.received"))


def test_bulk_items_with_ids_are_stored_once_when_ingest_is_killed(box: RunningBox) -> None:
    count, said = 12_000, Counter[bool]()
    actions = ({"_index": "killed", "_id": str(number), "message": f"bulk {number}", "text": "x" * 200} for number in range(count))

    def send() -> None:
        with Elasticsearch(f"http://{box.ingest}", max_retries=20, retry_on_timeout=True, request_timeout=20) as client:
            said.update(good for good, _ in streaming_bulk(client, actions, chunk_size=100, max_retries=20, initial_backoff=0.1, max_backoff=0.5))

    sender = Thread(target=send)
    sender.start()
    kill_now_and_then(box, sender, 2)
    sender.join(60)
    assert said == {True: count}
    assert numbers(read_documents(box, "killed-bulk"), "bulk") == list(range(count))


@pytest.mark.skipif(not OMELASTICSEARCH.exists(), reason="there is no omelasticsearch; ./install.sh test unpacks it under .venv/peers")
def test_what_rsyslog_sends_by_bulk_is_stored_once_when_ingest_is_killed(box: RunningBox, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        entrance = probe.getsockname()[1]
    (tmp_path / "rsyslog.conf").write_text(f"""
global(workDirectory="{tmp_path}")
module(load="imtcp")
module(load="omelasticsearch")
template(name="document" type="list" option.jsonf="on") {{
    property(outname="@timestamp" name="timereported" dateFormat="rfc3339" format="jsonf")
    property(outname="host" name="hostname" format="jsonf")
    property(outname="message" name="msg" position.from="2" format="jsonf")
}}
template(name="id" type="string" string="%uuid%")
input(type="imtcp" address="127.0.0.1" port="{entrance}" ruleset="out")
ruleset(name="out" queue.type="LinkedList" queue.size="100000") {{
    action(type="omelasticsearch" server="http://{box.ingest.host}" serverport="{box.ingest.port}" template="document" searchIndex="relayed" searchType=""
           bulkmode="on" bulkid="id" dynbulkid="on" writeoperation="create" action.resumeRetryCount="-1" action.resumeInterval="1")
}}
""")
    count = 6_000
    with open(tmp_path / "rsyslog.log", "wb") as log:
        rsyslog = subprocess.Popen(["rsyslogd", "-n", "-f", str(tmp_path / "rsyslog.conf"), "-i", str(tmp_path / "pid")], stdout=log, stderr=log)
    try:
        sender = eventually(lambda: connected(entrance), "rsyslog takes lines", 20)
        wanted = _received(box) + 200
        sender.sendall(b"".join(b"<29>Jan  5 12:00:00 relay prog[7]: rsyslog %d\n" % number for number in range(count)))
        eventually(lambda: _received(box) >= wanted, "lines come in", 20)
        box.await_restart("ingest@0", box.kill("ingest@0"))
        documents = await_stored(box, "bulk", "rsyslog", count)
        sender.close()
    finally:
        rsyslog.terminate()
        rsyslog.wait(20)
    assert numbers(documents, "rsyslog") == list(range(count)) and {document["host"] for document in documents} == {"relay"}


def connected(port: int) -> socket.socket | None:
    try:
        return socket.create_connection(("127.0.0.1", port), 10)
    except OSError:
        return None


class AckingSender:
    """Sends each body until it is acknowledged, as forwarders do: what is not acknowledged goes out again once, on each new connection.

    Not by time: within one life of ingest what is sent again is a new thing, and a leader that is asked about the dead life may take long."""

    def __init__(self, box: RunningBox, bodies: list[bytes]) -> None:
        self._address = box.ingest
        self._bodies = dict(enumerate(bodies))
        self._under_way: dict[int, int] = {}  # body → its ackId
        self._due: set[int] = set(self._bodies)
        self.resent = 0

    def run(self) -> None:
        while self._bodies:
            connection = http.client.HTTPConnection(*self._address, timeout=10)
            self._due = set(self._bodies)
            try:
                while self._bodies:
                    self._ask(connection)  # first: what a channel that polls sends is known again after a death of ingest
                    self._send(connection)
            except (OSError, http.client.HTTPException):
                time.sleep(0.01)  # the connection is gone with ingest
            finally:
                connection.close()

    def _send(self, connection: http.client.HTTPConnection) -> None:
        for number in sorted(self._due)[:20]:
            self.resent += number in self._under_way
            answer = self._post(connection, "event", self._bodies[number])
            if answer["code"] == 0:
                self._under_way[number] = answer["ackId"]
                self._due.discard(number)

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        numbers = {ack_id: number for number, ack_id in self._under_way.items()}
        acks = self._post(connection, "ack", json.dumps({"acks": list(numbers)}).encode())["acks"]
        for text, is_stored in acks.items():
            if is_stored:
                number = numbers[int(text)]
                del self._bodies[number], self._under_way[number]
                self._due.discard(number)

    def _post(self, connection: http.client.HTTPConnection, path: str, body: bytes) -> dict[str, Any]:
        connection.request("POST", f"/services/collector/{path}", body, {"X-Splunk-Request-Channel": "killed"})
        answer: dict[str, Any] = json.load(connection.getresponse())
        return answer


def test_acknowledged_events_are_stored_once_when_ingest_is_killed(box: RunningBox) -> None:
    per_body, bodies = 10, 600
    events = [b"".join(b'{"sourcetype":"killed","event":"hec %d"}' % (body * per_body + number) for number in range(per_body)) for body in range(bodies)]
    acking = AckingSender(box, events)
    sender = Thread(target=acking.run)
    sender.start()
    kill_now_and_then(box, sender, 2)
    sender.join(60)
    assert not sender.is_alive() and acking.resent, "some had to go out again"
    assert numbers(read_documents(box, "killed-events"), "hec") == list(range(per_body * bodies))
