"""Users of the console: sessions, roles, proxies, and that each route asks for them; requests go through the whole application, logins to a fake box."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import urlencode

import orjson
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from appliance.base.clock import SystemClock
from appliance.base.networks import read_networks
from appliance.client.cluster import ClusterClient
from appliance.client.errors import BrokerUnreachable
from appliance.client.security import AuthenticationFailed
from appliance.security.principals import ActingFor
from services.console.access import Access
from services.console.application import make_application
from services.console.kafka_routes import CHANGES, READS
from services.console.kafka_workers import WORKERS_MAX, KafkaWorkers
from services.console.login_routes import Users
from services.console.pages import PAGES
from services.console.person_guard import LOGIN_PATH, LOGOUT_PATH, Persons, Proxies
from services.console.person_rights import KEPT_MS, LAST_KNOWN_MS, NONE, RETRY_MS, PersonRights, Visible, without_names
from services.console.persons import (
    ATTEMPTS_MAX,
    ATTEMPTS_OF_NETWORK_MAX,
    DELAY_MS_MAX,
    FAILURES_KEPT,
    FIRST_DELAY_MS,
    IDLE_MS,
    NEEDED,
    REMEMBERED_MS,
    SESSIONS_MAX,
    SESSIONS_OF_USER_MAX,
    WHOLE_MS,
    LoginAttempts,
    Role,
    Roles,
    Sessions,
    digest_of,
    role_needed,
)
from services.console.search_processes import SearchAnswer, Searcher, SearchProcesses

HOST = "127.0.0.1:8080"
PROXY = "10.0.0.2"
ROLES = Roles(["User:vera", "User:otto;User:vera", "User:anna"])
USERS = {"vera": "v", "otto": "o", "anna": "a", "mallory": "m"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


class BusySearches(SearchProcesses):
    """All run: a search that may begin is refused by that."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(), 1)  # type: ignore[arg-type]

        self.following: Any = None

    def why_busy(self, searcher: Searcher) -> str | None:
        return "all run" if self.following is None else None

    async def start(self, request: bytes, searcher: Searcher) -> SearchAnswer:
        answer: SearchAnswer = self.following
        return answer


JUDGED = 429
"""The status of a search that the person may do."""


class Workers(KafkaWorkers):
    """A box that knows `USERS`, and for which each question is answered by `answer`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 1))
        self.asked: list[ActingFor | None] = []
        self.raised: Exception | None = None
        self.answer: Any = b"{}"

    async def ask(self, question: Callable[[ClusterClient], Any], needs_broker: bool = True, person: ActingFor | None = None) -> Any:
        self.asked.append(person)
        if self.raised is not None:
            raise self.raised
        return self.answer


class Logins(KafkaWorkers):
    """Verifies passwords; `person` of a question is in its closure, as only a real box reads it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 1))
        self.persons: list[ActingFor] = []
        self.raised: Exception | None = None

    async def ask(self, question: Callable[[ClusterClient], Any], needs_broker: bool = True, person: ActingFor | None = None) -> Any:
        if self.raised is not None:
            raise self.raised
        (found,) = (cell.cell_contents for cell in question.__closure__ or () if isinstance(cell.cell_contents, ActingFor))
        self.persons.append(found)
        return "tag" if USERS.get(found.user) == found.password else None


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, wanted: str) -> str:
        return next((value for name, value in self.headers if name == wanted), "")

    @property
    def document(self) -> Any:
        return orjson.loads(self.body)

    @property
    def cookie(self) -> str:
        return self.header("set-cookie").partition(";")[0]


