"""The authentication of one connection, frame by frame (`services/acceptor/sasl_session.py`)."""

from __future__ import annotations

import itertools
import os
import select
import socket
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from appliance.base.errors import ErrorCode, ProtocolViolation
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.cluster.credential_image import CredentialFollower, CredentialImage, write_credential_image
from appliance.cluster.token_image import TokenImage, write_token_image
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.framing import frame
from appliance.protocol.sasl_apis import (
    SASL_AUTHENTICATE_REQUEST,
    SASL_AUTHENTICATE_RESPONSE,
    SASL_HANDSHAKE_REQUEST,
    SASL_HANDSHAKE_RESPONSE,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from appliance.security.delegation_tokens import DelegationToken, password_of, secret_of
from appliance.security.principals import Principal
from appliance.security.scram import ScramClient, ScramCredential, ScramMechanism, salted_password
from appliance.security.transport import PlainTransport
from lab.running_box import eventually
from services.acceptor.connection import Connection, PendingReply
from services.acceptor.sasl_connections import CHECKS_MAX, CHECKS_PER_ADDRESS, LOG_PERIOD_NS, FailedLogins, LoginChecks, WaitingCheck
from services.acceptor.sasl_session import REQUESTS_MAX, CheckedLogin, PasswordCheck, SaslAnswer, SaslSession

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
SALT = b"0123456789abcdef"
USERS = {
    "alice": {
        mechanism.label: ScramCredential.of_salted_password(mechanism, SALT, salted_password(mechanism, "pencil", SALT, 4096), 4096).encode()
        for mechanism in ScramMechanism
    },
    "bob": {
        "SCRAM-SHA-512": ScramCredential.of_salted_password(
            ScramMechanism.SHA_512, SALT, salted_password(ScramMechanism.SHA_512, "pencil", SALT, 4096), 4096
        ).encode()
    },
}


class Exchange:
    """A client of one session; `versions` of SaslHandshake and SaslAuthenticate."""

    def __init__(self, credentials: CredentialFollower, versions: tuple[int, int] = (1, 2), **more: Any) -> None:
        nonces = itertools.count()
        mechanisms = more.pop("mechanisms", MECHANISMS)
        self.session = SaslSession(mechanisms, credentials, lambda: f"nonce{next(nonces)}", 0, **more)
        self.versions = versions

    def send(self, api_key: ApiKey, version: int, body: bytes) -> SaslAnswer:
        flexible = SERVED_APIS[api_key].is_flexible(version)
        header = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\x00\x00\x00\x07\x00\x01c" + (b"\x00" if flexible else b"")
        return self.session.on_frame(memoryview(header + body), 0, len(header) + len(body))

    def handshake(self, mechanism: str) -> tuple[SaslAnswer, Any]:
        version = self.versions[0]
        answer = self.send(ApiKey.SASL_HANDSHAKE, version, SASL_HANDSHAKE_REQUEST.encode(version, SaslHandshakeRequest(mechanism)))
        assert answer.response is not None
        return answer, SASL_HANDSHAKE_RESPONSE.decode(answer.response, 8, len(answer.response), version)

    def token(self, token: bytes) -> SaslAnswer:
        if self.versions[0] == 0:
            return self.session.on_frame(memoryview(token), 0, len(token))
        version = self.versions[1]
        return self.send(ApiKey.SASL_AUTHENTICATE, version, SASL_AUTHENTICATE_REQUEST.encode(version, SaslAuthenticateRequest(token)))

    def read(self, answer: SaslAnswer) -> Any:
        """The response, or after SaslHandshake 0 the bare token."""
        assert answer.response is not None
        if self.versions[0] == 0:
            assert answer.response[:4] == len(answer.response[4:]).to_bytes(4, "big")
            return answer.response[4:]
        version = self.versions[1]
        return SASL_AUTHENTICATE_RESPONSE.decode(answer.response, 9 if version == 2 else 8, len(answer.response), version)

    def log_in(self, mechanism: str, user: str, password: str) -> SaslAnswer:
        """The last answer."""
        self.handshake(mechanism)
        if mechanism == "PLAIN":
            answer = self.token(f"\0{user}\0{password}".encode())
            assert answer.check is not None and answer.response is None
            return self.session.on_checked(answer.check.result())
        client = ScramClient(ScramMechanism(MECHANISMS.index(mechanism) + 1), user, password, "abc")
        challenge = self.read(self.token(client.first))
        answer = self.token(client.respond(challenge if self.versions[0] == 0 else challenge.auth_bytes))
        if answer.is_done:
            last = self.read(answer)
            client.check(last if self.versions[0] == 0 else last.auth_bytes)
        return answer


@pytest.fixture
def credentials(tmp_path: Path) -> CredentialFollower:
    layout = BoxLayout(str(tmp_path))
    follower = CredentialFollower(layout, Logger("test"))
    assert not follower.has_image
    write_credential_image(layout.credential_image_file, CredentialImage(1, b"secret", USERS))
    follower.load()
    assert follower.has_image
    return follower


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("versions", [(0, 0), (1, 0), (1, 1), (1, 2)])
def test_each_mechanism_in_each_version(credentials: CredentialFollower, mechanism: str, versions: tuple[int, int]) -> None:
    exchange = Exchange(credentials, versions, lifetime_ms=60_000)
    answer = exchange.log_in(mechanism, "alice", "pencil")
    assert answer.is_done and answer.failure is None and exchange.session.user == "alice"
    if versions[0]:
        assert exchange.read(answer).session_lifetime_ms == (60_000 if versions[1] else 0)
    elif mechanism == "PLAIN":
        assert answer.response == frame(b"")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_and_an_unknown_user_are_answered_alike(credentials: CredentialFollower, mechanism: str) -> None:
    exchanges = [Exchange(credentials), Exchange(credentials)]
    answers = [exchange.log_in(mechanism, user, "wrong") for exchange, user in zip(exchanges, ("alice", "nobody"), strict=True)]
    assert answers[0] == answers[1]
    assert not answers[0].is_done and answers[0].failure == "wrong password or unknown user"
    response = exchanges[0].read(answers[0])
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED and mechanism in response.error_message


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
def test_no_login_has_the_name_of_a_local_user(credentials: CredentialFollower, mechanism: str) -> None:
    """Entries for a user of the Unix socket would be those of anyone with that name elsewhere."""
    name = "local:1000"
    exchange = Exchange(credentials, mechanisms=(mechanism,), verify_token=lambda _token: CheckedLogin("", name, 5000))
    exchange.handshake(mechanism)
    tokens = {"PLAIN": f"\0{name}\0pencil".encode(), "OAUTHBEARER": b"n,,\x01auth=Bearer good\x01\x01"}
    answer = exchange.token(tokens.get(mechanism, f"n,,n={name},r=abc".encode()))
    if answer.check is not None:
        answer = exchange.session.on_checked(answer.check.result())
    assert not answer.is_done and "Unix socket" in str(answer.failure)
    assert exchange.read(answer).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_an_unknown_user_gets_the_same_salt_and_the_usual_iterations(credentials: CredentialFollower) -> None:
    challenges = []
    for _ in range(2):
        exchange = Exchange(credentials)
        exchange.handshake("SCRAM-SHA-512")
        challenges.append(exchange.read(exchange.token(b"n,,n=nobody,r=abc")).auth_bytes)
    assert challenges[0] == challenges[1] and challenges[0].endswith(b",i=4096")


def test_plain_takes_a_user_who_has_only_the_other_mechanism(credentials: CredentialFollower) -> None:
    assert Exchange(credentials).log_in("PLAIN", "bob", "pencil").is_done


def test_a_password_is_not_in_the_text_of_its_check(credentials: CredentialFollower) -> None:
    exchange = Exchange(credentials)
    exchange.handshake("PLAIN")
    assert "pencil" not in repr(exchange.token(b"\0alice\0pencil")) and "pencil" not in str(exchange.session)


def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(credentials: CredentialFollower) -> None:
    answer, response = Exchange(credentials).handshake("GSSAPI")
    assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM and response.mechanisms == MECHANISMS
    assert answer.failure is not None


def test_api_versions_is_answered_before_and_nothing_else(credentials: CredentialFollower) -> None:
    exchange = Exchange(credentials)
    assert exchange.send(ApiKey.API_VERSIONS, 0, b"").response is not None
    assert exchange.send(ApiKey.API_VERSIONS, 99, b"").response is not None, "an unknown version is answered with what is known"
    with pytest.raises(ProtocolViolation, match="Metadata before its authentication"):
        exchange.send(ApiKey.METADATA, 0, b"\x00\x00\x00\x00")
    with pytest.raises(ProtocolViolation, match="SaslAuthenticate before"):
        exchange.token(b"")
    exchange.handshake("PLAIN")
    with pytest.raises(ProtocolViolation, match="ApiVersions during its authentication"):
        exchange.send(ApiKey.API_VERSIONS, 0, b"")
    with pytest.raises(ProtocolViolation, match="SaslHandshake during"):
        exchange.handshake("PLAIN")


def test_requests_before_authentication_are_limited(credentials: CredentialFollower) -> None:
    exchange = Exchange(credentials)
    for _ in range(REQUESTS_MAX):
        exchange.send(ApiKey.API_VERSIONS, 0, b"")
    with pytest.raises(ProtocolViolation, match="has not authenticated"):
        exchange.send(ApiKey.API_VERSIONS, 0, b"")


@pytest.mark.parametrize("token", [b"", b"\xff", b"n,,n=alice,r=abc,tokenauth=true", b"p=x,,n=alice,r=abc", b"n,a=bob,n=alice,r=abc"])
def test_a_token_that_cannot_be_taken_fails_with_the_same_text(credentials: CredentialFollower, token: bytes) -> None:
    exchange = Exchange(credentials)
    exchange.handshake("SCRAM-SHA-256")
    answer = exchange.token(token)
    assert answer.failure and "invalid credentials" in exchange.read(answer).error_message
    raw = Exchange(credentials, (0, 0))
    raw.handshake("SCRAM-SHA-256")
    assert raw.token(token).response is None, "the connection ends without a word"


TOKEN_SECRET = secret_of("id", "key")
TOKEN = DelegationToken("id", Principal("User", "alice"), Principal("User", "alice"), (), 0, 60_000, 90_000)


class ByTokens:
    """Tokens that a controller publishes, at a time that the test sets."""

    def __init__(self, directory: Path) -> None:
        self.layout = BoxLayout(str(directory))
        self.now_ms = 10_000
        self.generation = 0
        self.follower = CredentialFollower(self.layout, Logger("test"), wall_ms=lambda: self.now_ms)
        self.publish(TOKEN)

    def publish(self, *tokens: DelegationToken, secret: bytes = TOKEN_SECRET) -> None:
        self.generation += 1
        write_token_image(self.layout.token_image_file, TokenImage(self.generation, {each.token_id: (each, secret) for each in tokens}))
        self.follower.load()

    def log_in(self, secret: bytes = TOKEN_SECRET, mechanism: str = "SCRAM-SHA-256", **more: Any) -> tuple[Exchange, SaslAnswer, bool]:
        """The exchange, the last answer, and whether the credential was derived for it."""
        exchange = Exchange(self.follower, **more)
        exchange.handshake(mechanism)
        client = ScramClient(ScramMechanism(MECHANISMS.index(mechanism) + 1), "id", password_of(secret), "abc", by_token=True)
        answer = exchange.token(client.first)
        is_derived = answer.check is not None
        if answer.check is not None:
            assert "***" in repr(answer.check)
            answer = exchange.session.on_checked(answer.check.result())
        if answer.failure is None:
            answer = exchange.token(client.respond(exchange.read(answer).auth_bytes))
        return exchange, answer, is_derived


@pytest.mark.parametrize("mechanism", MECHANISMS[:2])
def test_the_owner_of_a_delegation_token_logs_in_until_it_expires(tmp_path: Path, mechanism: str) -> None:
    tokens = ByTokens(tmp_path)
    for is_first, limit_ms, lifetime_ms in ((True, 0, 50_000), (False, 70_000, 50_000), (False, 20_000, 20_000)):
        exchange, answer, is_derived = tokens.log_in(mechanism=mechanism, lifetime_ms=limit_ms)
        assert answer.is_done and is_derived is is_first
        assert (exchange.session.user, exchange.session.by_token) == ("alice", True)
        assert exchange.read(answer).session_lifetime_ms == lifetime_ms
    assert tokens.log_in(b"wrong", mechanism)[1].failure == "wrong password or unknown user"
    tokens.publish(TOKEN._replace(token_id="other"))
    assert "delegation token" in str(tokens.log_in(mechanism=mechanism)[1].failure)
    tokens.publish(TOKEN, secret=b"of another key")
    assert not tokens.log_in(mechanism=mechanism)[1].is_done and tokens.log_in(b"of another key", mechanism)[1].is_done


def test_what_no_delegation_token_allows(tmp_path: Path) -> None:
    tokens = ByTokens(tmp_path)
    tokens.now_ms = 60_001
    assert "expired" in str(tokens.log_in()[1].failure)
    tokens.now_ms = 10_000
    tokens.publish(TOKEN._replace(owner=Principal("Group", "alice")))
    assert "delegation token" in str(tokens.log_in()[1].failure), "a login is a user's"
    tokens.publish(TOKEN._replace(owner=Principal("User", "local:0")))
    assert "Unix socket" in str(tokens.log_in()[1].failure)
    tokens.publish(TOKEN)
    assert tokens.log_in(known=("bob", "SCRAM-SHA-256"))[1].failure == "another user than before"
    assert tokens.log_in(known=("alice", "SCRAM-SHA-256"))[1].is_done
    exchange = Exchange(tokens.follower)
    exchange.handshake("SCRAM-SHA-256")
    tokens.publish(TOKEN, secret=b"x" * 64)
    answer = exchange.token(b"n,,n=id,r=abc,tokenauth=true")
    tokens.publish()
    assert answer.check is not None and "delegation token" in str(exchange.session.on_checked(answer.check.result()).failure)
    os.unlink(tokens.layout.token_image_file)
    tokens.follower.load()
    assert tokens.follower.tokens.login("id") is None


def test_a_second_authentication_has_the_user_and_mechanism_of_the_first(credentials: CredentialFollower) -> None:
    known = ("alice", "SCRAM-SHA-256")
    assert Exchange(credentials, known=known).log_in("SCRAM-SHA-256", "alice", "pencil").is_done
    other, response = Exchange(credentials, known=known).handshake("SCRAM-SHA-512")
    assert other.failure and response.error_code == ErrorCode.ILLEGAL_SASL_STATE
    exchange = Exchange(credentials, known=known)
    exchange.handshake("SCRAM-SHA-256")
    assert exchange.token(b"n,,n=bob,r=abc").failure == "another user than before"
    with pytest.raises(ProtocolViolation, match="ApiVersions before"):
        Exchange(credentials, known=known).send(ApiKey.API_VERSIONS, 0, b"")


def test_an_unreadable_image_leaves_the_last_credentials_in_use(credentials: CredentialFollower, tmp_path: Path) -> None:
    Path(BoxLayout(str(tmp_path)).credential_image_file).write_bytes(b"damaged")
    credentials.load()
    assert Exchange(credentials).log_in("PLAIN", "alice", "pencil").is_done


def test_failed_logins_are_logged_once_a_minute_with_names_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    failed = FailedLogins(Logger("test"))
    failed.sweep(0)
    for _ in range(3):
        failed.add("10.0.0.7", "no\nbody", "PLAIN", "wrong password or unknown user")
    failed.sweep(1)
    shown = capfd.readouterr()
    lines = (shown.out + shown.err).splitlines()
    assert len(lines) == 1 and r"3 failed logins of user 'no\nbody' from 10.0.0.7 (PLAIN: wrong password" in lines[0].replace("\\\\", "\\")
    for number in range(2000):
        failed.add("10.0.0.7", f"user{number}", "PLAIN", "wrong password or unknown user")
    failed.sweep(LOG_PERIOD_NS)
    assert capfd.readouterr() == ("", ""), "the minute is not over"
    failed.sweep(LOG_PERIOD_NS + 1)
    shown = capfd.readouterr()
    lines = (shown.out + shown.err).splitlines()
    assert len(lines) == 11 and "1990 more failed logins" in lines[-1]


def test_password_checks_are_limited_in_total_and_for_one_address() -> None:
    results: list[bool] = []
    checks = LoginChecks(lambda _waiting, checked: results.append(not checked.reason))
    right = ScramCredential.of_salted_password(ScramMechanism.SHA_256, SALT, salted_password(ScramMechanism.SHA_256, "pencil", SALT, 1), 1)
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def submit(address: str, password: str) -> bool:
            connection = Connection(PlainTransport(ours), address, 0)
            session = SaslSession(MECHANISMS, CredentialFollower(BoxLayout("/nonexistent"), Logger("test")), lambda: "", 0)
            check = PasswordCheck(ScramMechanism.SHA_256, right, password)
            return checks.submit(WaitingCheck(connection, session, check, PendingReply(connection)))

        try:
            assert all(submit("10.0.0.1", "pencil") for _ in range(CHECKS_PER_ADDRESS)) and not submit("10.0.0.1", "pencil")
            taken = sum(submit(f"10.0.1.{number}", "wrong") for number in range(CHECKS_MAX))
            assert taken == CHECKS_MAX - CHECKS_PER_ADDRESS
            while len(results) < CHECKS_MAX:
                select.select([checks.wakes], [], [], 10)
                checks.on_woken(0)
            assert results == [True] * CHECKS_PER_ADDRESS + [False] * taken
            assert submit("10.0.0.1", "pencil"), "they are counted as long as they wait"
        finally:
            checks.close()


def test_an_image_in_use_is_not_read_again(credentials: CredentialFollower, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The controller announces all changes of the cluster alike, and 10,000 users take 20 ms."""
    path = BoxLayout(str(tmp_path)).credential_image_file
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[:-1])
    credentials.load()
    assert capfd.readouterr() == ("", ""), "its header has the same generation"
    write_credential_image(path, CredentialImage(2, b"secret", {"bob": USERS["bob"]}))
    credentials.load()
    assert not Exchange(credentials).log_in("PLAIN", "alice", "pencil").is_done


_threads: SimpleQueue[int] = SimpleQueue()


class _Dies(PasswordCheck):
    """Ends the thread that takes it, as a lack of memory would."""

    def result(self) -> CheckedLogin:
        _threads.put(threading.get_native_id())
        raise SystemExit


def test_password_checks_go_on_in_another_thread_when_theirs_has_died(credentials: CredentialFollower) -> None:
    results: list[bool] = []
    checks = LoginChecks(lambda _waiting, checked: results.append(not checked.reason))
    mechanism, credential, _ = credentials.plain_credential("alice")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(PlainTransport(ours), "10.0.0.1", 0)
        session = SaslSession(MECHANISMS, credentials, lambda: "", 0)

        def submit(kind: type[PasswordCheck]) -> bool:
            return checks.submit(WaitingCheck(connection, session, kind(mechanism, credential, "pencil"), PendingReply(connection)))

        try:
            assert submit(_Dies)
            died = _threads.get(timeout=20)
            eventually(lambda: not Path(f"/proc/self/task/{died}").exists(), "the thread has ended")
            assert submit(PasswordCheck)
            assert select.select([checks.wakes], [], [], 10)[0], "no thread takes it"
            checks.on_woken(0)
            assert results == [True]
        finally:
            checks.close()


def test_a_bearer_token_that_is_refused_is_answered_before_the_login_fails(credentials: CredentialFollower) -> None:
    """RFC 7628, 3.2.3; and the session ends with the token."""
    answers = {"good": CheckedLogin("", "alice", 5000), "bad": CheckedLogin("expired")}
    for known, lifetime_ms, token, wanted in (
        (None, 0, b"n,,\x01auth=Bearer good\x01\x01", 5000),
        (None, 1000, b"n,a=alice,\x01auth=Bearer good\x01\x01", 1000),
        (("alice", "OAUTHBEARER"), 0, b"n,,\x01auth=Bearer good\x01\x01", 5000),
        (("bob", "OAUTHBEARER"), 0, b"n,,\x01auth=Bearer good\x01\x01", None),
        (None, 0, b"n,a=bob,\x01auth=Bearer good\x01\x01", None),
        (None, 0, b"n,,\x01auth=Bearer bad\x01\x01", None),
        (None, 0, b"n,,", None),
    ):
        exchange = Exchange(credentials, mechanisms=("OAUTHBEARER",), lifetime_ms=lifetime_ms, known=known, verify_token=answers.__getitem__)
        exchange.handshake("OAUTHBEARER")
        answer = exchange.token(token)
        if answer.check is not None:
            answer = exchange.session.on_checked(answer.check.result())
        if wanted is not None:
            assert answer.is_done and exchange.session.user == "alice" and exchange.read(answer).session_lifetime_ms == wanted
            continue
        assert not answer.is_done
        if answer.failure is None:
            assert answer.refusal
            assert exchange.read(answer)[:3] == (0, None, b'{"status":"invalid_token"}')
            answer = exchange.token(b"\x01")
        assert answer.failure and exchange.read(answer).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
