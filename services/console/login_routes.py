"""The page by which a person logs in and out. It needs no script.

The acceptor verifies the password, and counts and logs failures as those of its own clients; here the
password is kept until it has answered. A refused login is answered late (`LoginAttempts`), while others
are served. Each login begins a session with a secret of its own, and ends the one that the browser had.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qs, quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from appliance.base.errors import MillraceError
from appliance.security.principals import LOCAL_NAMES, ActingFor
from appliance.security.scram import NAME_MAX
from appliance.senders.sender_accounts import network_of
from services.console.kafka_workers import WORKERS_MAX, KafkaWorkers
from services.console.pages import Page, whole_page
from services.console.person_guard import LOGIN_PATH, LOGOUT_PATH, PERSON, VISITOR, Persons, Visitor, person_of
from services.console.persons import LoginAttempts, Person, Role

if TYPE_CHECKING:
    from appliance.client.cluster import ClusterClient

PASSWORD_BYTES_MAX: Final = 1_000
FORM_BYTES_MAX: Final = 8 << 10
SECRET_BYTES: Final = 32
LOGIN_PAGE: Final = Page("login.html", LOGIN_PATH, "Log in", ())
WRONG: Final = "Wrong password or unknown user."
BUSY: Final = "Too many logins are being checked. Try again in a moment."
NO_ANSWER: Final = "The box cannot check passwords at the moment. Try again soon."
MEANINGS: Final = {
    Role.VIEWER: "You can look at everything that your rights in the box allow.",
    Role.OPERATOR: "You can also write and delete records, change groups, abort transactions, and drain disks, as far as your rights in the box allow.",
    Role.ADMIN: "You can change everything, as far as your rights in the box allow.",
}


def _log_in(cluster: ClusterClient, person: ActingFor) -> str | None:
    """Return the tag of a login; None if the password is wrong. In a thread."""
    from appliance.client.connection import ClientConnection
    from appliance.client.security import AuthenticationFailed, act_for

    (address,) = cluster.bootstrap
    connection = ClientConnection(address, client_id=cluster.client_id)
    try:
        return act_for(connection.request, person, address)
    except AuthenticationFailed:
        return None
    finally:
        connection.close()


class Users(NamedTuple):
    """The users of the console. `workers`: for logins alone; `on_login` gets whether one succeeded."""

    persons: Persons
    workers: KafkaWorkers
    on_login: Callable[[bool], None]


class LoginRoutes:
    """`headers`: of pages; `on_refused` counts by reason."""

    def __init__(self, users: Users, pages: frozenset[str], headers: dict[str, str], on_refused: Callable[[str], None], now_ms: Callable[[], int]) -> None:
        self._persons, self._workers, self._on_login = users
        self._on_refused = on_refused
        self._pages = pages
        policy = headers["Content-Security-Policy"].replace("form-action 'none'", "form-action 'self'")
        # With no-referrer browsers send `Origin: null` with a form.
        self._headers = headers | {"Content-Security-Policy": policy, "Cache-Control": "no-store", "Referrer-Policy": "same-origin"}
        self._now_ms = now_ms
        self._attempts = LoginAttempts()
        self._checks = asyncio.Semaphore(WORKERS_MAX)
        self._page = whole_page(LOGIN_PAGE).decode()

    def routes(self) -> list[Route]:
        return [
            Route(LOGIN_PATH, self._show),
            Route(LOGIN_PATH, self._login, methods=["POST"]),
            Route(LOGOUT_PATH, self._logout, methods=["POST"]),
        ]

    async def _show(self, request: Request) -> Response:
        person, visitor = person_of(request.scope), request.scope.get(VISITOR)
        if visitor is None:
            return self._answer(200, "<h2>Log in</h2><p>The Unix socket has no logins.</p>")
        if person is not None:
            return self._answer(200, _account(person))
        found = self._persons.person(visitor, request.scope["headers"], self._now_ms())
        if not isinstance(found, Person) and found.status != 401:
            return self._answer(found.status, f"<h2>No access</h2><p>{escape(found.words)}.</p>")
        return self._answer(200, _form(visitor, self._next(request.query_params.get("next", ""))))

    def _next(self, wanted: str) -> str:
        """Return the page to go on to, with its query; only one of ours."""
        path, _, query = wanted.partition("?")
        return (path + (f"?{quote(query, safe='=&%+,:;/')}" if query else "")) if path in self._pages else "/"

    async def _login(self, request: Request) -> Response:
        visitor: Visitor | None = request.scope.get(VISITOR)
        form = await _form_of(request)
        if visitor is None or form is None:
            return self._answer(400, "<h2>Log in</h2><p>This is no form of this page.</p>")
        goes_on = self._next(form.get("next", ""))
        if visitor.why_unsafe is not None:
            return self._answer(403, _form(visitor, goes_on))
        user, password = form.get("user", "").strip(), form.get("password", "").removesuffix("\n").removesuffix("\r")  # of a file
        network = network_of(visitor.address)
        if not self._attempts.begin(network):
            self._on_refused("logins")
            return self._answer(429, _form(visitor, goes_on, user, BUSY), {"Retry-After": "5"})
        try:
            try:
                tag = await self._tag(user, password, visitor)
            except (MillraceError, TimeoutError):
                return self._answer(503, _form(visitor, goes_on, user, NO_ANSWER))
            if tag is None:
                self._on_login(False)
                await asyncio.sleep(self._attempts.fail(network, user[:NAME_MAX], self._now_ms()) / 1000)
                return self._answer(401, _form(visitor, goes_on, user, WRONG))
        finally:
            self._attempts.end(network)
        return self._begin(request, visitor, user, tag, goes_on)

    async def _tag(self, user: str, password: str, visitor: Visitor) -> str | None:
        person = ActingFor(user, visitor.address, password=password)
        if not user or len(user) > NAME_MAX or user.startswith(LOCAL_NAMES) or not password or "\0" in user + password:
            return None
        async with self._checks:
            tag: str | None = await self._workers.ask(lambda cluster: _log_in(cluster, person))
        return tag

    def _begin(self, request: Request, visitor: Visitor, user: str, tag: str, goes_on: str) -> Response:
        sessions, now_ms = self._persons.sessions, self._now_ms()
        if self._persons.roles.role_of(user) is None:
            self._on_login(False)
            words = f"User:{user} has no role in this console (http.role.viewer, http.role.operator, http.role.admin)."
            return self._answer(403, _form(visitor, goes_on, user, words))
        sessions.sweep(now_ms)
        sessions.end(self._persons.session_of(visitor, request.scope["headers"]))
        secret = secrets.token_urlsafe(SECRET_BYTES)
        sessions.begin(secret, user, tag, now_ms)
        self._on_login(True)
        return self._go(goes_on, self._cookie(visitor, secret))

    async def _logout(self, request: Request) -> Response:
        person, visitor, form = person_of(request.scope), request.scope.get(VISITOR), await _form_of(request)
        if person is None or visitor is None:
            return self._go(LOGIN_PATH)
        if form is None or not self._persons.has_token(person, request.scope["headers"], form.get("token", "")):
            self._on_refused("token")
            return self._answer(403, "<h2>Log out</h2><p>This request has not the token of this login.</p>" + _account(person))
        self._persons.sessions.end(person.session)
        request.scope[PERSON] = None
        return self._go(LOGIN_PATH, self._cookie(visitor, "", "; Max-Age=0"))

    def _cookie(self, visitor: Visitor, secret: str, more: str = "") -> str:
        secure = "; Secure" if visitor.is_encrypted else ""
        return f"{self._persons.cookie_name(visitor)}={secret}; Path=/; HttpOnly; SameSite=Strict{secure}{more}"

    def _go(self, path: str, cookie: str | None = None) -> Response:
        """Go to a page by its name in the folder of all pages, before which a proxy may have put a prefix."""
        return RedirectResponse(f".{path}", 303, headers=self._headers | ({} if cookie is None else {"Set-Cookie": cookie}))

    def _answer(self, status: int, content: str, more: dict[str, str] | None = None) -> Response:
        text = self._page.replace("<!--ACCOUNT-->", content)
        return Response(text.encode(), status, media_type="text/html; charset=utf-8", headers=self._headers | (more or {}))


async def _form_of(request: Request) -> dict[str, str] | None:
    """Return the fields of a form; None if this is none."""
    try:
        body = await request.body()
        if len(body) > FORM_BYTES_MAX or request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
            return None
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=8, errors="strict")
    except (ClientDisconnect, ValueError):
        return None
    return {name: values[0] for name, values in fields.items() if len(values[0].encode()) <= PASSWORD_BYTES_MAX}


def _form(visitor: Visitor, goes_on: str, user: str = "", problem: str = "") -> str:
    """Return the form, or why there is none."""
    if visitor.why_unsafe is not None:
        return f"<h2>Log in</h2>\n<p>No password is taken here: {escape(visitor.why_unsafe)}.</p>"
    said = f'<p class="problem" role="alert">{escape(problem)}</p>\n' if problem else ""
    return f"""<h2>Log in</h2>
{said}<form method="post" action=".{LOGIN_PATH}">
<label>User <input name="user" value="{escape(user[:NAME_MAX])}" required autofocus autocomplete="username" autocapitalize="none" spellcheck="false"></label>
<label>Password <input name="password" type="password" required autocomplete="current-password"></label>
<input type="hidden" name="next" value="{escape(goes_on)}">
<button class="main">Log in</button>
</form>
<p class="note">Users of the box: <code>millrace user add</code>.</p>"""


def _account(person: Person) -> str:
    text = f"<h2>{escape(person.user)}</h2>\n<p>Your role is {person.role.word}. {MEANINGS[person.role]}</p>\n"
    if not person.session:
        return text + "<p>The proxy has logged you in: log out there.</p>"
    return f"""{text}<form method="post" action=".{LOGOUT_PATH}">
<input type="hidden" name="token" value="{person.token}">
<button class="main">Log out</button>
</form>"""