class Console:
    """The application with users."""

    def __init__(self, has_authorizer: bool = True, logins: Logins | None = None) -> None:
        self.workers, self.logins = Workers(), logins or Logins()
        self.persons = Persons(ROLES, Proxies(read_networks(f"{PROXY}, 10.0.0.3"), "X-User"), b"k" * 32, "millrace-b0b")
        self.counted: list[bool] = []
        self.refused: list[str] = []
        self.seen: list[Visible] = []
        access = Access(read_networks("127.0.0.0/8"), has_authorizer, needs_login=True, end_session=self.persons.sessions.end)
        access = access._replace(has_session=lambda digest: self.persons.sessions.has(digest, SystemClock.monotonic_ms()))
        watch: Any = SimpleNamespace(
            layout=None,
            last_sample=None,
            overview=lambda _since, visible: self.seen.append(visible) or {"topics": []},
            topics=lambda _contained, _internal, visible: self.seen.append(visible) or {"topics": []},
            senders=lambda: {"senders": []},
            alarms_document=lambda visible: self.seen.append(visible) or {"push": {}, "problems": []},
            figures_between=lambda _span: {},
            metrics=lambda _shows: b"",
            is_alive=lambda: True,
            readiness=lambda: SimpleNamespace(is_ready=True, processes=1, missing={}),
        )
        self.searches = BusySearches()
        users = Users(self.persons, self.logins, self.counted.append)
        self.application: Starlette = make_application(watch, frozenset({"localhost"}), access, self.refused.append, self.searches, self.workers, users)

    def ask(self, path: str, method: str = "GET", body: bytes = b"", client: str | None = "127.0.0.1", **headers: str | list[str] | None) -> Answer:
        return asyncio.run(self.asked(path, method, body, client, **headers))

    async def asked(self, path: str, method: str = "GET", body: bytes = b"", client: str | None = "127.0.0.1", **headers: str | list[str] | None) -> Answer:
        given = {"host": HOST, "x-millrace": "console", **{name.replace("_", "-"): value for name, value in headers.items()}}
        sent: list[Any] = []
        path, _, query = path.partition("?")
        pairs = [
            (name.encode(), text.encode()) for name, value in given.items() if value is not None for text in ([value] if isinstance(value, str) else value)
        ]
        scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "http_version": "1.1", "root_path": ""}
        scope |= {"client": (client, 1) if client else None, "headers": [*pairs, (b"content-length", str(len(body)).encode())]}

        bodies = [body]

        async def receive() -> dict[str, Any]:
            if not bodies:
                await asyncio.Event().wait()  # the client stays
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.application(scope, receive, send)
        found = [(name.decode().lower(), value.decode()) for name, value in sent[0]["headers"]]
        return Answer(sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:]))

    def log_in(self, user: str, goes_on: str = "/", **more: Any) -> Answer:
        return self.ask(LOGIN_PATH, "POST", urlencode({"user": user, "password": USERS[user], "next": goes_on}).encode(), **(FORM | more))

    def session(self, user: str) -> tuple[str, str]:
        """A cookie and its token."""
        cookie = self.log_in(user).cookie
        return cookie, self.ask("/api/rights", cookie=cookie).document["token"]

    def change(self, path: str, **headers: Any) -> Answer:
        return self.ask(path, "POST", b"{}", **{"content_type": "application/json", **headers})


# ---- pure rules


def test_the_largest_role_counts_and_a_star_is_every_user() -> None:
    assert [ROLES.role_of(user) for user in ("vera", "otto", "anna", "mallory", "")] == [Role.OPERATOR, Role.OPERATOR, Role.ADMIN, None, None]
    everyone = Roles(["User:*", "", "User:anna"])
    assert (everyone.role_of("anybody"), everyone.role_of("anna")) == (Role.VIEWER, Role.ADMIN)


def test_a_session_ends_after_idleness_and_at_the_latest_after_half_a_day() -> None:
    sessions = Sessions(b"key")
    sessions.begin("a", "vera", "tag", 0)
    digest = digest_of("a")
    for now_ms in range(0, WHOLE_MS, IDLE_MS - 1):
        assert sessions.use(digest, now_ms) is not None and sessions.has(digest, now_ms)
    assert not sessions.has(digest, WHOLE_MS) and sessions.use(digest, WHOLE_MS) is None and len(sessions) == 0
    sessions.begin("b", "vera", "tag", 0)
    sessions.sweep(IDLE_MS - 1)
    assert len(sessions) == 1
    sessions.sweep(IDLE_MS)
    assert len(sessions) == 0


def test_sessions_are_bounded_of_all_users_and_of_one() -> None:
    sessions = Sessions(b"key")
    sessions.begin("first", "otto", "", 0)
    for number in range(SESSIONS_OF_USER_MAX + 1):
        sessions.begin(f"v{number}", "vera", "", 0)
    assert len(sessions) == SESSIONS_OF_USER_MAX + 1 and not sessions.has(digest_of("v0"), 0) and sessions.has(digest_of("v1"), 0)
    sessions.use(digest_of("first"), 0)
    for number in range(SESSIONS_MAX - SESSIONS_OF_USER_MAX):
        sessions.begin(f"o{number}", f"user {number}", "", 0)
    assert len(sessions) == SESSIONS_MAX and sessions.has(digest_of("first"), 0) and not sessions.has(digest_of("v1"), 0)


def test_tokens_are_of_one_session_and_of_one_console() -> None:
    sessions = Sessions(b"key")
    tokens = {sessions.token_of(digest_of("a"), "vera"), sessions.token_of(digest_of("b"), "vera"), sessions.token_of(b"", "vera")}
    assert len(tokens | {Sessions(b"other").token_of(b"", "vera"), sessions.token_of(b"", "otto")}) == 5


