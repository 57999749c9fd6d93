"""Finds out which person sends a request, and refuses what the person may not do.

A person has a session (a cookie), or is named by a proxy of `http.proxy.networks`; both only if
`http.role.*` have users. All paths need a person but `OPEN_PATHS`, pages and their files, which have
nothing of the box in them; all that changes something also needs the token of the person and a role.
The Unix socket has no persons. Weak: `/metrics` is open, and names topics and groups.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from appliance.base.networks import Network, lies_in, packed_address, read_networks
from appliance.security.principals import LOCAL_NAMES
from appliance.security.scram import NAME_MAX
from services.console.persons import Person, Roles, Sessions, digest_of, role_needed

PERSON: Final = "millrace.person"
VISITOR: Final = "millrace.visitor"
"""In the scope."""
LOGIN_PATH, LOGOUT_PATH = "/login", "/logout"
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics", LOGIN_PATH, LOGOUT_PATH})
"""Login and logout check what they need themselves."""
ASSETS_PREFIX: Final = "/assets/"
CSRF_HEADER: Final = "x-millrace-token"
UNKNOWN: Final = "unknown"
"""Instead of the address of a client of a proxy that is none of ours."""
_FORWARDED: Final = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})
_LOOPBACK: Final = read_networks("127.0.0.0/8, ::1")
_SAFE: Final = frozenset({"GET", "HEAD"})


class Visitor(NamedTuple):
    """Where a request is from. `why_unsafe`: why a password would not be safe on its way."""

    address: str
    is_encrypted: bool = False
    why_unsafe: str | None = None
    by_proxy: bool = False
    """of ours"""


class PersonRefusal(NamedTuple):
    status: int
    words: str
    reason: str = ""
    """as it is counted"""


class Proxies(NamedTuple):
    """The proxies of the console, and the header in which they name users ('': they do not)."""

    networks: Sequence[Network] = ()
    header: str = ""

    def visitor(self, peer: str, headers: Sequence[tuple[bytes, bytes]]) -> Visitor:
        """Return where a request of `peer` is from; only a proxy of ours can say that it is from elsewhere."""
        is_forwarded = any(name in _FORWARDED for name, _ in headers)
        packed = packed_address(peer)
        if not lies_in(packed, self.networks):
            if is_forwarded:
                return Visitor(peer, why_unsafe="a proxy has sent this request that http.proxy.networks does not have")
            if lies_in(packed, _LOOPBACK):
                return Visitor(peer)
            return Visitor(peer, why_unsafe="a password would cross the network in clear text: use a proxy with HTTPS, or ssh -L")
        address, protocols = peer, _values(headers, b"x-forwarded-proto")
        for part in reversed(",".join(_values(headers, b"x-forwarded-for")).split(",")):
            hop = part.strip().removeprefix("[").removesuffix("]").partition("%")[0]
            if not packed_address(hop):
                break
            address = hop
            if not lies_in(packed_address(hop), self.networks):
                break
        if protocols == ["https"]:
            return Visitor(address, is_encrypted=True, by_proxy=True)
        words = "the proxy does not say that the browser uses HTTPS: let it set X-Forwarded-Proto"
        return Visitor(address, why_unsafe=words, by_proxy=True)

    def named(self, headers: Sequence[tuple[bytes, bytes]]) -> list[str]:
        return _values(headers, self.header.lower().encode()) if self.header else []

    def user(self, visitor: Visitor, headers: Sequence[tuple[bytes, bytes]]) -> str | PersonRefusal | None:
        """Return the user that a proxy of ours names; a refusal for what it should not send."""
        found = self.named(headers)
        if not found or not visitor.by_proxy:
            return None
        name = found[0].strip()
        if len(found) > 1 or not name or len(name) > NAME_MAX or not name.isprintable() or name.startswith(LOCAL_NAMES):
            return PersonRefusal(400, f"the proxy must name one user in {self.header}, and replace what its clients send", "proxy_header")
        return name


def _values(headers: Sequence[tuple[bytes, bytes]], wanted: bytes) -> list[str]:
    return [value.decode("utf-8", "replace") for name, value in headers if name == wanted]


class Persons:
    """The users of the console: by a session, or by the word of a proxy. `cookie`: the name of the cookie."""

    def __init__(self, roles: Roles, proxies: Proxies, key: bytes, cookie: str) -> None:
        self.roles = roles
        self.proxies = proxies
        self.sessions = Sessions(key)
        self._cookie = cookie

    def cookie_name(self, visitor: Visitor) -> str:
        """`__Host-`: no other name and no connection in clear text can have set it."""
        return f"__Host-{self._cookie}" if visitor.is_encrypted else self._cookie

    def session_of(self, visitor: Visitor, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Return the digest of the session's secret in the cookie; b"" for none, or for several."""
        wanted = self.cookie_name(visitor)
        pairs = [part.strip().partition("=") for text in _values(headers, b"cookie") for part in text.split(";")]
        found = [value for name, _, value in pairs if name == wanted]
        return digest_of(found[0]) if len(found) == 1 else b""

    def person(self, visitor: Visitor, headers: Sequence[tuple[bytes, bytes]], now_ms: int) -> Person | PersonRefusal:
        """Return the person, or why there is none."""
        user, tag, digest = self.proxies.user(visitor, headers), "", b""
        if isinstance(user, PersonRefusal):
            return user
        if user is None:
            digest = self.session_of(visitor, headers)
            session = self.sessions.use(digest, now_ms) if digest else None
            if session is None:
                return PersonRefusal(401, f"log in at {LOGIN_PATH}", "login")
            user, tag = session.user, session.tag
        role = self.roles.role_of(user)
        if role is None:
            return PersonRefusal(403, f"User:{user} has no role in this console; name it in http.role.viewer, http.role.operator or http.role.admin", "role")
        return Person(user, role, visitor.address, self.sessions.token_of(digest, user), tag, digest)

    def has_token(self, person: Person, headers: Sequence[tuple[bytes, bytes]], given: str = "") -> bool:
        """Whether a request has the token of its person, in its header or (`given`) in its form."""
        found = [given] if given else _values(headers, CSRF_HEADER.encode())
        return len(found) == 1 and hmac.compare_digest(found[0].encode(), person.token.encode())


