"""The routes that ask the cluster: which requests are refused, and what refusals mean; through real threads and connections to a broker in a thread."""

from __future__ import annotations

import _thread
import asyncio
import base64
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from starlette.responses import Response

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode, MillraceError, ProtocolViolation, RequestRefused
from appliance.base.networks import read_networks
from appliance.client import messages
from appliance.client.cluster import ClusterClient
from appliance.protocol.offset_apis import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from appliance.records.batch import stamp_batch
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec
from appliance.records.record import Record
from appliance.security.principals import ActingFor
from services.console.access import Access
from services.console.application import BODY_BYTES_MAX, make_application
from services.console.kafka_routes import ANSWERS_KEPT, CHANGES, GROUPS_KEPT, KEPT_MS, POINT_MS, PRODUCE_PATH, READS, KeptAnswers, LagHistory, function_of
from services.console.kafka_workers import WORKERS_MAX, KafkaWorkers, WorkersBusy
from services.console.topic_documents import SHOWN_BYTES, WHOLE_BYTES, record_document
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker, fetched

HOST = "127.0.0.1:8080"
OURS = {"host": HOST, "x-millrace": "console", "content-type": "application/json"}
LOCAL = Access(read_networks("127.0.0.0/8, ::1"), is_local=True)
SCRIPT = "<script>alert(1)</script>"


class Workers(KafkaWorkers):
    """Answers in the loop, and counts; `raised` instead of an answer."""

    def __init__(self, raised: BaseException | None = None) -> None:
        self.failures: list[str] = []
        super().__init__(("127.0.0.1", 1), on_failed=self.failures.append)
        self.asked = 0
        self._raised = raised

    async def ask(self, question: Callable[[ClusterClient], Any], needs_broker: bool = True, person: ActingFor | None = None) -> Any:
        self.asked += 1
        if self._raised is not None:
            raise self._raised
        return b"{}"


REFUSED: list[str] = []
"""What was counted by the last `ask`."""


def ask(
    path: str, workers: KafkaWorkers, body: bytes | None = None, access: Access = LOCAL, client: str = "127.0.0.1", method: str = "", **changed: str | None
) -> tuple[int, Any]:
    """Status and document of a request as the page sends it; `changed` replaces headers, None takes one away."""
    given = {**OURS, **{name.replace("_", "-"): text for name, text in changed.items()}}
    headers = [(name.encode(), text.encode()) for name, text in given.items() if text is not None]
    headers += [(b"content-length", str(len(body)).encode())] if body is not None and "content-length" not in given else []
    path, _, query = path.partition("?")
    scope = {"type": "http", "method": method or ("GET" if body is None else "POST"), "path": path, "query_string": query.encode(), "headers": headers}
    scope |= {"http_version": "1.1", "root_path": "", "client": (client, 1) if client else None}
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body or b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    watch: Any = SimpleNamespace(layout=None, last_sample=None)
    REFUSED.clear()
    application = make_application(watch, frozenset({"localhost"}), access, REFUSED.append, workers=workers)
    asyncio.run(application(scope, receive, send))
    answer = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], orjson.loads(answer) if answer else None


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"x_millrace": None}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": "multipart/form-data; boundary=application/json"}, 415),
        ({"content_type": None}, 415),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}, 403),
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:8080"}, 421),
        ({"x_forwarded_for": "10.0.0.7"}, 403),
        ({"forwarded": "for=10.0.0.7"}, 403),
        ({"transfer_encoding": "chunked"}, 413),
        ({"content_length": "9999999"}, 413),
    ],
)
def test_no_page_of_another_site_and_no_proxy_changes_anything(path: str, changed: dict[str, str | None], status: int) -> None:
    workers = Workers()
    assert (ask(path, workers, b"{}", **changed)[0], workers.asked) == (status, 0)
    assert ask(path, workers, b"{}")[0] == 200