def test_failures_delay_longer_and_longer_by_network_and_by_name() -> None:
    attempts = LoginAttempts()
    delays = [attempts.fail("10.0.0.9", f"user {number}", 0) for number in range(8)]
    assert delays == [FIRST_DELAY_MS, 500, 1000, 2000, 4000, 8000, DELAY_MS_MAX, DELAY_MS_MAX]
    for number in range(4):
        attempts.fail(f"10.0.1.{number}", "vera", 0)
    assert attempts.fail("10.0.2.1", "vera", 0) == 4000, "of all networks together"
    assert attempts.fail("10.0.2.1", "vera", REMEMBERED_MS) == FIRST_DELAY_MS
    for number in range(FAILURES_KEPT):
        attempts.fail(f"10.1.0.{number}", f"{number}", 0)
    assert attempts.fail("10.0.0.9", "x", 0) == FIRST_DELAY_MS, "what is remembered is bounded"


def test_attempts_under_way_are_bounded_by_network_and_in_all() -> None:
    attempts = LoginAttempts()
    assert [attempts.begin("a") for _ in range(ATTEMPTS_OF_NETWORK_MAX + 1)] == [True] * ATTEMPTS_OF_NETWORK_MAX + [False]
    assert all(attempts.begin(str(number)) for number in range(ATTEMPTS_MAX - ATTEMPTS_OF_NETWORK_MAX)) and not attempts.begin("b")
    attempts.end("a")
    assert attempts.begin("b") and not attempts.begin("a")


# ---- login and logout


def test_a_login_needs_no_script_and_its_cookie_is_for_the_console_alone() -> None:
    console = Console()
    page = console.ask("/login?next=/topics?topic=a%26b")
    assert page.status == 200 and b'<form method="post" action="./login">' in page.body and b'value="/topics?topic=a&amp;b"' in page.body
    assert "form-action 'self'" in page.header("content-security-policy") and "script-src 'self'" in page.header("content-security-policy")
    answer = console.log_in("vera", "/topics?topic=a&b")
    assert (answer.status, answer.header("location"), answer.body) == (303, "./topics?topic=a&b", b"")
    name, _, rest = answer.header("set-cookie").partition("=")
    assert name == "millrace-b0b" and rest.endswith("; Path=/; HttpOnly; SameSite=Strict") and len(rest.partition(";")[0]) == 43
    console.ask(LOGIN_PATH, "POST", b"user=vera&password=v%0D%0A", **FORM)  # type: ignore[arg-type]  # as a file has it
    assert console.logins.persons == [ActingFor("vera", "127.0.0.1", password="v")] * 2 and console.counted == [True, True]
    rights = console.ask("/api/rights", cookie=answer.cookie).document
    assert rights["person"] == {"user": "vera", "role": "operator"} and set(rights["refused"]) == {path for path in CHANGES if NEEDED[path] is Role.ADMIN}


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "https://evil.example/", "/\\evil.example", "/nothing", "/topics\r\nSet-Cookie: x=1", "javascript:alert(1)", ""]
)
def test_a_login_leads_to_a_page_of_ours_alone(wanted: str) -> None:
    assert Console().log_in("vera", wanted).header("location") == "./"
    assert "\n" not in Console().log_in("vera", "/topics?a=\r\nSet-Cookie: x=1").header("location")


