"""HTTP/1.1 of one connection: what is answered, in which order, and what a sender can not do to us."""

from __future__ import annotations

import base64
import gzip
import subprocess
import sys
import zlib
from pathlib import Path

import cramjam
import pytest

from appliance.senders.listener import Token
from services.ingest.protocols.http.http_endpoints import PATHS
from services.ingest.protocols.http.http_parser import HEADER_BYTES_MAX
from services.ingest.protocols.http.http_session import AHEAD_MAX, UNSENT_BYTES_MAX
from services.ingest.records.ack_group import AckOutcome
from services.ingest.records.intake import RefusedReason
from tests.support.http_talk import LISTENER, HttpTalk, chunked, request

ROOT = Path(__file__).parents[3]
LINE = b'{"message":"hello"}\n'
POST = request("/ingest/web", LINE)
GUARDED = LISTENER._replace(tokens=(Token("secret"), Token("other")))
SMALL = LISTENER._replace(frame_bytes_max=1000, decompressed_bytes_max=4000)


def test_every_input_of_the_table_can_be_loaded() -> None:
    for path in PATHS:
        assert callable(path.endpoint) and callable(path.busy_answer) and callable(path.unauthorized_answer), path.pattern


def test_an_idle_ingest_holds_neither_http_2_nor_protobuf() -> None:
    modules = ("http.http_session", "http.ndjson", "http.journal_upload", "otlp.otlp")
    words = f"import sys, {', '.join(f'services.ingest.protocols.{module}' for module in modules)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    assert not {name.partition(".")[0] for name in loaded} & {"h2", "hpack", "google", "opentelemetry", "ssl", "asyncio", "logging"}


def test_what_this_is_names_every_input_once() -> None:
    (answer,) = HttpTalk().ask(request("/", method="GET"))
    assert (
        all(each["what"] for each in answer.words["inputs"])
        and {"path": "/v1/logs", "methods": ["POST"], "what": "OTLP logs, protobuf or JSON"} in answer.words["inputs"]
    )


def test_a_request_is_answered_when_its_unit_has_settled_and_not_before() -> None:
    talk = HttpTalk()
    talk.send(POST)
    assert not talk.answers() and talk.session.unacknowledged_bytes == len(LINE)
    talk.intake.complete_all()
    (answer,) = talk.answers()
    assert answer.status == 200 and answer.words == {"received": 1, "stored": 1, "rejected": 0}
    assert talk.session.unacknowledged_bytes == 0 and not talk.connection.closed


def test_pipelined_requests_are_answered_in_their_order_whatever_settles_first() -> None:
    talk = HttpTalk()
    talk.send(POST + request("/health", method="GET") + request("/nowhere/at/all") + POST)
    first, last = talk.intake.in_flight
    talk.intake.complete(last)
    assert not talk.answers()
    talk.intake.complete(first)
    assert [answer.status for answer in talk.answers()] == [200, 200, 404, 200]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64])
def test_requests_split_anywhere_are_the_same_requests(step: int) -> None:
    stream = POST + chunked("/ingest/web", LINE[:5], LINE[5:], LINE) + request("/health", method="GET") + POST
    whole, pieces = HttpTalk(), HttpTalk()
    assert pieces.ask(stream, step) == whole.ask(stream)
    assert [record.value for record in pieces.intake.records] == [record.value for record in whole.intake.records]
    assert len(whole.intake.records) == 4


def test_a_refused_unit_is_answered_503_and_may_come_again() -> None:
    talk = HttpTalk()
    talk.send(POST)
    talk.intake.complete_all(AckOutcome.REFUSED)
    (answer,) = talk.answers()
    assert answer.status == 503 and answer.headers["retry-after"] == "1" and "again" in answer.words["do"]


def test_while_nothing_can_be_taken_a_request_is_refused_by_its_header_and_the_connection_goes_on() -> None:
    talk = HttpTalk()
    talk.intake.is_blocked = True
    talk.send(POST[:-1])
    (answer,) = talk.answers()
    assert answer.status == 503 and "retry-after" in answer.headers
    talk.intake.is_blocked = False
    assert [answer.status for answer in talk.ask(POST[-1:] + POST)] == [200]
    assert talk.intake.refused == {RefusedReason.BUSY: 1} and len(talk.intake.records) == 1


