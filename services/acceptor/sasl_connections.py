"""Connections of an acceptor that authenticate by SASL: their frames, password checks, delays, failed logins.

Bytes of a connection go to its `SaslSession` until it is done, and to the receiver from then on; other connections
pay nothing for it. A SCRAM login takes 0.14 ms of turns, 10 µs of them HMACs. The password of PLAIN is derived
(1.6 to 13 ms) in one thread, without the interpreter lock, which verifies bearer tokens (0.1 to 1 ms), too; at most
`CHECKS_MAX` wait for it, `CHECKS_PER_ADDRESS` of one address, and more are closed unanswered, so that clients try again. A failure is answered after
`connection.failed.authentication.delay.ms`; a bearer token is refused at once, and fails after that time. Owned by one
acceptor. Weak: clients of all addresses share the thread.
"""

from __future__ import annotations

import base64
import os
import select
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from appliance.base.errors import ProtocolViolation
from appliance.base.logging import Logger
from appliance.cluster.credential_image import CredentialFollower
from appliance.protocol.framing import RequestHeader, read_frame_size
from appliance.runtime.agent import ServiceContext
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from appliance.security.listeners import TokenSettings, may_use_console
from appliance.security.oauth import KeysAbsent, TokenRefused
from appliance.security.principals import ACTING, BY_TOKEN, USER_TYPE, Principal
from appliance.security.scram import NONCE_BYTES
from appliance.security.transport import WOULD_BLOCK
from services.acceptor.closings import AUTHENTICATION_FAILED, AUTHENTICATION_OVERLOAD, CLIENT_LEFT
from services.acceptor.connection import Connection, PendingReply
from services.acceptor.listening_socket import ListeningSocket
from services.acceptor.sasl_session import FRAME_BYTES_MAX, WRONG, CheckedLogin, PasswordCheck, SaslAnswer, SaslSession, SecretCheck, TokenCheck, VerifyToken
from services.acceptor.token_keys import TokenKeys

if TYPE_CHECKING:
    from services.acceptor.audit.audit_trail import AuditTrail

CHECKS_MAX: Final = 64
CHECKS_PER_ADDRESS: Final = 16
RECEIVE_BYTES: Final = 4 << 10
WITHOUT_ROLE: Final = "the user has no role in the console (http.role.*)"
LOG_PERIOD_NS: Final = 60_000_000_000
LINES_A_PERIOD: Final = 10
FAILURES_KEPT: Final = 1_000
"""Different failures of a period that are counted one by one."""


class WaitingCheck(NamedTuple):
    """A connection whose password is verified."""

    connection: Connection
    session: SaslSession
    check: PasswordCheck | TokenCheck | SecretCheck
    reply: PendingReply


class _Delayed(NamedTuple):
    """A failure: first its response leaves, and after the same time again the connection closes.

    Some clients do not read a response that arrives together with the end of the connection.
    """

    deadline_ns: int
    reply: PendingReply
    response: bytes | None
    closes: bool = False


class LoginChecks:
    """One thread, started by the first check, and again if it died; it ends with the process. `on_result` is called in the acceptor's thread.

    Weak: a check in which the thread died is lost, and counts towards the limits until the process ends.
    """

    def __init__(self, on_result: Callable[[WaitingCheck, CheckedLogin], None]) -> None:
        self._on_result = on_result
        self._queue: SimpleQueue[WaitingCheck | None] = SimpleQueue()
        self._results: deque[tuple[WaitingCheck, CheckedLogin]] = deque()
        self._per_address: Tally[str] = Tally()
        self._thread: BackgroundThread | None = None
        self.wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def submit(self, waiting: WaitingCheck) -> bool:
        """Return False if too many wait, or no thread can be started now; the next one tries again."""
        address = waiting.connection.address
        if self._per_address.total() >= CHECKS_MAX or self._per_address[address] >= CHECKS_PER_ADDRESS:
            return False
        if self._thread is None or not self._thread.is_alive():
            thread = BackgroundThread(self._run, "login-checks")
            try:
                thread.start()
            except ThreadRefused:  # it is counted and logged
                return False
            self._thread = thread
        self._per_address[address] += 1
        self._queue.put(waiting)
        return True

    def _run(self) -> None:
        while (waiting := self._queue.get()) is not None:
            self._results.append((waiting, CheckedLogin(WRONG) if waiting.connection.closed else waiting.check.result()))
            os.eventfd_write(self.wakes, 1)

    def on_woken(self, _events: int) -> None:
        os.eventfd_read(self.wakes)
        while self._results:
            waiting, checked = self._results.popleft()
            address = waiting.connection.address
            self._per_address[address] -= 1
            if not self._per_address[address]:
                del self._per_address[address]
            self._on_result(waiting, checked)

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        os.close(self.wakes)