def test_a_session_secret_is_never_taken_from_the_client_and_an_old_one_ends() -> None:
    console = Console()
    console.persons.sessions.begin("planted", "vera", "tag", time.monotonic_ns() // 1_000_000)
    planted = "millrace-b0b=planted"
    assert console.ask("/api/rights", cookie=planted).status == 200
    answer = console.log_in("otto", cookie=planted)
    assert answer.cookie and answer.cookie != planted
    assert console.ask("/api/rights", cookie=planted).status == 401, "what an attacker has planted ends with the login"
    assert console.ask("/api/rights", cookie="millrace-b0b=invented").status == 401
    assert console.ask("/api/rights", cookie=f"{answer.cookie}; millrace-b0b=other").status == 401, "two are none"
    assert console.log_in("otto").cookie != console.log_in("otto").cookie


def test_a_stolen_cookie_is_worth_nothing_after_logout_and_logout_needs_the_token() -> None:
    console = Console()
    cookie, token = console.session("anna")
    assert console.ask(LOGOUT_PATH, "POST", b"", cookie=cookie, **FORM).status == 403
    assert console.ask(LOGOUT_PATH, "POST", urlencode({"token": "0" * 64}).encode(), cookie=cookie, **FORM).status == 403
    assert console.ask("/api/rights", cookie=cookie).status == 200 and token.encode() in console.ask("/login", cookie=cookie).body
    answer = console.ask(LOGOUT_PATH, "POST", urlencode({"token": token}).encode(), cookie=cookie, **FORM)
    assert (answer.status, answer.header("location")) == (303, "./login") and "Max-Age=0" in answer.header("set-cookie")
    assert console.ask("/api/rights", cookie=cookie).status == 401
    assert console.change("/api/topic/create", cookie=cookie, x_millrace_token=token).status == 401


def test_wrong_passwords_unknown_users_and_malformed_names_get_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    console, waited = Console(), []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("services.console.login_routes.asyncio.sleep", sleep)
    answers = [
        console.ask(LOGIN_PATH, "POST", urlencode({"user": user, "password": password}).encode(), **FORM)  # type: ignore[arg-type]
        for user, password in (("vera", "wrong"), ("nobody", "wrong"), ("local:0", "x"), ("x" * 300, "x"), ("vera", ""), ("ve\0ra", "v"))
    ]
    assert {answer.status for answer in answers} == {401} and all(b"Wrong password or unknown user." in answer.body for answer in answers)
    assert len({answer.body.replace(b"nobody", b"vera") for answer in answers[:2]}) == 1 and all(not answer.header("set-cookie") for answer in answers)
    assert waited == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0] and console.counted == [False] * 6
    script = console.ask(LOGIN_PATH, "POST", urlencode({"user": '"><script>', "password": "x"}).encode(), **FORM)  # type: ignore[arg-type]
    assert b'"><script>' not in script.body and b"&quot;&gt;&lt;script&gt;" in script.body


def test_others_log_in_while_a_refusal_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five attempts of one network: four wait for their refusals, the fifth is refused at once; another network is served meanwhile."""
    console = Console()
    ends: list[asyncio.Event] = []

    async def sleep(_seconds: float) -> None:
        ends.append(asyncio.Event())
        await ends[-1].wait()

    monkeypatch.setattr("services.console.login_routes.asyncio.sleep", sleep)
    wrong, right = (urlencode({"user": "vera", "password": password}).encode() for password in ("wrong", "v"))

    async def run() -> None:
        https: dict[str, Any] = FORM | {"x-forwarded-proto": "https", "x-forwarded-for": "192.0.2.1"}
        brute = [asyncio.create_task(console.asked(LOGIN_PATH, "POST", wrong, PROXY, **https)) for _ in range(ATTEMPTS_OF_NETWORK_MAX)]
        while len(ends) < ATTEMPTS_OF_NETWORK_MAX:
            await _step()
        fifth = await console.asked(LOGIN_PATH, "POST", right, PROXY, **https)
        assert fifth.status == 429 and fifth.header("retry-after")
        other = await console.asked(LOGIN_PATH, "POST", right, PROXY, **(https | {"x-forwarded-for": "192.0.2.2"}))
        assert other.status == 303 and (await console.asked("/healthz")).status == 200
        for end in ends:
            end.set()
        assert [(await task).status for task in brute] == [401] * ATTEMPTS_OF_NETWORK_MAX
        assert (await console.asked(LOGIN_PATH, "POST", right, PROXY, **https)).status == 303

    asyncio.run(run())


async def _step() -> None:
    """Let the other tasks of the loop run once."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_soon(done.set_result, None)
    await done


def test_a_login_without_a_box_or_a_role_is_refused_with_the_reason() -> None:
    console = Console()
    answer = console.log_in("mallory")
    assert answer.status == 403 and b"User:mallory has no role" in answer.body and not answer.header("set-cookie")
    assert console.counted == [False], "as a failure"
    console.logins.raised = BrokerUnreachable("no acceptor")
    assert console.log_in("vera").status == 503
    assert console.ask(LOGIN_PATH, "POST", b'{"user":"vera"}', content_type="application/json").status == 400
    assert console.ask(LOGIN_PATH, "POST", b"\xff", **FORM).status == 400  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("client", "headers", "words"),
    [
        ("127.0.0.1", {}, None), ("::1", {}, None),
        ("192.0.2.1", {}, "in clear text"),
        ("192.0.2.1", {"x_forwarded_proto": "https"}, "in clear text"),
        ("127.0.0.1", {"x_forwarded_for": "192.0.2.1", "x_forwarded_proto": "https"}, "http.proxy.networks does not have"),
        (PROXY, {"x_forwarded_for": "192.0.2.1", "x_forwarded_proto": "https"}, None),
        (PROXY, {"x_forwarded_for": "192.0.2.1"}, "X-Forwarded-Proto"),
        (PROXY, {"x_forwarded_for": "192.0.2.1", "x_forwarded_proto": ["https", "http"]}, "X-Forwarded-Proto"),
    ],
)  # fmt: skip
def test_no_password_is_taken_that_crossed_the_network_in_clear_text(client: str, headers: dict[str, str], words: str | None) -> None:
    console = Console()
    page = console.ask("/login", client=client, **headers)
    assert page.status == 200 and (b"<form" in page.body) is (words is None)
    answer = console.log_in("vera", client=client, **headers)
    assert (answer.status == 303 and bool(console.logins.persons)) if words is None else (answer.status == 403 and words.encode() in answer.body)
    assert words is None or not console.logins.persons