def test_a_blocked_topic_refuses_only_requests_that_name_it() -> None:
    talk = HttpTalk(topics=("web", "other"))
    talk.intake.blocked_topics = {"other"}
    assert [answer.status for answer in talk.ask(request("/ingest/other", LINE) + request("/ingest/web", LINE))] == [503, 200]


def test_a_sender_that_expects_100_continue_gets_it_when_its_turn_has_come() -> None:
    talk = HttpTalk()
    header, body = request("/ingest/web", LINE, Expect="100-continue").split(b"\r\n\r\n")
    talk.send(POST + header + b"\r\n\r\n")
    assert not talk.connection.sent
    talk.intake.complete_all()
    assert talk.connection.take_sent().endswith(b'"rejected":0}HTTP/1.1 100 Continue\r\n\r\n')
    assert [answer.status for answer in talk.ask(body)] == [200]


def test_a_refused_request_with_100_continue_closes_the_connection() -> None:
    talk = HttpTalk()
    talk.send(request("/nowhere/at/all", LINE, Expect="100-continue")[: -len(LINE)])
    (answer,) = talk.answers()
    assert answer.status == 404 and answer.headers["connection"] == "close" and talk.connection.closed


def test_an_unknown_path_lists_the_inputs_and_a_wrong_method_lists_the_allowed_ones() -> None:
    unknown, wrong = HttpTalk().ask(request("/v1/traces", b"x") + request("/v1/logs", method="GET"))
    assert unknown.status == 404 and "/v1/logs" in unknown.words["do"] and "/loki/api/v1/push" in unknown.words["do"]
    assert wrong.status == 405 and wrong.headers["allow"] == "POST"


def test_a_post_to_an_unknown_path_is_counted_and_a_get_is_not() -> None:
    talk = HttpTalk()
    wrong = request("/v1/log", LINE) + request("/health", LINE) + request("/favicon.ico", method="GET") + request("/v1/logs", method="OPTIONS")
    assert [answer.status for answer in talk.ask(wrong)] == [404, 405, 404, 405]
    assert talk.intake.refused == {RefusedReason.NO_INPUT: 2}


@pytest.mark.parametrize(
    "authorization",
    ["Bearer secret", "bearer other", "Splunk secret", "Basic " + base64.b64encode(b"me:secret").decode(), "ApiKey " + base64.b64encode(b"id:other").decode()],
)
def test_a_token_is_known_in_every_form(authorization: str) -> None:
    assert [answer.status for answer in HttpTalk(GUARDED).ask(request("/ingest/web", LINE, Authorization=authorization))] == [200]


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer secretx", "Basic c2VjcmV0", "Basic !", "Digest secret", "secret"])
def test_without_a_known_token_the_answer_is_401_but_for_probes(authorization: str) -> None:
    talk = HttpTalk(GUARDED)
    refused, health = talk.ask(request("/ingest/web", LINE, Authorization=authorization) + request("/health", method="GET"))
    assert refused.status == 401 and "www-authenticate" in refused.headers and health.status == 200
    assert talk.intake.refused == {RefusedReason.UNAUTHORIZED: 1} and not talk.intake.records


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(LINE, mtime=0)),
        ("x-gzip", gzip.compress(LINE, mtime=0)),
        ("deflate", zlib.compress(LINE)),
        ("deflate", zlib.compress(LINE)[2:-4]),
        ("zstd", bytes(cramjam.zstd.compress(LINE))),
        ("snappy", bytes(cramjam.snappy.compress_raw(LINE))),
        ("snappy", bytes(cramjam.snappy.compress(LINE))),
        ("identity", LINE),
    ],
)
def test_bodies_are_opened(coding: str, body: bytes) -> None:
    talk = HttpTalk()
    assert [answer.status for answer in talk.ask(request("/ingest/web", body, Content_Encoding=coding))] == [200]
    assert b'"message":"hello"' in talk.intake.records[0].value