@pytest.mark.parametrize(
    ("access", "client", "may_change", "words"),
    [
        (LOCAL, "127.0.0.1", True, None), (LOCAL, "::1", True, None), (LOCAL, "", True, None), (LOCAL, "10.0.0.7", False, "from this machine only"),
        (LOCAL._replace(is_local=False), "127.0.0.1", False, "listens beyond loopback"), (LOCAL._replace(is_local=False), "", False, "listens beyond loopback"),
        (LOCAL._replace(has_authorizer=True), "127.0.0.1", False, "has an authorizer"), (LOCAL._replace(has_authorizer=True), "", False, "has an authorizer"),
        (LOCAL._replace(details_networks=()), "127.0.0.1", False, "http.details.allowed.networks"),
        (LOCAL._replace(needs_login=True), "127.0.0.1", False, "need a login or a certificate"), (LOCAL._replace(needs_login=True), "", True, None),
    ],
)  # fmt: skip
def test_changes_are_for_this_machine_without_an_authorizer_and_the_page_learns_why_not(access: Access, client: str, may_change: bool, words: str) -> None:
    workers = Workers()
    assert ask("/api/rights", workers, access=access, client=client)[1]["may_change"] is may_change
    for path in CHANGES:
        status, document = ask(path, workers, b"{}", access, client)
        assert REFUSED == ([] if may_change else ["change"])
        assert status == (200 if may_change else 403) and (may_change or words in document["error"])
    assert workers.asked == (len(CHANGES) if may_change else 0)


@pytest.mark.parametrize(
    ("access", "client", "changed", "status"),
    [
        (LOCAL, "127.0.0.1", {}, 200), (LOCAL, "127.0.0.1", {"x_millrace": None}, 200), (LOCAL, "10.0.0.7", {}, 403),
        (LOCAL, "127.0.0.1", {"x_millrace": None, "user_agent": "Mozilla/5.0"}, 403), (LOCAL._replace(has_authorizer=True), "127.0.0.1", {}, 403),
        (LOCAL._replace(has_authorizer=True), "", {}, 200), (LOCAL._replace(is_local=False), "127.0.0.1", {}, 200),
        (LOCAL._replace(needs_login=True), "127.0.0.1", {}, 403), (LOCAL._replace(needs_login=True), "", {}, 200),
    ],
)  # fmt: skip
def test_records_and_settings_are_read_by_allowed_networks_and_with_an_authorizer_by_the_unix_socket(
    access: Access, client: str, changed: dict[str, str | None], status: int
) -> None:
    workers = Workers()
    assert [ask(path, workers, None, access, client, **changed)[0] for path in READS] == [status] * len(READS)
    assert workers.asked == (len(READS) if status == 200 else 0)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"null", b"\xff"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    workers = Workers()
    assert (ask("/api/topic/create", workers, body)[0], workers.asked) == (400, 0)


def test_a_change_is_no_get_and_a_read_no_post() -> None:
    assert ask("/api/topic/delete", Workers(), method="GET")[0] == ask("/api/topic", Workers(), b"{}")[0] == 405


def test_only_a_record_may_be_large() -> None:
    body = orjson.dumps({"value": "x" * (1 << 20)})
    assert ask(PRODUCE_PATH, Workers(), body)[0] == 200
    assert ask("/api/topic/create", Workers(), body)[0] == 413 and len(body) > BODY_BYTES_MAX