def test_with_https_the_cookie_is_secure_and_one_set_in_clear_text_does_not_count() -> None:
    console = Console()
    https: dict[str, Any] = {"client": PROXY, "x_forwarded_for": "192.0.2.1", "x_forwarded_proto": "https"}
    answer = console.log_in("vera", **https)
    assert answer.header("set-cookie").startswith("__Host-millrace-b0b=") and "; Secure" in answer.header("set-cookie")
    assert console.ask("/api/rights", cookie=answer.cookie, **https).status == 200
    assert console.ask("/api/rights", cookie=answer.cookie.removeprefix("__Host-"), **https).status == 401


def test_a_proxy_that_replaces_the_host_is_named_as_the_reason() -> None:
    """As nginx does by default; the Origin has the name by which the browser knows the console."""
    console = Console()
    https: dict[str, Any] = {"client": PROXY, "x_forwarded_proto": "https", "origin": "https://logs.example.com"}
    refused = console.log_in("vera", sec_fetch_site="same-origin", **https)
    assert refused.status == 403 and "let the proxy pass the header Host on" in refused.document["error"]
    assert "proxy" not in console.log_in("vera", sec_fetch_site="cross-site", **https).document["error"]
    assert console.log_in("vera", **(https | {"origin": f"https://{HOST}"})).status == 303


# ---- what needs a login, a token, a role


def routes_of(application: Starlette) -> list[Route]:
    found = [route for route in application.routes if isinstance(route, Route)]
    assert len(found) == len(application.routes) > 30
    return found


OPEN = {"/healthz", "/readyz", "/metrics", LOGIN_PATH, *(page.path for page in PAGES)}


def test_each_route_needs_a_login_but_the_known_ones_that_show_nothing() -> None:
    console = Console()
    for route in routes_of(console.application):
        answer = console.ask(route.path, client="127.0.0.1")
        is_open = route.path in OPEN or route.path.startswith("/assets/")
        if route.path == LOGOUT_PATH or (route.methods and "GET" not in route.methods and not is_open):
            continue
        assert (answer.status == 200) if is_open else (answer.status == 401 and answer.header("www-authenticate")), route.path
    assert console.ask("/api/nothing").status == 401 and not console.workers.asked


SEES, LOGS_IN, ITSELF = "what the person may see", "names no topic and no group; the login is verified", "nothing of the box"
READ_RULES = dict.fromkeys(READS, "asked as the person") | {
    "/api/overview": SEES,
    "/api/topics": SEES,
    "/api/alarms": SEES,
    "/api/history?from=1&to=2": LOGS_IN,
    "/api/senders": LOGS_IN,
    "/api/search": "whether the person may read the topic",
    "/api/search/check": ITSELF,
    "/api/rights": ITSELF,
}
"""What each route that reads asks before it answers a person."""


def test_each_route_has_a_decided_role_and_a_rule_of_what_a_person_sees() -> None:
    """Decide both for a route that you add: its role in `NEEDED`, or its rule here."""
    routes = [route for route in routes_of(Console().application) if route.path not in (LOGIN_PATH, LOGOUT_PATH)]
    changing = {route.path for route in routes if not route.methods or route.methods - {"GET", "HEAD"}}
    reading = {route.path for route in routes} - changing - OPEN - {route.path for route in routes if route.path.startswith("/assets/")}
    assert changing == set(NEEDED), "the role that each change needs"
    assert reading == {path.partition("?")[0] for path in READ_RULES}, "what each page shows to whom"
    assert role_needed("/api/nothing") is Role.ADMIN


@pytest.mark.parametrize(("path", "rule"), READ_RULES.items())
def test_what_a_route_reads_for_a_person_is_judged_by_the_box(path: str, rule: str) -> None:
    console = Console()
    cookie, _ = console.session("vera")
    if rule == ITSELF:
        assert console.ask(path, cookie=cookie).status == 200 and not console.workers.asked
        return
    path = "/api/search?topic=a" if path == "/api/search" else path
    console.workers.answer = visible = Visible(frozenset({"a"}), frozenset()) if rule in (SEES, LOGS_IN) else (0, True) if "search" in path else b"{}"
    assert console.ask(path, cookie=cookie).status == (JUDGED if "search" in path else 200)
    assert console.workers.asked and all(person == ActingFor("vera", "127.0.0.1", "tag") for person in console.workers.asked)
    assert console.seen == ([visible] if rule == SEES else [])
    other = Console()
    cookie, _ = other.session("vera")
    other.workers.raised = AuthenticationFailed("deleted")
    assert other.ask(path, cookie=cookie).status == 401 and not other.seen