class FailedLogins:
    """Counts failures by address, user and reason, and logs them once a minute."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._failures: Tally[tuple[str, str, str, str]] = Tally()
        self._others = 0
        self._period_ends_ns = 0

    def add(self, address: str, user: str, mechanism: str, reason: str) -> None:
        key = address, user, mechanism, reason
        if key in self._failures or len(self._failures) < FAILURES_KEPT:
            self._failures[key] += 1
        else:
            self._others += 1

    def sweep(self, now_ns: int) -> None:
        if now_ns < self._period_ends_ns or not self._failures:
            return
        self._period_ends_ns = now_ns + LOG_PERIOD_NS
        first = self._failures.most_common(LINES_A_PERIOD)
        for (address, user, mechanism, reason), count in first:
            words = f"{mechanism or 'no mechanism'}: {reason}"
            self._log.warning(f"{count} failed logins of user {user!r} from {address} ({words})", client=address, reason=AUTHENTICATION_FAILED)
        left = self._failures.total() + self._others - sum(count for _, count in first)
        if left:
            self._log.warning(f"{left} more failed logins, not logged one by one", reason=AUTHENTICATION_FAILED)
        self._failures.clear()
        self._others = 0


class SaslConnections:
    """`begin` for each connection that must authenticate; `do_work` each turn, `sweep` once a second."""

    def __init__(
        self,
        context: ServiceContext,
        listeners: Iterable[ListeningSocket],
        on_authenticated: Callable[[Connection, bytes], None],
        close: Callable[[Connection, str, str], None],
        mark_dirty: Callable[[Connection], None],
        update_interest: Callable[[Connection], None],
    ) -> None:
        """`on_authenticated` gets what the client sent after its last token."""
        self._box = context.box
        self._clock = context.clock
        self._on_authenticated = on_authenticated
        self._close = close
        self._mark_dirty = mark_dirty
        self._update_interest = update_interest
        self.credentials = CredentialFollower(context.layout, context.log, wall_ms=context.clock.wall_ms)
        self._delay_ns = context.box.integer("connection.failed.authentication.delay.ms") * 1_000_000
        self._delayed: deque[_Delayed] = deque()
        self._failed = FailedLogins(context.log)
        self._checks = LoginChecks(self._on_checked)
        self._poller = context.poller
        self._poller.register(self._checks.wakes, select.EPOLLIN, self._checks.on_woken)
        self._scratch = memoryview(bytearray(RECEIVE_BYTES))
        self._authentications = context.counters.counter("acceptor.authentications")
        self._failures = context.counters.counter("acceptor.authentications_failed")
        self.audit: AuditTrail | None = None
        self._token_keys: dict[str, TokenKeys] = {}
        self._verifiers = {each.name: self._token_verifier(context, each.tokens) for each in listeners if each.tokens is not None}

    def _token_verifier(self, context: ServiceContext, tokens: TokenSettings) -> VerifyToken:
        """Return what verifies tokens, in the thread of logins. Listeners with the same address share the keys."""
        if (keys := self._token_keys.get(tokens.url)) is None:
            failures = context.counters.counter("acceptor.token_keys_failed")
            keys = self._token_keys[tokens.url] = TokenKeys(tokens.url, tokens.refresh_ms, context.log, failures)
        clock = context.clock

        def verify(token: str) -> CheckedLogin:
            try:
                verified = keys.verify(token, tokens.rules)
            except TokenRefused as refused:
                return CheckedLogin(str(refused))
            except KeysAbsent as absent:
                return CheckedLogin(str(absent), is_undecided=True)
            return CheckedLogin("", verified.user, max(1, verified.expires * 1000 - clock.wall_ms()))

        return verify

    @property
    def has_token_keys(self) -> bool:
        """Whether all keys of tokens were read that listeners need."""
        return all(keys.has_keys for keys in self._token_keys.values())

    # -- before authentication

    def begin(self, connection: Connection) -> None:
        """Expect the authentication of a new connection."""
        connection.sasl = self._session(connection, None)

    def _session(self, connection: Connection, known: tuple[str, str] | None) -> SaslSession:
        listening = connection.listening
        verify = self._verifiers.get(listening.name)
        mechanisms = listening.mechanisms or (ACTING,)  # without any only what acts for others comes here
        return SaslSession(mechanisms, self.credentials, _nonce, self._clock.monotonic_ns(), listening.session_ms, known, verify)

    def receive(self, connection: Connection) -> None:
        """Receive what has come. Frames are taken one by one, each after the answer to the last one."""
        session = connection.sasl
        try:
            while session is not None and connection.sasl is session and not connection.closed and not connection.read_paused:
                size_bytes = connection.transport.receive_into(self._scratch)
                if size_bytes == 0 or getattr(connection.transport, "wants_write", False):
                    self._close(connection, CLIENT_LEFT, "")
                    return
                if size_bytes == WOULD_BLOCK:
                    return
                session.buffer += self._scratch[:size_bytes]
                self._take_frames(connection, session)
        except ProtocolViolation as violation:
            self._close(connection, violation.reason, str(violation))
        except OSError:
            self._close(connection, CLIENT_LEFT, "")

    def _take_frames(self, connection: Connection, session: SaslSession) -> None:
        data = session.buffer
        view = memoryview(data)
        position = 0
        while connection.sasl is session and not connection.read_paused and len(data) - position >= 4:
            start = position + 4
            limit = start + read_frame_size(view, position, FRAME_BYTES_MAX, 0)
            if limit > len(data):
                break
            position = limit
            session.buffer = data[position:]
            self._answer(connection, session, session.on_frame(view, start, limit))

    # -- after it

    def authenticate_again(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        """Take SaslHandshake or SaslAuthenticate of an authenticated connection, or of one that may act for others. Raises ProtocolViolation."""
        if connection.sasl is None:
            connection.sasl = self._session(connection, (connection.principal.name, connection.mechanism) if connection.mechanism else None)
        self._answer(connection, connection.sasl, connection.sasl.on_request(header, buffer, limit))

    # -- answers

    def _answer(self, connection: Connection, session: SaslSession, answer: SaslAnswer) -> None:
        reply = connection.expect_reply(False)
        if answer.check is not None:
            connection.read_paused = session.known is None
            if not self._checks.submit(WaitingCheck(connection, session, answer.check, reply)):
                words = f"{CHECKS_MAX} passwords wait to be verified, or {CHECKS_PER_ADDRESS} of its address, or no thread could be started for them"
                self._close(connection, AUTHENTICATION_OVERLOAD, words)
                return
            self._update_interest(connection)
        else:
            self._finish(reply, session, answer)

    def _on_checked(self, waiting: WaitingCheck, checked: CheckedLogin) -> None:
        connection = waiting.connection
        if checked.is_undecided and not connection.closed:
            self._failures.add()
            self._close(connection, AUTHENTICATION_OVERLOAD, checked.reason)
        if not connection.closed:
            if waiting.session.known is None:
                connection.read_paused = False
            self._finish(waiting.reply, waiting.session, waiting.session.on_checked(checked))
            if not connection.closed:
                self._update_interest(connection)
                self._go_on(connection, waiting.session)

    def _go_on(self, connection: Connection, session: SaslSession) -> None:
        """Take what has come while a token was verified that was not the last one."""
        if session.buffer and connection.sasl is session and session.known is None:
            try:
                self._take_frames(connection, session)
            except ProtocolViolation as violation:
                self._close(connection, violation.reason, str(violation))

    def _finish(self, reply: PendingReply, session: SaslSession, answer: SaslAnswer) -> None:
        connection = reply.connection
        if (reason := answer.refusal or (None if session.refusal else answer.failure)) is not None:
            self._failures.add()
            address = session.address or connection.address
            self._failed.add(address, session.user, session.mechanism, reason)
            if self.audit is not None:
                self.audit.login_failed(session.user, address, way_of(connection, session), session.mechanism, reason)
        if answer.failure is not None:
            connection.read_paused = True
            self._update_interest(connection)
            self._delayed.append(_Delayed(self._clock.monotonic_ns() + self._delay_ns, reply, answer.response))
            return
        if answer.response is not None:
            reply.pieces = [answer.response]
        reply.ready = True
        self._mark_dirty(connection)
        if answer.is_done:
            self._on_done(connection, session)

    def _on_done(self, connection: Connection, session: SaslSession) -> None:
        self._authentications.add()
        connection.sasl = None
        connection.expires_ns = self._clock.monotonic_ns() + session.lifetime_ms * 1_000_000 if session.lifetime_ms else 0
        flags = BY_TOKEN if session.by_token else 0
        if session.known is None:
            connection.mechanism = session.mechanism
            if connection.listening.box_login is not None and not session.by_token:
                connection.is_box_user = (session.user, session.mechanism) == connection.listening.box_login
            connection.address = session.address or connection.address
            connection.set_origin(connection.origin._replace(principal=Principal(USER_TYPE, session.user), flags=flags))
            if self.audit is not None and session.is_login:
                self._audit_login(self.audit, connection, session)
            if connection.mechanism != ACTING:  # which is received like others already
                self._on_authenticated(connection, session.buffer)
        elif connection.origin.flags != flags:  # it has authenticated again by a password, or by a token
            connection.set_origin(connection.origin._replace(flags=flags))

    def _audit_login(self, audit: AuditTrail, connection: Connection, session: SaslSession) -> None:
        """The console refuses a person without a role after the password was verified here: that is no login."""
        if session.mechanism == ACTING and not may_use_console(self._box, session.user):
            audit.login_failed(session.user, connection.address, connection.way, session.mechanism, WITHOUT_ROLE)
        else:
            audit.login(connection, f"{session.mechanism} by delegation token" if session.by_token else session.mechanism)

    def do_work(self, now_ns: int) -> int:
        """Answer failed logins whose delay has passed, and close those that were answered."""
        work = 0
        while self._delayed and self._delayed[0].deadline_ns <= now_ns:
            work += 1
            _, reply, response, closes = self._delayed.popleft()
            connection = reply.connection
            if connection.closed:
                continue
            if closes or response is None:
                reply.closes = True
                reply.closing = AUTHENTICATION_FAILED, ""
            else:
                reply.pieces = [response]
                last = connection.expect_reply(False)  # it keeps what else the client has sent from being served
                self._delayed.append(_Delayed(now_ns + self._delay_ns, last, None, True))
            reply.ready = True
            self._mark_dirty(connection)
        return work

    def sweep(self, now_ns: int) -> None:
        self._failed.sweep(now_ns)
        for keys in self._token_keys.values():
            keys.sweep()

    def close(self) -> None:
        for keys in self._token_keys.values():
            keys.close()
        self._poller.unregister(self._checks.wakes)
        self._checks.close()


def way_of(connection: Connection, session: SaslSession) -> str:
    """As `Connection.way`, before the authentication is done."""
    return ACTING.lower() if session.mechanism == ACTING else connection.way


def _nonce() -> str:
    return base64.b64encode(os.urandom(NONCE_BYTES)).decode()