def test_a_body_that_opens_to_too_much_is_413_a_broken_one_400_an_unknown_coding_415() -> None:
    talk = HttpTalk(SMALL)
    bomb = request("/ingest/web", gzip.compress(bytes(100_000), mtime=0), Content_Encoding="gzip")
    broken = request("/ingest/web", b"no gzip", Content_Encoding="gzip")
    unknown = request("/ingest/web", b"x", Content_Encoding="br")
    assert [answer.status for answer in talk.ask(bomb + broken + unknown + POST)] == [413, 400, 415, 200]
    assert talk.intake.refused == {RefusedReason.TOO_LARGE: 1, RefusedReason.MALFORMED: 2}


def test_a_body_over_its_limit_is_413_and_the_connection_goes_on_if_its_end_is_known() -> None:
    talk = HttpTalk(SMALL)
    first, second = talk.ask(request("/ingest/web", bytes(1500)) + POST)
    assert (first.status, second.status) == (413, 200)


def test_a_chunked_body_over_its_limit_is_413_and_ends_the_connection() -> None:
    talk = HttpTalk(SMALL)
    talk.send(chunked("/ingest/web", *[bytes(100)] * 11))
    (answer,) = talk.answers()
    assert answer.status == 413 and answer.headers["connection"] == "close" and talk.connection.closed


def test_a_body_that_goes_on_after_413_is_read_only_so_far() -> None:
    talk = HttpTalk(SMALL)
    talk.send(request("/ingest/web", b"", Content_Length="1000000000").replace(b"Content-Length: 0\r\n", b""))
    assert [answer.status for answer in talk.answers()] == [413] and not talk.connection.closed
    for _ in range(30):
        talk.send(bytes(100))
    assert talk.connection.closed


@pytest.mark.parametrize("step", [1000, 65536])
@pytest.mark.parametrize("stream", [b"GET /" + b"x" * 140_000, b"GET / HTTP/1.1\r\nX: " + b"x" * 140_000, b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 14_000])
def test_a_header_has_64_kib_at_most_and_a_received_piece(stream: bytes, step: int) -> None:
    talk = HttpTalk()
    talk.send(stream, step)
    assert [answer.status for answer in talk.answers()] == [431] and talk.connection.closed
    assert talk.intake.refused == {RefusedReason.TOO_LARGE: 1} and HEADER_BYTES_MAX == 65536


def test_bytes_that_are_no_http_are_answered_400_behind_the_answers_before_them() -> None:
    talk = HttpTalk()
    talk.send(POST + b"\x16\x03\x01\x02\x00\x01 hello\r\n\r\n" + POST)
    assert not talk.answers()
    talk.intake.complete_all()
    assert [answer.status for answer in talk.answers()] == [200, 400] and talk.connection.closed
    assert len(talk.intake.records) == 1


def test_a_length_and_chunks_at_once_are_refused() -> None:
    talk = HttpTalk()
    talk.send(chunked("/ingest/web", LINE, Content_Length="5"))
    assert [answer.status for answer in talk.answers()] == [400] and talk.connection.closed and not talk.intake.records


