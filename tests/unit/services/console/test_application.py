"""What HTTP says: pages, probes, and clean answers to everything else."""

from __future__ import annotations

import asyncio
import re
from typing import Any, NamedTuple

import orjson
import pytest

from appliance.base.networks import read_networks
from services.console.access import Access
from services.console.application import make_application
from services.console.box_sample import Readiness
from services.console.figure_history import DAY_MS, HistorySpan
from services.console.pages import ASSETS, PAGES

LOOPBACK = Access(read_networks("127.0.0.0/8, ::1"))


class FakeWatch:
    """A box that is as a test says."""

    def __init__(self, missing: dict[str, str] | None = None, alive: bool = True) -> None:
        self._readiness, self._alive = Readiness(2, missing or {}), alive
        self.asked_since: list[int] = []

    def overview(self, since_ms: int, _visible: object) -> dict[str, Any]:
        self.asked_since.append(since_ms)
        disks, processes = [{"name": "d0", "path": "/srv/d0"}], [{"name": "a", "pid": 7}, {"name": "b", "pid": 0}]
        return {"box": "b", "version": "1.2.3", "disks": disks, "processes": processes}

    def alarms_document(self, _visible: object) -> dict[str, Any]:
        return {"present": [], "push": {"target": "http://192.0.2.9"}, "problems": ["/srv/state is full"]}

    def figures_between(self, span: HistorySpan) -> dict[str, Any]:
        return span._asdict()

    def senders(self) -> dict[str, Any]:
        return {"senders": [{"host": "192.0.2.7"}]}

    def metrics(self, shows_release: bool) -> bytes:
        return b"# 1.2.3\n" * shows_release + b"# HELP x y\nx 1\n"

    def is_alive(self) -> bool:
        return self._alive

    def readiness(self) -> Readiness:
        return self._readiness


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def ask(path: str, watch: FakeWatch | None = None, method: str = "GET", refused: list[str] | None = None, client: str = "127.0.0.1", **headers: str) -> Answer:
    sent: list[Any] = []
    refused = [] if refused is None else refused

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    path, _, query = path.partition("?")
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": given, "http_version": "1.1", "root_path": ""}
    scope["client"] = (client, 1) if client else None
    asyncio.run(make_application(watch or FakeWatch(), frozenset({"localhost", "logs.example.com"}), LOOPBACK, refused.append)(scope, receive, send))
    got = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], got, b"".join(message.get("body", b"") for message in sent[1:]))


@pytest.mark.parametrize(
    ("client", "sees"), [("127.0.0.9", True), ("::1", True), ("", True), ("::ffff:127.0.0.1", True), ("10.0.0.7", False), ("fe80::1%eth0", False)]
)
def test_only_allowed_networks_learn_senders_paths_of_disks_process_ids_and_the_release(client: str, sees: bool) -> None:
    document = orjson.loads(ask("/api/overview", client=client).body)
    assert document["version"] == ("1.2.3" if sees else None)
    assert document["disks"] == [{"name": "d0", "path": "/srv/d0" if sees else None}]
    assert [process["pid"] for process in document["processes"]] == [7 if sees else None, 0]
    assert (b"1.2.3" in ask("/metrics", client=client).body) == sees
    alarms = ask("/api/alarms", client=client).body
    assert (b"192.0.2.9" in alarms) == (b"/srv/state" in alarms) == sees
    senders = ask("/api/senders", client=client)
    assert (senders.status, b"192.0.2.7" in senders.body) == ((200, True) if sees else (403, False))


def test_readyz_is_503_with_what_is_missing_until_all_serve() -> None:
    missing = ask("/readyz", FakeWatch({"controller": "dead"}))
    assert (missing.status, orjson.loads(missing.body)) == (503, {"status": "not ready", "processes": 2, "missing": {"controller": "dead"}})
    ready = ask("/readyz")
    assert (ready.status, orjson.loads(ready.body)) == (200, {"status": "ready", "processes": 2, "missing": {}})


def test_healthz_succeeds_while_the_supervisor_runs() -> None:
    assert ask("/healthz", FakeWatch({"controller": "dead"})).status == 200
    assert ask("/healthz", FakeWatch(alive=False)).status == 503