@pytest.mark.parametrize(
    ("raised", "status", "words"),
    [
        (RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic"), 404, "no topic"),
        (RequestRefused(ErrorCode.LEADER_NOT_AVAILABLE, "no leader"), 503, "no leader"),
        (RequestRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "away"), 503, "away"),
        (RequestRefused(ErrorCode.NON_EMPTY_GROUP, "members"), 409, "members"),
        (RequestRefused(ErrorCode.INVALID_CONFIG, "wrong"), 400, "wrong"),
        (RequestRefused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed"), 403, "not allowed"),
        (ProtocolViolation("fetched_batch", "damaged"), 502, "damaged"),
        (MillraceError("restarts"), 503, "does not answer: restarts"),
        (WorkersBusy("wait"), 503, "wait"),
        (TimeoutError(), 504, "not answered in time"),
    ],
)
def test_a_refusal_of_the_cluster_has_a_status_and_words(raised: BaseException, status: int, words: str) -> None:
    answered, document = ask("/api/topic?topic=x", Workers(raised))
    assert answered == status and words in document["error"]


def test_a_partition_that_is_not_there_is_not_found_and_a_wrong_number_of_them_is_a_wrong_request() -> None:
    refused = RequestRefused(ErrorCode.INVALID_PARTITIONS, "larger than 0")
    assert ask("/api/records?topic=x", Workers(refused))[0] == 404
    for path in ("/api/topic/create", "/api/topic/alter"):
        status, document = ask(path, Workers(refused), orjson.dumps({"topic": "x", "partitions": 1}))
        assert status == 400 and document["error"] == "larger than 0"


def test_every_route_has_its_function() -> None:
    box: Any = SimpleNamespace(layout=None, last_sample=None)
    assert all(callable(function_of(name, box)) for name in (*READS.values(), *CHANGES.values()))


def test_lag_is_kept_for_an_hour_in_points_of_ten_seconds_and_of_the_groups_that_were_read_last() -> None:
    history = LagHistory()
    for second in range(0, 4_000, 2):
        points = history.add("readers", second * 1_000, second * 1_000, second)
    assert points[0][0] >= 398_000 and points[-1] == (3_990_000, 3_990) and len(points) == KEPT_MS // POINT_MS
    assert history.add("readers", 4_000_000, 4_000_000, None) == points, "an unknown lag is no point"
    for number in range(GROUPS_KEPT):
        history.add(f"other {number}", 4_000_000, 4_000_000, 1)
    assert history.add("readers", 4_001_000, 4_001_000, 5) == [(4_001_000, 5)]


@pytest.mark.parametrize("step_ms", [-3_600_000, 7_200_000])
def test_lag_is_kept_although_the_clock_was_set(step_ms: int) -> None:
    history = LagHistory()
    history.add("readers", 0, 10_000_000, 1)
    assert history.add("readers", 10_000, 10_010_000 + step_ms, 2) == [(10_000_000, 1), (10_010_000 + step_ms, 2)]


def test_pages_share_an_answer_that_is_made_once_and_kept_for_a_while() -> None:
    clock = ManualClock()
    kept = KeptAnswers(clock.monotonic_ms)
    made: list[Response] = []
    may_end = asyncio.Event()

    async def make(status: int = 200) -> Response:
        made.append(Response(str(len(made)), status))
        await may_end.wait()
        return made[-1]

    async def run() -> None:
        first = asyncio.create_task(kept.get("boxes", 1_000, make))
        others = [asyncio.create_task(kept.get("boxes", 1_000, make)) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()  # its client has gone; the others wait on
        may_end.set()
        assert {(await other).body for other in others} == {b"0"} and len(made) == 1
        clock.advance_ms(999)
        assert (await kept.get("boxes", 1_000, make)).body == b"0"
        clock.advance_ms(1)
        assert (await kept.get("boxes", 1_000, lambda: make(503))).body == b"1"
        assert (await kept.get("boxes", 1_000, make)).body == b"2", "a failure is not kept"
        kept.forget()
        assert (await kept.get("boxes", 1_000, make)).body == b"3"
        for number in range(ANSWERS_KEPT):
            await kept.get(number, 1_000, make)
        assert (await kept.get("boxes", 1_000, make)).body != b"3" and (await kept.get(ANSWERS_KEPT - 1, 1_000, make)).body == b"19"

    asyncio.run(run())


def test_what_nothing_expects_is_answered_and_logged() -> None:
    workers = Workers(ZeroDivisionError("by zero"))
    status, document = ask("/api/topic?topic=x", workers)
    assert (status, workers.failures) == (500, ["a request failed in topic_documents.topic_document: ZeroDivisionError: by zero"])
    assert "its log says why" in document["error"]


# ---- threads


def test_at_most_some_requests_wait_for_the_cluster_and_their_threads_count_until_they_end() -> None:
    refused: list[int] = []
    ending = threading.Event()

    async def run() -> None:
        workers = KafkaWorkers(("127.0.0.1", 1), lambda: refused.append(1), answer_seconds=0.01)
        waiting = [asyncio.create_task(workers.ask(lambda _cluster: ending.wait(30))) for _ in range(WORKERS_MAX)]
        await asyncio.wait(waiting)
        assert all(isinstance(task.exception(), TimeoutError) for task in waiting), "each was answered without its thread"
        with pytest.raises(WorkersBusy):
            await workers.ask(lambda _cluster: 1)
        with suppress(TimeoutError):
            await workers.ask(lambda _cluster: 1, needs_broker=False)
        ending.set()
        while workers.running:
            await asyncio.sleep(0)
        workers = KafkaWorkers(("127.0.0.1", 1))
        assert await workers.ask(lambda _cluster: 7) == 7
        with pytest.raises(KeyError):
            await workers.ask(lambda _cluster: {}["x"])
        with pytest.raises(RuntimeError, match="StopIteration"):
            await workers.ask(lambda _cluster: next(iter(())))
        assert workers.running == 0

    asyncio.run(run())
    assert refused == [1]


def test_the_loop_does_not_wait_for_a_thread_to_be_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[tuple[Any, Any]] = []
    start = _thread.start_new_thread

    async def run() -> None:
        workers = KafkaWorkers(("127.0.0.1", 1))
        task = asyncio.create_task(workers.ask(lambda _cluster: 7))
        while not held:
            await asyncio.sleep(0)
        assert workers.running == 1 and not task.done()
        start(*held.pop())
        assert await task == 7 and workers.running == 0

    monkeypatch.setattr(_thread, "start_new_thread", lambda function, arguments: held.append((function, arguments)))
    asyncio.run(run())


def test_a_thread_that_died_before_it_ran_does_not_count_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[int] = []

    async def run() -> None:
        workers = KafkaWorkers(("127.0.0.1", 1), lambda: refused.append(1), answer_seconds=0.01)
        with pytest.raises(WorkersBusy, match="for lack of memory"):
            await workers.ask(lambda _cluster: 7)
        assert (workers.running, refused) == (0, [1])

    monkeypatch.setattr(_thread, "start_new_thread", lambda _function, _arguments: None)
    asyncio.run(run())


# ---- topics and records, with a broker


class Broker(FakeKafkaBroker):
    """One partition with the records 10 to 19; the second has no leader."""

    def __init__(self) -> None:
        super().__init__(partitions=2)
        self.leaders[1] = -1
        self.settings = {"retention.ms": "1000"}
        self.answers[messages.FETCH] = self.fetch
        self.answers[messages.DELETE_RECORDS] = self.delete_records
        self.answers[messages.CREATE_TOPICS] = lambda request: {"throttle_time": 0, "topics": [self.created(request.topics[0].name)]}

    def created(self, name: str) -> dict[str, Any]:
        names = ("topic_config_error_code", "num_partitions", "replication_factor", "configs", "topic_id")
        return {"name": name, "error_code": 0, "error_message": None, **dict.fromkeys(names)} | {
            "topic_config_error_code": 0,
            "num_partitions": 1,
            "replication_factor": 1,
        }

    def list_offsets(self, request: Any) -> dict[str, Any]:
        places = {EARLIEST_TIMESTAMP: 10, LATEST_TIMESTAMP: 20, 1_000_000_000_000: 14}
        answers = [
            {"partition_index": asked.partition_index, "error_code": 0, "timestamp": -1, "offset": places.get(asked.timestamp, -1), "leader_epoch": 0}
            for topic in request.topics
            for asked in topic.partitions
        ]
        return {"throttle_time": 0, "topics": [{"name": TOPIC, "partitions": answers}]}

    def fetch(self, request: Any) -> dict[str, Any]:
        builder = BatchBuilder()
        for offset in range(10, 20):
            builder.append(1_000_000_000_000 + offset, b"\xff" if offset == 12 else b"k%d" % offset, SCRIPT.encode(), ((SCRIPT, b"h"), ("none", None)))
        batch = bytearray(builder.build())
        stamp_batch(batch, 0, 10, 0)
        return fetched(request.topics[0].partitions[0].partition, bytes(batch))

    def delete_records(self, request: Any) -> dict[str, Any]:
        answers = [{"partition_index": asked.partition_index, "low_watermark": asked.offset, "error_code": 0} for asked in request.topics[0].partitions]
        return {"throttle_time": 0, "topics": [{"name": TOPIC, "partitions": answers}]}


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.close()


def real(broker: Broker) -> KafkaWorkers:
    return KafkaWorkers((broker.address.host, broker.address.port))


@pytest.mark.parametrize(
    ("query", "offsets", "next_offset"),
    [
        ("count=3", [17, 18, 19], 20),
        ("from=earliest&count=2", [10, 11], 12),
        ("from=offset&offset=15&count=2", [15, 16], 17),
        ("from=offset&offset=3&count=1", [10], 11),
        ("from=offset&offset=99", [], 20),
        ("from=time&time=1000000000000&count=2", [14, 15], 16),
        ("from=time&time=2000000000000&count=2", [], 20),
    ],
)
def test_a_page_of_records_begins_where_it_is_asked_to(broker: Broker, query: str, offsets: list[int], next_offset: int) -> None:
    status, page = ask(f"/api/records?topic={TOPIC}&{query}", real(broker))
    assert (status, [record["offset"] for record in page["records"]], page["next_offset"]) == (200, offsets, next_offset)
    assert (page["start_offset"], page["end_offset"], page["partitions"]) == (10, 20, 2)


def test_a_record_is_shown_as_it_is(broker: Broker) -> None:
    record = ask(f"/api/records?topic={TOPIC}&from=offset&offset=12&count=1", real(broker))[1]["records"][0]
    assert record["key"] == {"base64": "/w==", "size_bytes": 1} and record["value"] == {"text": SCRIPT, "size_bytes": len(SCRIPT)}
    assert record["headers"] == [[SCRIPT, {"text": "h", "size_bytes": 1}], ["none", None]]


def test_a_long_value_is_cut_between_characters() -> None:
    record: Any = Record(0, 0, None, "ä€😀".encode() * 10, ())  # type: ignore[arg-type]
    for shown in range(1, 40):
        value = record_document(record, shown)["value"]
        assert value["size_bytes"] == 90 and ("ä€😀" * 10).startswith(value["text"]) and shown - 4 < len(value["text"].encode()) <= shown
    broken: Any = Record(0, 0, None, b"ab\xff" * 10, ())  # type: ignore[arg-type]
    assert base64.b64decode(record_document(broken, 7)["value"]["base64"]) == (b"ab\xff" * 10)[:7]


def test_a_page_of_zeros_that_a_kilobyte_brought_holds_few_of_them(broker: Broker) -> None:
    """60 batches of 16 MiB each, compressed to less than 1 kB, would be 1 GB."""
    builder = BatchBuilder(Codec.ZSTD)
    builder.append(1_000_000_000_000, None, bytes(16 << 20), (("h", b"v"),))
    built = builder.build()
    batches = [bytearray(built) for _ in range(60)]
    for number, batch in enumerate(batches):
        stamp_batch(batch, 0, 10 + number, 0)
    content = b"".join(batches)
    assert len(content) < 60 * 1_000

    def all_of_them(request: Any) -> dict[str, Any]:
        return fetched(request.topics[0].partitions[0].partition, content)

    broker.answers[messages.FETCH] = all_of_them
    tracemalloc.start()
    try:
        status, page = ask(f"/api/records?topic={TOPIC}&from=earliest&count=500", real(broker))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (status, [record["offset"] for record in page["records"]], page["next_offset"]) == (200, [10], 11)
    assert page["records"][0]["value"] == {"text": "\0" * SHOWN_BYTES, "size_bytes": 16 << 20}
    assert peak_bytes < 100 << 20
    whole = ask(f"/api/records?topic={TOPIC}&from=earliest&count=500&whole=1", real(broker))[1]
    assert [len(record["value"]["text"]) for record in whole["records"]] == [WHOLE_BYTES]


def test_a_whole_record_is_one(broker: Broker) -> None:
    assert len(ask(f"/api/records?topic={TOPIC}&count=3&whole=1", real(broker))[1]["records"]) == 1


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/records", 400, "topic is missing"),
        (f"/api/records?topic={TOPIC}&partition=9", 404, "has no partition 9; it has 2"),
        (f"/api/records?topic={TOPIC}&partition=1", 503, "has no leader"),
        (f"/api/records?topic={TOPIC}&count=0", 400, "between 1 and 500"),
        (f"/api/records?topic={TOPIC}&count=501", 400, "between 1 and 500"),
        (f"/api/records?topic={TOPIC}&from=middle", 400, "one of newest, earliest"),
        (f"/api/records?topic={TOPIC}&from=time&time=soon", 400, "is no time"),
        (f"/api/records?topic={TOPIC}&offset=-1&from=offset", 400, "whole number"),
        (f"/api/records?topic={TOPIC}&what=1", 400, "no parameter what"),
        ("/api/records?topic=unknown", 404, "no such topic"),
        ("/api/topic?topic=a/b", 400, "has characters other than"),
    ],
)
def test_what_cannot_be_read_is_said(broker: Broker, path: str, status: int, words: str) -> None:
    answered, document = ask(path, real(broker))
    assert answered == status and words in document["error"]