def test_an_upgrade_is_not_followed_and_its_body_not_lost() -> None:
    talk = HttpTalk()
    upgrade = request("/ingest/web", LINE, Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", HTTP2_Settings="AAMAAABkAAQ")
    assert [answer.status for answer in talk.ask(upgrade + POST, 5)] == [200, 200] and len(talk.intake.records) == 2


def test_connection_close_and_http_1_0_end_the_connection_behind_the_answer() -> None:
    for stream in (request("/ingest/web", LINE, Connection="close"), POST.replace(b"HTTP/1.1", b"HTTP/1.0")):
        talk = HttpTalk()
        talk.send(stream)
        assert not talk.connection.closed
        talk.intake.complete_all()
        (answer,) = talk.answers()
        assert answer.status == 200 and answer.headers["connection"] == "close" and talk.connection.closed


def test_head_is_answered_like_get_without_the_body() -> None:
    talk = HttpTalk()
    talk.send(request("/", method="HEAD"))
    (head,) = talk.answers("HEAD")
    assert head.status == 200 and int(head.headers["content-length"]) > 100


def test_a_request_that_stands_still_is_answered_408() -> None:
    for beginning in (b"GET / HT", POST[:-3]):
        talk = HttpTalk()
        talk.send(beginning)
        talk.session.tick(talk.intake.clock_ms + LISTENER.idle_ms_max)
        assert not talk.connection.closed
        talk.session.tick(talk.intake.clock_ms + LISTENER.idle_ms_max + 1)
        assert [answer.status for answer in talk.answers()] == [408] and talk.connection.closed
        assert talk.intake.refused == {RefusedReason.TIMED_OUT: 1}


def test_a_body_that_comes_by_drops_is_given_up() -> None:
    talk = HttpTalk()
    talk.send(request("/ingest/web", bytes(1000))[:-1000])
    for second in range(1, 120):
        talk.send(b"x")
        talk.session.tick(talk.intake.clock_ms + second * 1000)
    assert [answer.status for answer in talk.answers()] == [408]


def test_a_connection_that_waits_for_us_is_not_timed_out_and_one_that_asks_nothing_is() -> None:
    talk = HttpTalk()
    talk.send(POST)
    talk.session.tick(talk.intake.clock_ms + 10_000_000)
    assert not talk.connection.closed
    talk.intake.complete_all()
    talk.session.tick(talk.intake.clock_ms + 10_000_000 + 10 * LISTENER.idle_ms_max)
    assert not talk.connection.closed
    talk.session.tick(talk.intake.clock_ms + 10_000_000 + 10 * LISTENER.idle_ms_max + 1)
    assert talk.connection.closed == "idle"


def test_reading_stops_while_too_many_requests_wait_and_goes_on_when_they_are_answered() -> None:
    talk = HttpTalk()
    talk.send(POST * AHEAD_MAX)
    assert not talk.connection.is_held
    talk.send(POST)
    assert talk.connection.is_held
    talk.intake.complete_all()
    assert not talk.connection.is_held and len(talk.answers()) == AHEAD_MAX + 1


def test_reading_stops_while_answers_are_not_taken() -> None:
    talk = HttpTalk()
    talk.connection.unsent_bytes = UNSENT_BYTES_MAX + 1
    talk.send(request("/health", method="GET"))
    assert talk.connection.is_held
    talk.connection.unsent_bytes = 0
    talk.session.tick(talk.intake.clock_ms + 1000)
    assert not talk.connection.is_held


def test_a_sender_that_ends_its_side_is_answered_and_one_that_ends_inside_a_request_is_counted() -> None:
    talk = HttpTalk()
    talk.send(POST + POST[:-1])
    talk.session.finished()
    assert talk.intake.refused == {RefusedReason.INCOMPLETE: 1} and not talk.connection.closed
    talk.intake.complete_all()
    assert [answer.status for answer in talk.answers()] == [200] and talk.connection.closed


def test_a_settlement_after_the_connection_went_sends_nothing() -> None:
    talk = HttpTalk()
    talk.send(POST + POST[:-1])
    talk.session.lost()
    talk.intake.complete_all()
    assert not talk.connection.sent and len(talk.intake.records) == 1


def test_an_idempotency_key_is_an_identity_of_its_listener_user_and_path() -> None:
    def identity(path: str = "/ingest/web", key: str = "k1", principal: str = "", name: str = "http") -> bytes:
        talk = HttpTalk(LISTENER._replace(name=name), ("web", "app"), principal)
        talk.send(request(path, LINE, Idempotency_Key=key))
        (found,) = talk.intake.closed[0].identities or ()
        assert len(found) == 16
        return found

    others = [identity(path="/ingest/app"), identity(key="k2"), identity(principal="client"), identity(name="dmz")]
    assert len({identity(), *others}) == 5 and identity() == identity()


def test_a_duplicate_is_answered_like_what_was_stored() -> None:
    talk = HttpTalk()
    talk.send(request("/ingest/web", LINE, Idempotency_Key="k1"))
    talk.intake.complete_all(AckOutcome.DUPLICATE)
    (answer,) = talk.answers()
    assert answer.status == 200 and answer.words == {"received": 1, "stored": 0, "rejected": 0, "duplicate": 1}
