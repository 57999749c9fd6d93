"""The users of the console: roles, sessions, and how often a login may be tried.

Pure; times are arguments, in ms of the monotonic clock. Sessions are in memory alone: a console that
starts again knows none. A session is found by the digest of its secret, and has neither the secret nor
a password. Weak: cookies do not know ports, so other servers of the same host name get the secret, too.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter as Tally
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from appliance.base.settings import Box
from appliance.security.authorizer import super_users_of
from appliance.security.listeners import ROLE_SETTINGS
from appliance.security.principals import USER_TYPE, ActingFor, Principal

IDLE_MS: Final = 30 * 60_000
"""Without a request for so long a session ends. Pages that can be seen ask again and again."""
WHOLE_MS: Final = 12 * 3_600_000
SESSIONS_MAX: Final = 1_000
SESSIONS_OF_USER_MAX: Final = 16
ALL: Final = "*"


class Role(IntEnum):
    """A larger one may do all that a smaller one may."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        return self.name.lower()


_OF_OPERATORS: Final = (
    "/api/topic/trim",
    "/api/records/produce",
    "/api/group/reset",
    "/api/group/delete",
    "/api/transaction/abort",
    "/api/disk/drain",
)
_OF_ADMINS: Final = ("/api/topic/create", "/api/topic/alter", "/api/topic/delete")
NEEDED: Final = dict.fromkeys(_OF_OPERATORS, Role.OPERATOR) | dict.fromkeys(_OF_ADMINS, Role.ADMIN)
"""The role that a change needs, by path: of each, so that none is forgotten (a test). Others need `ADMIN`."""


def role_needed(path: str) -> Role:
    return NEEDED.get(path, Role.ADMIN)


class Roles:
    """The users of each role, as the settings `http.role.*` have them."""

    def __init__(self, texts: Iterable[str]) -> None:
        """`texts`: in the order of `Role`."""
        self._users = {role: super_users_of(text) for role, text in zip(Role, texts, strict=True)}

    @classmethod
    def of(cls, box: Box) -> Roles:
        return cls(box.text(name) for name in ROLE_SETTINGS)

    def role_of(self, user: str) -> Role | None:
        """Return the largest role of a user; None without any."""
        names = {str(Principal(USER_TYPE, name)) for name in (user, ALL)}
        return max((role for role, users in self._users.items() if not users.isdisjoint(names)), default=None)


class Person(NamedTuple):
    """The user that sent a request. `token` proves that one of our pages sent it."""

    user: str
    role: Role
    address: str
    token: str
    tag: str = ""
    """of the login by password; '' if a proxy names the user"""
    session: bytes = b""
    """digest of the session's secret; b"" without one"""

    @property
    def principal(self) -> str:
        return str(Principal(USER_TYPE, self.user))

    @property
    def acting(self) -> ActingFor:
        return ActingFor(self.user, self.address, self.tag)


class LoginSession(NamedTuple):
    user: str
    tag: str
    began_ms: int
    used_ms: int

    def is_over(self, now_ms: int) -> bool:
        return now_ms - self.used_ms >= IDLE_MS or now_ms - self.began_ms >= WHOLE_MS


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


class Sessions:
    """Those that are logged in by password. `key` makes the tokens."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._sessions: dict[bytes, LoginSession] = {}
        """the longest unused first"""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, secret: str, user: str, tag: str, now_ms: int) -> None:
        """Begin a session with a new secret. Of too many sessions the one that was used longest ago ends."""
        own = [digest for digest, session in self._sessions.items() if session.user == user]
        if len(own) >= SESSIONS_OF_USER_MAX:
            del self._sessions[own[0]]
        elif len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[digest_of(secret)] = LoginSession(user, tag, now_ms, now_ms)

    def use(self, digest: bytes, now_ms: int) -> LoginSession | None:
        """Return a session that is not over, as used now."""
        session = self._sessions.pop(digest, None)
        if session is None or session.is_over(now_ms):
            return None
        self._sessions[digest] = session._replace(used_ms=now_ms)
        return session

    def has(self, digest: bytes, now_ms: int) -> bool:
        """As `use`, which this is not."""
        session = self._sessions.get(digest)
        return session is not None and not session.is_over(now_ms)

    def end(self, digest: bytes) -> None:
        self._sessions.pop(digest, None)

    def sweep(self, now_ms: int) -> None:
        """End those that are over."""
        for digest in [digest for digest, session in self._sessions.items() if session.is_over(now_ms)]:
            del self._sessions[digest]

    def token_of(self, digest: bytes, user: str) -> str:
        """Return the token of a session, or (digest b"") of a user that a proxy names."""
        return hmac.digest(self._key, len(digest).to_bytes(1, "big") + digest + user.encode(), "sha256").hex()


ATTEMPTS_MAX: Final = 64
"""At a time, with those whose refusal is delayed."""
ATTEMPTS_OF_NETWORK_MAX: Final = 4
FIRST_DELAY_MS: Final = 250
DELAY_MS_MAX: Final = 8_000
REMEMBERED_MS: Final = 15 * 60_000
FAILURES_KEPT: Final = 4_096
"""Networks and names whose failures are remembered; of more, those that failed longest ago are forgotten."""


class LoginAttempts:
    """Delays refused logins, by the failures of the network and of the name in the last quarter of an
    hour; a right password is never delayed. Weak: many networks may try one name, each for itself, and
    sixteen that try without end leave others no attempt."""

    def __init__(self) -> None:
        self._under_way: Tally[str | bytes] = Tally()
        self._failures: dict[tuple[str, str | bytes], tuple[int, int]] = {}
        """count and time of the last one"""

    def begin(self, network: str | bytes) -> bool:
        """Return False if too many are under way; call `end` otherwise."""
        if self._under_way[network] >= ATTEMPTS_OF_NETWORK_MAX or self._under_way.total() >= ATTEMPTS_MAX:
            return False
        self._under_way[network] += 1
        return True

    def end(self, network: str | bytes) -> None:
        self._under_way[network] -= 1
        if not self._under_way[network]:
            del self._under_way[network]

    def fail(self, network: str | bytes, user: str, now_ms: int) -> int:
        """Count a failure; return how many ms its answer has to wait."""
        count = max(self._count(("network", network), now_ms), self._count(("name", user), now_ms))
        return int(min(FIRST_DELAY_MS << min(count - 1, 20), DELAY_MS_MAX))

    def _count(self, key: tuple[str, str | bytes], now_ms: int) -> int:
        count, last_ms = self._failures.pop(key, (0, now_ms))
        count = 1 if now_ms - last_ms >= REMEMBERED_MS else count + 1
        if len(self._failures) >= FAILURES_KEPT:
            del self._failures[next(iter(self._failures))]
        self._failures[key] = count, now_ms
        return count