def test_each_changing_route_needs_the_token_of_its_session() -> None:
    """Also those that are added: the guard stands before all routes."""
    console = Console()
    cookie, token = console.session("anna")
    other, other_token = console.session("anna")
    changing = [route.path for route in routes_of(console.application) if route.methods and route.methods - {"GET", "HEAD"} and route.path != LOGIN_PATH]
    assert set(changing) >= {*CHANGES, LOGOUT_PATH}
    for path in changing:
        for given in ({}, {"x_millrace_token": ""}, {"x_millrace_token": other_token}, {"x_millrace_token": token[:-1]}, {"x_millrace_token": [token, token]}):
            answer = console.change(path, cookie=cookie, **given)
            assert answer.status == 403 and (path == LOGOUT_PATH or "token" in answer.document["error"]), (path, given)
    assert not console.workers.asked and set(console.refused) == {"token"}
    for path in CHANGES:
        assert console.change(path, cookie=cookie, x_millrace_token=token).status == 200
        assert console.change(path, cookie=cookie, x_millrace_token=token, x_millrace=None).status == 403, "the checks of before hold, too"
        assert console.change(path, cookie=cookie, x_millrace_token=token, content_type="text/plain").status == 415
        assert console.change(path, cookie=cookie, x_millrace_token=token, origin="http://evil.example").status == 403
    assert len(console.workers.asked) == len(CHANGES) and other


@pytest.mark.parametrize("user", ["vera2", "otto", "anna"])
def test_a_role_allows_its_changes_and_no_other_and_the_answer_says_which_is_needed(user: str) -> None:
    console = Console()
    console.persons.roles = Roles(["User:vera2", "User:otto", "User:anna"])
    USERS.setdefault("vera2", "v2")
    cookie, token = console.session(user)
    role = console.persons.roles.role_of(user)
    assert role is not None
    assert console.ask("/api/rights", cookie=cookie).document["may_change"] is (role > Role.VIEWER)
    for path in CHANGES:
        answer = console.change(path, cookie=cookie, x_millrace_token=token)
        allowed = role >= role_needed(path)
        assert answer.status == (200 if allowed else 403), path
        assert allowed or f"needs the role {role_needed(path).word}" in answer.document["error"]
    for path in READS:
        assert console.ask(path, cookie=cookie).status == 200
    assert all(person == ActingFor(user, "127.0.0.1", "tag") for person in console.workers.asked), "all is asked as the person"


def test_answers_are_not_shared_between_persons() -> None:
    console = Console()
    cookies = [console.session(user)[0] for user in ("vera", "otto", "vera")]
    for cookie in cookies:
        assert console.ask("/api/groups", cookie=cookie).status == 200
    assert [person.user for person in console.workers.asked if person is not None] == ["vera", "otto"]


def test_a_person_whom_the_box_refuses_is_logged_out() -> None:
    console = Console()
    for path in ("/api/topic?topic=x", "/api/overview", "/api/topics"):
        cookie, _ = console.session("vera")
        console.workers.raised = AuthenticationFailed("refused")
        answer = console.ask(path, cookie=cookie)
        assert answer.status == 401 and "log in again" in answer.document["error"]
        console.workers.raised = None
        assert console.ask("/api/rights", cookie=cookie).status == 401


def test_pages_show_the_topics_and_groups_that_a_person_may_see() -> None:
    console = Console()
    cookie, _ = console.session("vera")
    console.workers.answer = visible = Visible(frozenset({"a"}), frozenset())
    for path in ("/api/overview", "/api/topics"):
        answer = console.ask(path, cookie=cookie)
        assert answer.status == 200 and "hidden" not in answer.document
    assert console.seen == [visible, visible]
    console.workers.raised = BrokerUnreachable("it restarts")
    answer = console.ask("/api/topics", cookie=console.session("otto")[0])
    assert answer.status == 200 and "it restarts" in answer.document["hidden"], "the page is there, without names"
    assert console.seen[-1].topics == console.seen[-1].groups == frozenset()