def test_a_broker_that_is_away_is_said() -> None:
    status, document = ask(f"/api/records?topic={TOPIC}", KafkaWorkers(("127.0.0.1", 1)))
    assert status == 503 and "does not answer" in document["error"]


def test_records_are_deleted_after_the_plan_was_shown(broker: Broker) -> None:
    broker.leaders[1] = 1
    asked = {"topic": TOPIC, "time": "1000000000000"}
    status, planned = ask("/api/topic/trim", real(broker), orjson.dumps(asked))
    assert (status, planned["records"], [each["new_start"] for each in planned["trims"]], broker.count_of("delete_records")) == (200, 8, [14, 14], 0)
    assert ask("/api/topic/trim", real(broker), orjson.dumps(asked | {"execute": True}))[0] == 200
    assert broker.count_of("delete_records") == 1
    status, document = ask("/api/topic/trim", real(broker), orjson.dumps({"topic": TOPIC, "offset": 12}))
    assert status == 400 and "each with offsets of its own" in document["error"]


def test_of_partitions_that_are_trimmed_and_refused_both_are_said(broker: Broker) -> None:
    broker.leaders[1] = 1
    refusals = [{1: ErrorCode.POLICY_VIOLATION}, {0: ErrorCode.POLICY_VIOLATION, 1: ErrorCode.POLICY_VIOLATION}]

    def delete_records(request: Any) -> dict[str, Any]:
        answer = broker.delete_records(request)
        for each in answer["topics"][0]["partitions"]:
            each["error_code"] = int(refusals[0].get(each["partition_index"], ErrorCode.NONE))
        return answer

    broker.answers[messages.DELETE_RECORDS] = delete_records
    asked = orjson.dumps({"topic": TOPIC, "time": "1000000000000", "execute": True})
    status, document = ask("/api/topic/trim", real(broker), asked)
    assert status == 409 and document["error"].startswith("the records of partition 0 are deleted, those of partition 1 are not: partition 1: ")
    refusals.pop(0)
    assert "are deleted" not in ask("/api/topic/trim", real(broker), asked)[1]["error"]


