"""Web pages at an HTTP listener: refused, unless `allow-origin` names their site."""

from __future__ import annotations

import pytest

from appliance.senders.listener import ListenerTransport, Token
from services.ingest.records.intake import RefusedReason
from tests.support.http_talk import LISTENER, HttpTalk, request
from tests.unit.services.ingest.test_http2_session import MESSAGE, Http2Talk, framed

LINE = b'{"message":"hello"}\n'
APP = "https://app.example.com"
OPEN = LISTENER._replace(allow_origin=(APP,))
PREFLIGHT = {"Origin": APP, "Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization,content-type"}


def post(host: str = "localhost", **headers: str) -> bytes:
    return request("/ingest/web", LINE, **headers).replace(b"Host: localhost", f"Host: {host}".encode())


@pytest.mark.parametrize("path", ["/ingest/web", "/_bulk", "/gelf", "/v1/logs", "/loki/api/v1/push", "/services/collector", "/upload", "/nowhere"])
@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}, {"Origin": "null"}])
def test_a_page_of_another_site_stores_nothing_and_is_counted(path: str, headers: dict[str, str]) -> None:
    talk = HttpTalk()
    (answer,) = talk.ask(request(path, LINE, **headers))
    assert answer.status == 403 and "access-control-allow-origin" not in answer.headers
    assert talk.intake.refused == {RefusedReason.CROSS_SITE: 1} and not talk.intake.records


def test_a_name_that_is_not_the_box_s_is_refused_whatever_is_sent() -> None:
    talk = HttpTalk()
    talk.send(post("evil.example:8081") + post("evil.example", Origin="http://evil.example") + request("/health", method="GET").replace(b"localhost", b"evil"))
    assert [answer.status for answer in talk.answers()] == [421] * 3
    assert talk.intake.refused == {RefusedReason.UNKNOWN_HOST: 3} and not talk.intake.records


@pytest.mark.parametrize("listener", [LISTENER._replace(tokens=(Token("secret"),)), LISTENER._replace(transport=ListenerTransport.TLS)])
def test_a_token_or_a_certificate_says_more_than_a_name(listener: object) -> None:
    talk = HttpTalk(listener)  # type: ignore[arg-type]
    assert [answer.status for answer in talk.ask(post("alias.example", Authorization="Bearer secret"))] == [200]
    assert [answer.status for answer in talk.ask(post("alias.example", Authorization="Bearer secret", Origin="http://evil.example"))] == [403]


def test_programs_and_pages_of_the_box_itself_are_not_disturbed() -> None:
    talk = HttpTalk()
    answers = talk.ask(post("192.0.2.7:8081") + post(Origin="http://localhost") + post(Sec_Fetch_Site="same-origin") + post(Sec_Fetch_Site="none"))
    assert [answer.status for answer in answers] == [200] * 4 and not talk.intake.refused


def test_an_allowed_page_reads_every_answer_even_a_refusal() -> None:
    talk = HttpTalk(OPEN)
    stored, missing = talk.ask(post(Origin=APP, Sec_Fetch_Site="cross-site") + request("/nowhere/at/all", LINE, Origin=APP))
    assert (stored.status, missing.status) == (200, 404) and len(talk.intake.records) == 1
    for answer in (stored, missing):
        assert answer.headers["access-control-allow-origin"] == APP and answer.headers["vary"] == "Origin"
    assert [answer.status for answer in talk.ask(post(Origin="https://other.example"))] == [403]


def test_a_preflight_is_answered_without_a_token_and_stores_nothing() -> None:
    talk = HttpTalk(OPEN._replace(tokens=(Token("secret"),)))
    (answer,) = talk.ask(request("/v1/logs", method="OPTIONS", **PREFLIGHT))
    assert answer.status == 204 and not talk.intake.refused and not talk.intake.records
    assert answer.headers["access-control-allow-origin"] == APP and "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
    assert [answer.status for answer in talk.ask(request("/v1/logs", b"{}", Origin=APP))] == [401], "the request itself needs one"


def test_a_preflight_of_another_site_is_refused() -> None:
    (answer,) = HttpTalk(OPEN).ask(request("/v1/logs", method="OPTIONS", **{**PREFLIGHT, "Origin": "https://other.example"}))
    assert answer.status == 403 and "access-control-allow-origin" not in answer.headers


def test_requests_of_http_2_follow_the_same_rules() -> None:
    talk = Http2Talk()
    page = talk.call(framed(MESSAGE), more=[("origin", "http://evil.example")])
    assert talk.headers_of(page)["grpc-status"] == "7" and talk.intake.refused == {RefusedReason.CROSS_SITE: 1}
    plain = talk.call(LINE, path="/ingest/web", media_type="text/plain", more=[("sec-fetch-site", "cross-site")])
    assert talk.headers_of(plain)[":status"] == "403" and not talk.intake.records