@pytest.mark.parametrize("path", ["/api/topics", "/api/overview", "/api/senders", "/api/search?topic=a"])
@pytest.mark.parametrize(("raised", "status"), [(None, 200), (BrokerUnreachable("away"), 200), (AuthenticationFailed("deleted"), 401)])
def test_without_an_authorizer_all_is_seen_and_the_login_is_verified_all_the_same(path: str, raised: Exception | None, status: int) -> None:
    console = Console(has_authorizer=False)
    cookie, _ = console.session("vera")
    console.workers.answer, console.workers.raised = Visible(), raised
    assert console.ask(path, cookie=cookie).status == (JUDGED if "search" in path and status == 200 else status)
    assert len(console.workers.asked) == 1 and all(visible == Visible() for visible in console.seen)
    assert console.ask("/api/rights", cookie=cookie).status == status


def test_what_a_person_sees_is_asked_once_in_a_while_and_what_was_known_stays_for_some_minutes() -> None:
    workers, now = Workers(), [1]
    rights = PersonRights(workers, True, lambda: now[0])
    person: Any = SimpleNamespace(acting=ActingFor("vera", "127.0.0.1"))

    async def run() -> None:
        workers.raised = BrokerUnreachable("away")
        found = await rights.visible(person)
        assert (found.topics, found.groups) == (frozenset(), frozenset()) and "away" in found.why
        workers.raised, workers.answer = None, Visible(frozenset({"a"}))
        assert await rights.visible(person) == found, "not at once again"
        now[0] += RETRY_MS
        for step_ms in (0, KEPT_MS - 1, 1):
            now[0] += step_ms
            assert await rights.visible(person) is workers.answer
        assert len(workers.asked) == 3
        workers.raised = TimeoutError()
        now[0] += KEPT_MS
        found = await rights.visible(person)
        assert found.topics == frozenset({"a"}) and found.why
        now[0] += LAST_KNOWN_MS
        assert (await rights.visible(person)).topics == frozenset()
        workers.raised = AuthenticationFailed("deleted")
        now[0] += RETRY_MS
        with pytest.raises(AuthenticationFailed):
            await rights.visible(person)

    asyncio.run(run())


def test_a_page_does_not_wait_for_a_box_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.console.person_rights.WAIT_SECONDS", 0.01)
    person: Any = SimpleNamespace(acting=ActingFor("vera", "127.0.0.1"))

    class Hanging(Workers):
        async def ask(self, question: Callable[[ClusterClient], Any], needs_broker: bool = True, person: ActingFor | None = None) -> Any:
            await ends.wait()
            return Visible(frozenset({"a"}))

    async def run() -> None:
        rights = PersonRights(Hanging(), True, lambda: 0)
        assert await rights.visible(person) == NONE
        ends.set()
        assert (await rights.visible(person)).topics == frozenset({"a"})

    ends = asyncio.Event()
    asyncio.run(run())


def test_disks_show_no_topic_that_a_person_may_not_see() -> None:
    disks = [{"name": "d0", "held": [{"topic": "a"}, {"topic": "b"}]}]
    shown = without_names({"disks": disks, "moves": [{"topic": "b"}], "box": 1}, Visible(frozenset({"a"})))
    assert shown == {"disks": [{"name": "d0", "held": [{"topic": "a"}]}], "moves": [], "box": 1}


@pytest.mark.parametrize(
    ("answer", "status"),
    [((0, True), 429), ((0, False), 403), ((29, False), 403), ((5, False), 403), ((3, False), 404)],
)
def test_a_search_asks_whether_the_person_may_read_the_topic(answer: tuple[int, bool], status: int) -> None:
    console = Console()
    cookie, _ = console.session("vera")
    console.workers.answer = answer
    assert console.ask("/api/search?topic=a", cookie=cookie).status == status
    assert console.ask("/api/search?topic=a", client=None).status == JUDGED, "the Unix socket is as it was"


def test_a_search_that_follows_ends_with_the_login() -> None:
    console = Console()
    cookie, token = console.session("vera")
    console.workers.answer = (0, True)
    logged_out: list[int] = []

    class Following:
        async def first_line(self) -> bytes:
            return b'{"record":1}\n'

        async def rest(self) -> AsyncIterator[bytes]:
            yield b'{"record":2}\n'
            answer = await console.asked(LOGOUT_PATH, "POST", urlencode({"token": token}).encode(), cookie=cookie, **FORM)  # type: ignore[arg-type]
            logged_out.append(answer.status)
            yield b'{"record":3}\n'

        def close(self) -> None:
            pass

    console.searches.following = Following()
    answer = console.ask("/api/search?topic=a&follow=1", cookie=cookie)
    assert (answer.status, answer.body, logged_out) == (200, b'{"record":1}\n{"record":2}\n', [303])