class PersonGuard:
    """ASGI: puts the person (None: none) and the visitor into the scope, or refuses."""

    def __init__(
        self, app: ASGIApp, persons: Persons, pages: frozenset[str], headers: dict[str, str], on_refused: Callable[[str], None], now_ms: Callable[[], int]
    ) -> None:
        self._app = app
        self._persons = persons
        self._pages = pages
        self._headers = headers
        self._on_refused = on_refused
        self._now_ms = now_ms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get("client") is None:
            await self._app(scope, receive, send)
            return
        refusal = self._look(scope)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        self._on_refused(refusal.reason)
        more = {"WWW-Authenticate": 'Millrace realm="console"'} if refusal.status == 401 else {}
        content = orjson.dumps({"error": refusal.words}) + b"\n"
        await Response(content, refusal.status, media_type="application/json", headers={**self._headers, **more})(scope, receive, send)

    def _look(self, scope: Scope) -> PersonRefusal | None:
        path, headers = scope["path"], scope["headers"]
        visitor = self._persons.proxies.visitor(scope["client"][0], headers)
        person = self._persons.person(visitor, headers, self._now_ms())
        scope[VISITOR], scope[PERSON] = visitor, person if isinstance(person, Person) else None
        if visitor.why_unsafe is not None and not visitor.by_proxy and any(name in _FORWARDED for name, _ in headers):
            scope["client"] = UNKNOWN, 0
        elif visitor.by_proxy:
            scope["client"] = visitor.address, 0
        if not visitor.by_proxy and self._persons.proxies.named(headers):
            self._on_refused("proxy_header")
        if path in OPEN_PATHS or (scope["method"] in _SAFE and (path in self._pages or path.startswith(ASSETS_PREFIX))):
            return None
        if isinstance(person, PersonRefusal):
            return person
        if scope["method"] in _SAFE:
            return None
        needed = role_needed(path)
        if not self._persons.has_token(person, headers):
            return PersonRefusal(
                403, f"a request that changes something needs the token of this login in the header {CSRF_HEADER}; /api/rights has it", "token"
            )
        if person.role < needed:
            return PersonRefusal(403, f"{person.principal} is {person.role.word} here, and this needs the role {needed.word} (http.role.{needed.word})", "role")
        return None


def person_of(scope: Any) -> Person | None:
    """Return the person that sent a request; None without users of the console, and by the Unix socket."""
    found: Person | None = scope.get(PERSON)
    return found