def test_metrics_are_prometheus_s_text() -> None:
    answer = ask("/metrics")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert answer.body.endswith(b"x 1\n")


@pytest.mark.parametrize("path", [page.path for page in PAGES])
def test_a_page_names_only_what_is_served_here(path: str) -> None:
    page = ask(path)
    assert page.status == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    named = [link for link in re.findall(r'(?:src|href)="([^"]+)"', page.body.decode()) if link != "#content"]
    assert len(named) >= 8 and not any(link.startswith("/") or ":" in link for link in named), "a proxy may put a prefix before them"
    assert [link for link in named if ask(f"/{link.removeprefix('./')}").status != 200] == []
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.body.count(b'aria-current="page"') == 1 and all(f'href="{each.path[1:] or "./"}"' in page.body.decode() for each in PAGES)
    assert b"<!--" not in page.body
    assert not re.search(r"<(script|style)>|\bstyle=|\bon[a-z]+=", page.body.decode()), "the policy lets nothing inline run"


def test_texts_have_a_contrast_of_4_5_on_each_ground_that_they_stand_on() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    css = (ASSETS / "page.css").read_text()
    themes = re.findall(r"--ground: [^}]+--accent: #[0-9a-f]{6};", css)
    assert len(themes) == 3 and themes[1].split() == themes[2].split()
    on = {"text": "ground surface track", "soft": "ground surface track", "faint": "surface ground", "accent": "surface", "surface": "accent"}
    on |= {kind: f"{kind}-ground surface" for kind in ("good", "warn", "bad")}
    for theme in themes:
        colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", theme))
        for text, grounds in on.items():
            for ground in grounds.split():
                low, high = sorted((luminance(colours[text]), luminance(colours[ground])))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground, colours[text], colours[ground], (high + 0.05) / (low + 0.05))


@pytest.mark.parametrize("file", [path.name for path in ASSETS.iterdir() if path.suffix in (".js", ".css")])
def test_no_file_of_the_page_asks_another_site(file: str) -> None:
    text = (ASSETS / file).read_text()
    urls = set(re.findall(r"https?://[^\s\"')]+", text)) - {"https://github.com/leeoniya/uPlot"}
    assert urls == set() and "@import" not in text


def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    first = ask("/assets/page.js")
    again = ask("/assets/page.js", if_none_match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"") and again.headers["etag"] == first.headers["etag"]


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz", "/readyz", "/api/overview", "/assets/page.css"])
def test_head_is_get_without_a_body_and_other_methods_are_refused(path: str) -> None:
    head, get = ask(path, method="HEAD"), ask(path)
    assert (head.status, head.headers) == (get.status, get.headers)
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        refused = ask(path, method=method)
        assert refused.status == 405 and set(refused.headers["allow"].split(", ")) == {"GET", "HEAD"} and orjson.loads(refused.body)["error"]


@pytest.mark.parametrize("path", ["/nothing", "/assets/", "/assets/../box.json", "/assets/LICENSE.uPlot/", "/metrics/", "/api", "//", "/%00"])
def test_an_unknown_path_is_404_in_json(path: str) -> None:
    answer = ask(path)
    assert answer.status == 404 and "no such page" in orjson.loads(answer.body)["error"]


@pytest.mark.parametrize("headers", [{"content_length": "65537"}, {"content_length": "9" * 30}, {"content_length": "-1"}, {"transfer_encoding": "chunked"}])
def test_a_request_body_is_refused(headers: dict[str, str]) -> None:
    answer = ask("/metrics", method="POST", **headers)
    assert answer.status == 413 and answer.headers["connection"] == "close"
    assert ask("/metrics", content_length="10").status == 200


def test_headers_and_paths_without_end_are_refused() -> None:
    assert (ask("/metrics", x=16_300 * "y").status, ask("/metrics", x=16_400 * "y").status) == (200, 431)
    assert (ask("/" + 4_000 * "y").status, ask("/" + 4_100 * "y").status, ask("/readyz?" + 4_100 * "y").status) == (404, 414, 414)