# ---- a proxy that names users


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        ("192.0.2.1", "192.0.2.1"), ("6.6.6.6, 192.0.2.1", "192.0.2.1"), ("192.0.2.1, 10.0.0.3", "192.0.2.1"), ("[2001:db8::1]", "2001:db8::1"), ("", PROXY),
        ("192.0.2.1%x\nUser:anna", "192.0.2.1"), ("192.0.2.1, nonsense", PROXY), ("10.0.0.3", "10.0.0.3"), (["6.6.6.6", "192.0.2.1"], "192.0.2.1"),
    ],
)  # fmt: skip
def test_a_person_is_at_the_last_address_that_is_no_proxy(forwarded: str | list[str], address: str) -> None:
    """What clients of the proxy send comes before it."""
    console = Console()
    assert console.ask("/api/topic?topic=x", client=PROXY, x_user="anna", x_forwarded_for=forwarded).status == 200
    assert console.workers.asked == [ActingFor("anna", address)]


def test_more_logins_than_threads_wait_for_one() -> None:
    under_way: list[int] = []

    class Counting(Logins):
        running_now = 0

        async def ask(self, question: Callable[[ClusterClient], Any], needs_broker: bool = True, person: ActingFor | None = None) -> Any:
            self.running_now += 1
            under_way.append(self.running_now)
            await asyncio.sleep(0)
            self.running_now -= 1
            return await super().ask(question, needs_broker, person)

    console = Console(logins=Counting())

    async def run() -> None:
        body = urlencode({"user": "vera", "password": "v"}).encode()
        https: dict[str, Any] = FORM | {"x-forwarded-proto": "https"}
        asked = [console.asked(LOGIN_PATH, "POST", body, PROXY, **https, x_forwarded_for=f"192.0.2.{number}") for number in range(3 * WORKERS_MAX)]
        assert {answer.status for answer in await asyncio.gather(*asked)} == {303}

    asyncio.run(run())
    assert max(under_way) == WORKERS_MAX and len(under_way) == 3 * WORKERS_MAX


def test_a_proxy_names_the_user_and_needs_the_token_all_the_same() -> None:
    console = Console()
    proxied: dict[str, Any] = {"client": PROXY, "x_user": "anna", "x_forwarded_for": "192.0.2.66, 10.0.0.3"}
    rights = console.ask("/api/rights", **proxied).document
    assert rights["person"] == {"user": "anna", "role": "admin"}
    assert console.change("/api/topic/create", **proxied).status == 403
    assert console.change("/api/topic/create", x_millrace_token=rights["token"], **proxied).status == 200
    assert console.workers.asked == [ActingFor("anna", "192.0.2.66")], "at the address that is no proxy's"
    assert b"log out there" in console.ask("/login", **proxied).body
    assert console.change("/api/topic/create", x_millrace_token=rights["token"], **(proxied | {"x_user": "otto"})).status == 403, "it is anna's token"
    answer = console.ask("/api/rights", **(proxied | {"x_user": "mallory"}))
    assert answer.status == 403 and "User:mallory has no role" in answer.document["error"]
    assert console.ask("/login", **(proxied | {"x_user": "mallory"})).status == 403 and console.refused[-1] == "role"


@pytest.mark.parametrize("client", ["127.0.0.1", "10.0.0.4", "192.0.2.1", "::1"])
def test_the_header_of_anyone_else_is_ignored_and_counted(client: str) -> None:
    console = Console()
    for more in ({}, {"x_forwarded_for": PROXY}, {"forwarded": f"for={PROXY}"}, {"x_real_ip": PROXY}):
        console.refused.clear()
        assert console.ask("/api/rights", client=client, x_user="anna", **more).status == 401
        assert console.refused == ["proxy_header", "login"]
    cookie, _ = console.session("vera")
    assert console.ask("/api/rights", client=client, x_user="anna", cookie=cookie).document["person"]["user"] == "vera"


@pytest.mark.parametrize("names", [["anna", "vera"], [""], ["local:0"], ["a\x07"], ["x" * 256], ["\x00"]])
def test_a_proxy_that_lets_a_header_of_its_client_through_is_refused(names: list[str]) -> None:
    console = Console()
    answer = console.ask("/api/rights", client=PROXY, x_user=names)
    assert answer.status == 400 and "replace what its clients send" in answer.document["error"] and console.refused == ["proxy_header"]


def test_the_unix_socket_has_no_persons() -> None:
    console = Console()
    assert console.ask("/api/topic?topic=x", client=None).status == 200 and console.workers.asked == [None]
    answer = console.change("/api/topic/create", client=None, x_user="anna")
    assert answer.status == 403 and "has an authorizer" in answer.document["error"]
    assert console.ask("/login", client=None).status == 200 and console.ask(LOGIN_PATH, "POST", b"user=anna&password=a", None, **FORM).status == 400  # type: ignore[arg-type]