def test_the_plan_of_an_age_has_the_time_that_it_meant(broker: Broker) -> None:
    broker.leaders[1] = 1
    planned = ask("/api/topic/trim", real(broker), orjson.dumps({"topic": TOPIC, "time": "2001-09-09T01:46:40Z"}))[1]
    assert (planned["time"], planned["records"]) == (1_000_000_000_000, 8)
    assert ask("/api/topic/trim", real(broker), orjson.dumps({"topic": TOPIC, "time": str(planned["time"])}))[1] == planned


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/topic/create", {"partitions": 1 << 31}),
        ("/api/topic/create", {"replication_factor": 1 << 15}),
        ("/api/topic/alter", {"partitions": 1 << 31}),
        ("/api/topic/trim", {"offset": 1, "partition": 1 << 31}),
        (PRODUCE_PATH, {"value": "", "partition": 1 << 31}),
    ],
)
def test_numbers_that_the_protocol_cannot_carry_are_refused(broker: Broker, path: str, body: dict[str, Any]) -> None:
    status, document = ask(path, real(broker), orjson.dumps({"topic": TOPIC} | body))
    assert status == 400 and "must be a whole number" in document["error"]


def test_a_topic_is_created_altered_and_deleted_with_its_name_only(broker: Broker) -> None:
    created = {"topic": "new", "partitions": "3", "settings": {"retention.ms": "5"}}
    assert ask("/api/topic/create", real(broker), orjson.dumps(created)) == (200, {"topic": "new"})
    request = next(request for name, request in broker.requests if name == "create_topics")
    assert (request.topics[0].name, request.topics[0].num_partitions, request.topics[0].configs[0].value) == ("new", 3, "5")
    mistakes: list[tuple[dict[str, Any], str]] = [({}, "nothing to change"), ({"set": {"no.such": "1"}}, "no setting no.such")]
    for body, words in [*mistakes, ({"set": {"retention.ms": 1}}, "names and texts")]:
        status, document = ask("/api/topic/alter", real(broker), orjson.dumps({"topic": TOPIC} | body))
        assert status == 400 and words in document["error"]
    for confirm in ("", "number", None):
        assert ask("/api/topic/delete", real(broker), orjson.dumps({"topic": TOPIC, "confirm": confirm}))[0] == 400
    assert ask("/api/topic/delete", real(broker), orjson.dumps({"topic": "__consumer_offsets", "confirm": "__consumer_offsets"}))[0] == 400
    assert broker.count_of("delete_topics") == 0


def test_one_record_is_produced_with_key_headers_and_partition(broker: Broker) -> None:
    body = {"topic": TOPIC, "partition": 0, "key": "k", "value": {"base64": "//4="}, "headers": [["h", "v"], ["n", None]]}
    assert ask(PRODUCE_PATH, real(broker), orjson.dumps(body)) == (200, {"topic": TOPIC, "partition": 0, "offset": 0})
    assert b"\xff\xfe" in broker.appended[0][0]
    for wrong in ({"partition": 2}, {"value": 1}, {"value": {"base64": "?"}}, {"headers": {"a": "b"}}, {"headers": [["a"]]}, {"more": 1}):
        assert ask(PRODUCE_PATH, real(broker), orjson.dumps(body | wrong))[0] == 400
    assert len(broker.appended[0]) == 1