@pytest.mark.parametrize("query", ["", "from=1", "from=5&to=5", "from=6&to=5", "from=-1&to=5", "from=x&to=5", f"from=0&to={31 * DAY_MS + 1}"])
def test_a_span_that_is_none_or_too_long_is_refused(query: str) -> None:
    assert orjson.loads(ask("/api/history?from=5&to=9").body) == {"start_ms": 5, "end_ms": 9}
    refused = ask(f"/api/history?{query}")
    assert refused.status == 400 and "from" in orjson.loads(refused.body)["error"]


@pytest.mark.parametrize("since", ["-1", "1e9", "x", "", "9" * 16, "١٢"])
def test_a_time_that_is_none_is_refused(since: str) -> None:
    watch = FakeWatch()
    assert ask(f"/api/overview?since={since}", watch).status == 400
    assert ask("/api/overview?since=12", watch).status == ask("/api/overview", watch).status == 200
    assert watch.asked_since == [12, 0]


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "[::1]:8080", "localhost", "LOGS.example.com.:8080"])
def test_the_console_answers_to_addresses_and_to_names_of_the_box(host: str) -> None:
    assert ask("/metrics", host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "2130706433", "x" * 10_000])
def test_another_name_is_refused_with_421_on_every_path(host: str) -> None:
    refused: list[str] = []
    for path in ("/", "/metrics", "/api/overview", "/readyz", "/nothing"):
        assert ask(path, host=host, refused=refused).status == 421
    assert refused == ["unknown_host"] * 5


@pytest.mark.parametrize("headers", [{"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, {"origin": "http://evil.example"}, {"origin": "null"}])
def test_a_page_of_another_site_reads_nothing(headers: dict[str, str]) -> None:
    refused: list[str] = []
    assert ask("/api/overview", host="localhost", refused=refused, **headers).status == 403 and refused == ["cross_site"]


def test_the_page_itself_and_a_link_to_it_are_served() -> None:
    own = {"host": "localhost:8080", "origin": "http://localhost:8080", "sec_fetch_site": "same-origin"}
    assert ask("/api/overview", **own).status == 200
    link = {"host": "localhost:8080", "sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert ask("/", **link).status == 200
    assert ask("/", **{**link, "sec_fetch_dest": "iframe"}).status == 403


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/overview", "/nothing"])
def test_no_answer_may_be_embedded_by_another_site(path: str) -> None:
    assert ask(path).headers["cross-origin-resource-policy"] == "same-origin"


class NoSearch:
    """As many searches run as may."""

    is_off = False

    def why_busy(self, _searcher: object) -> str:
        return "wait"


@pytest.mark.parametrize(
    ("client", "has_authorizer", "headers", "status"),
    [
        ("", False, {}, 429), ("", True, {}, 429), ("127.0.0.1", False, {}, 429), ("127.0.0.1", True, {}, 403), ("10.0.0.7", False, {}, 403),
        ("127.0.0.1", False, {"accept": "image/webp,*/*"}, 403), ("127.0.0.1", False, {"sec-fetch-mode": "navigate"}, 403),
        ("127.0.0.1", False, {"user-agent": "Mozilla/5.0"}, 403), ("127.0.0.1", False, {"user-agent": "Mozilla/5.0", "x-millrace": "search"}, 429),
        ("10.0.0.7", False, {"x-millrace": "search"}, 403), ("127.0.0.1", True, {"x-millrace": "search"}, 403),
    ],
)  # fmt: skip
def test_records_are_searched_for_allowed_networks_and_with_an_authorizer_for_the_unix_socket(
    client: str, has_authorizer: bool, headers: dict[str, str], status: int
) -> None:
    search: Any = NoSearch()
    application = make_application(FakeWatch(), frozenset(), LOOPBACK._replace(has_authorizer=has_authorizer), [].append, search)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    given = [(name.encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "method": "GET", "path": "/api/search", "query_string": b"topic=t", "headers": given, "http_version": "1.1", "root_path": ""}
    scope["client"] = (client, 1) if client else None
    asyncio.run(application(scope, receive, send))
    assert sent[0]["status"] == status
