"""Connections to other boxes with TLS (`appliance/client/peer_stream.py`, `PeerContext`): both sides show certificates, or one logs in."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.logging import Logger
from appliance.base.settings import Box, KafkaListener, default_settings
from appliance.client import peer_stream
from appliance.client.address import Address
from appliance.client.peer_connection import CONNECT_TIMEOUT_MS, HANDSHAKE_TIMEOUT_MS, PAUSE_MS_QUICK, PeerAnswer, PeerConnection
from appliance.client.peer_login import read_password
from appliance.client.peer_stream import BYTES_A_TURN
from appliance.protocol import sasl_apis
from appliance.protocol.apis import ApiKey
from appliance.runtime.poller import Poller
from appliance.security.scram import ScramCredential, ScramFailed, ScramMechanism, ScramServer, read_client_first, salted_password
from appliance.security.tls_contexts import PeerContext, TlsSettings, make_context
from appliance.security.tls_transport import RECORD_BYTES
from lab.certificates import Authority, Certificate
from lab.scratch_layout import open_descriptors
from tests.support.scripted_peer import ScriptedPeer, until

TIMEOUT_MS = 30_000


class Certificates:
    """An authority of the cluster, certificates of two boxes, and what another authority signed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.cluster, self.other = Authority(directory), Authority(directory, "other")
        self.box1, self.box2 = self.cluster.sign("box1", "DNS:box1"), self.cluster.sign("box2", "IP:127.0.0.1")
        self.again, self.stranger = self.cluster.sign("again", "DNS:box1"), self.other.sign("stranger", "IP:127.0.0.1")
        self.expired = self.cluster.sign("expired", "IP:127.0.0.1", days=-1)
        self.revoked = self.cluster.sign("revoked", "IP:127.0.0.1")
        self._revoked_list = str(self.cluster.revoke(self.revoked))

    def settings(self, made: Certificate, name: str = "") -> TlsSettings:
        keystore = made.write_keystore(self._directory / f"{name or made.certificate.stem}-keystore.pem")
        own = {"ssl.keystore.location": str(keystore), "ssl.truststore.location": str(self.cluster.certificate), "ssl.client.auth": "required"}
        own["ssl.crl.location"] = self._revoked_list
        return TlsSettings.of(KafkaListener("INTERNAL", "SSL", "127.0.0.1", 0, "127.0.0.1", 0, dict(own)), default_settings())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("boxes"))


class Asking:
    """A connection of box 1, its poller and clock, and box 2 that the test plays."""

    def __init__(self, certificates: Certificates, ours: Certificate, theirs: Certificate | None) -> None:
        self.poller = Poller()
        self.clock = ManualClock()
        self.server = make_context(certificates.settings(theirs)) if theirs is not None else None
        self.peer = ScriptedPeer(self.turn, self.server)
        self.tls = PeerContext(certificates.settings(ours, "ours"), Logger("test", descriptor=1))
        self.connection = PeerConnection(self.peer.address, "broker-1-test", self.poller, self.clock, self.tls, answer_bytes_max=64 << 20)
        self.answers: list[bytes | None] = []

    def turn(self) -> None:
        self.poller.poll(1)
        self.connection.do_work(self.clock.monotonic_ns())

    def until(self, condition: Callable[[], object]) -> None:
        until(condition, self.turn, f"it did not come to pass: {self.connection.problem}")

    def ask(self, body: bytes = b"") -> None:
        def on_answer(answer: PeerAnswer | None) -> None:
            self.answers.append(None if answer is None else bytes(answer.memory[answer.position : answer.limit]))

        self.connection.request(ApiKey.FETCH, 4, 4, lambda _version: body, on_answer, TIMEOUT_MS)

    def refusal(self) -> str:
        """Why a request ends without an answer; the peer does what TLS demands."""
        self.ask()
        self.peer.accept()
        self.until(lambda: self.peer.poll_request() or self.answers)
        assert self.answers == [None]
        return self.connection.problem

    def close(self) -> None:
        self.connection.close()
        self.peer.die()
        self.poller.close()


@pytest.fixture
def asks(certificates: Certificates) -> Iterator[Callable[..., Asking]]:
    made: list[Asking] = []
    before = open_descriptors()

    def make(ours: Certificate = certificates.box1, theirs: Certificate | None = certificates.box2) -> Asking:
        made.append(Asking(certificates, ours, theirs))
        return made[-1]

    yield make
    for each in made:
        each.close()
    assert open_descriptors() == before


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_large_requests_and_answers_arrive_whole_over_either_version(asks: Callable[..., Asking], version: ssl.TLSVersion) -> None:
    asking = asks()
    assert asking.server is not None
    asking.server.minimum_version = asking.server.maximum_version = version
    sent = bytes(range(256)) * 1500 + b"end"
    returned = bytes(BYTES_A_TURN) + sent
    for number in range(2):
        asking.ask(sent)
        request = asking.peer.next_request()
        assert request.body == sent
        asking.peer.answer(request, returned)
        asking.until(lambda number=number: len(asking.answers) > number)
        assert asking.answers[number] == returned
    assert asking.peer.accepted == 1
    sock: Any = asking.peer.sock
    assert sock.version() == version.name.replace("_", ".") and sock.getpeercert()["subjectAltName"] == (("DNS", "box1"),)


def test_input_that_tls_has_decrypted_and_the_poller_does_not_report_is_received(asks: Callable[..., Asking], monkeypatch: pytest.MonkeyPatch) -> None:
    asking = asks()
    monkeypatch.setattr(peer_stream, "BYTES_A_TURN", RECORD_BYTES + 100)
    for size_bytes in (RECORD_BYTES + 200, RECORD_BYTES + 101, 5 * RECORD_BYTES):
        asking.ask()
        asking.peer.answer(asking.peer.next_request(), bytes(size_bytes))
        asking.until(lambda: asking.answers)
        assert asking.answers.pop() == bytes(size_bytes)


def test_an_answer_that_trickles_in_is_whole_in_the_end(asks: Callable[..., Asking]) -> None:
    asking = asks()
    asking.ask()
    request = asking.peer.next_request()
    for byte in (8).to_bytes(4, "big") + request.correlation_id.to_bytes(4, "big") + b"\1\2\3\4":
        assert not asking.answers
        asking.peer.send(bytes([byte]))
        asking.turn()
    asking.until(lambda: asking.answers)
    assert asking.answers == [b"\1\2\3\4"]


def test_a_peer_whose_certificate_is_strange_expired_or_revoked_gets_no_request(asks: Callable[..., Asking], certificates: Certificates) -> None:
    refused = {
        certificates.stranger: ("self-signed", "unable to get local issuer"),
        certificates.again: ("IP address mismatch",),
        certificates.expired: ("expired",),
        certificates.revoked: ("revoked",),
    }
    for theirs, words in refused.items():
        asking = asks(theirs=theirs)
        problem = asking.refusal()
        assert problem.startswith("its certificate is not accepted: ") and any(word in problem for word in words), problem


def test_a_peer_says_why_it_refuses_the_certificate_of_this_box(asks: Callable[..., Asking], certificates: Certificates) -> None:
    assert "unknown ca" in asks(ours=certificates.stranger).refusal()
    assert "expired" in asks(ours=certificates.expired).refusal()
    assert "revoked" in asks(ours=certificates.revoked).refusal()


def test_a_peer_in_clear_text_gets_nothing_but_the_start_of_a_handshake(asks: Callable[..., Asking]) -> None:
    asking = asks(theirs=None)
    asking.ask()
    asking.peer.accept()
    asking.until(lambda: _received(asking.peer.sock))
    asking.peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    asking.until(lambda: asking.answers)
    assert asking.answers == [None] and asking.connection.problem.startswith("no agreement on TLS: ")


def _received(sock: socket.socket | None) -> bool:
    assert sock is not None
    try:
        return b"broker-1-test" not in sock.recv(1 << 16)
    except BlockingIOError:
        return False


def test_a_handshake_has_a_deadline(asks: Callable[..., Asking]) -> None:
    asking = asks(theirs=None)
    asking.ask()
    asking.peer.accept()
    asking.until(lambda: _received(asking.peer.sock))
    asking.clock.advance_ms(CONNECT_TIMEOUT_MS + HANDSHAKE_TIMEOUT_MS - 1)
    asking.turn()
    assert not asking.answers
    asking.clock.advance_ms(1)
    asking.until(lambda: asking.answers)
    assert asking.answers == [None] and asking.connection.problem == "it could not be reached in time"


def test_the_next_connection_shows_a_replaced_certificate(asks: Callable[..., Asking], certificates: Certificates) -> None:
    asking = asks()
    serials = []
    for made in (certificates.box1, certificates.again):
        certificates.settings(made, "ours")
        asking.ask()
        asking.peer.next_request()
        sock: Any = asking.peer.sock
        serials.append(sock.getpeercert()["serialNumber"])
        asking.peer.hang_up()
        asking.until(lambda: len(asking.answers) == len(serials))
        asking.clock.advance_ms(PAUSE_MS_QUICK)
    assert serials[0] != serials[1]


def test_a_box_without_a_usable_certificate_connects_to_none_and_says_so(asks: Callable[..., Asking], certificates: Certificates) -> None:
    settings = certificates.settings(certificates.box1, "gone")
    Path(settings.keystore).unlink()
    asking = asks()
    asking.connection.close()
    tls = PeerContext(settings, Logger("test", descriptor=1))
    asking.connection = PeerConnection(Address(*asking.peer.address), "broker-1-test", asking.poller, asking.clock, tls)
    asking.ask()
    asking.until(lambda: asking.answers)
    assert asking.answers == [None] and asking.connection.problem == "the certificate of this box cannot be used"


# --- boxes that log in


class LoggingIn:
    """A connection that must log in, and what box 2 verifies it by."""

    def __init__(self, asking: Asking, directory: Path, mechanism: str, password: str = "of boxes") -> None:
        self.asking, self.file = asking, directory / "password"
        self.file.touch(0o600)
        self.file.write_text(f"{password}\n")
        settings: dict[str, Any] = {"inter.broker.user": "boxes", "inter.broker.password.file": str(self.file)}
        settings["sasl.mechanism.inter.broker.protocol"] = mechanism
        listeners = [KafkaListener("BOXES", "SASL_SSL", "127.0.0.1", 0, "127.0.0.1")]
        asking.tls.logs_in = Box("b", 1, [], "", "127.0.0.1", "", 0, 0, 0, listeners=listeners, settings=settings)
        self.mechanism = ScramMechanism.SHA_512

    def handshake(self, code: int = 0) -> str:
        request = self.asking.peer.next_request()
        assert request.api_key == ApiKey.SASL_HANDSHAKE, "before any other request"
        asked = sasl_apis.SASL_HANDSHAKE_REQUEST.decode(request.body, 0, len(request.body), request.version)
        self.asking.peer.answer(request, sasl_apis.SASL_HANDSHAKE_RESPONSE.encode(request.version, sasl_apis.SaslHandshakeResponse(code, ("PLAIN",))))
        return str(asked.mechanism)

    def token(self, answer: Callable[[bytes], bytes], code: int = 0) -> None:
        """Answer the next token."""
        request = self.asking.peer.next_request()
        assert request.api_key == ApiKey.SASL_AUTHENTICATE
        token = sasl_apis.SASL_AUTHENTICATE_REQUEST.decode(request.body, 0, len(request.body), request.version).auth_bytes
        response = sasl_apis.SaslAuthenticateResponse(code, "refused" if code else None, answer(bytes(token)))
        self.asking.peer.answer(request, sasl_apis.SASL_AUTHENTICATE_RESPONSE.encode(request.version, response))

    def scram(self, known: str = "of boxes") -> None:
        """Verify by SCRAM, as a server that knows this password."""
        salt = b"salt of boxes"
        credential = ScramCredential.of_salted_password(self.mechanism, salt, salted_password(self.mechanism, known, salt, 4096), 4096)
        servers: list[ScramServer] = []

        def challenge(token: bytes) -> bytes:
            servers.append(ScramServer(self.mechanism, read_client_first(token), credential, "nonce"))
            return servers[0].challenge

        self.token(challenge)
        self.token(lambda token: servers[0].finish(token))

    def is_served(self) -> bool:
        self.asking.peer.answer(self.asking.peer.next_request(), b"served")
        self.asking.until(lambda: self.asking.answers)
        return self.asking.answers == [b"served"]

    def problem(self) -> str:
        self.asking.until(lambda: self.asking.answers)
        assert self.asking.answers == [None]
        return self.asking.connection.problem


def test_a_box_logs_in_before_its_first_request_by_either_mechanism(asks: Callable[..., Asking], tmp_path: Path) -> None:
    for mechanism in ("SCRAM-SHA-512", "PLAIN"):
        login = LoggingIn(asks(), tmp_path, mechanism)
        login.asking.ask(b"secret")
        assert login.handshake() == mechanism
        if mechanism == "PLAIN":
            tokens: list[bytes] = []
            login.token(lambda token, tokens=tokens: tokens.append(token) or b"")  # type: ignore[misc]
            assert tokens == [b"\0boxes\0of boxes"]
        else:
            login.scram()
        assert login.is_served()


def test_a_box_whose_login_is_refused_says_why_and_sends_nothing_else(asks: Callable[..., Asking], tmp_path: Path) -> None:
    refused = LoggingIn(asks(), tmp_path, "PLAIN")
    refused.asking.ask()
    refused.handshake()
    refused.token(lambda _token: b"", 58)
    assert refused.problem() == "it refused inter.broker.user 'boxes': refused"
    unknown = LoggingIn(asks(), tmp_path, "SCRAM-SHA-512")
    unknown.asking.ask()
    unknown.handshake(33)
    assert "it does not take SCRAM-SHA-512: error 33" in unknown.problem()
    with pytest.raises(ScramFailed):  # of the server
        other = LoggingIn(asks(), tmp_path, "SCRAM-SHA-512")
        other.asking.ask()
        other.handshake()
        other.scram("another password")


def test_a_server_that_does_not_know_the_password_is_sent_no_request(asks: Callable[..., Asking], tmp_path: Path) -> None:
    login = LoggingIn(asks(), tmp_path, "SCRAM-SHA-512")
    login.asking.ask()
    login.handshake()
    login.token(lambda token: read_client_first(token).nonce.encode() and b"r=" + read_client_first(token).nonce.encode() + b"x,s=c2FsdA==,i=4096")
    login.token(lambda _token: b"v=" + b"A" * 88)
    assert login.problem().startswith("it cannot be trusted: ")


def test_a_password_is_read_for_each_connection_and_a_missing_one_is_named(asks: Callable[..., Asking], tmp_path: Path) -> None:
    login = LoggingIn(asks(), tmp_path, "PLAIN")
    login.file.unlink()
    login.asking.ask()
    login.asking.peer.accept()
    login.asking.until(lambda: login.asking.peer.poll_request() or login.asking.answers)
    assert f"inter.broker.password.file {login.file} could not be read: No such file" in login.problem()
    login.file.touch(0o644)
    login.file.write_text("again\n")
    with pytest.raises(ValueError, match=r"closed to other users \(mode 0644\); run chmod o= "):
        read_password(str(login.file))
    login.file.chmod(0o640)
    login.asking.answers.clear()
    login.asking.clock.advance_ms(PAUSE_MS_QUICK)
    login.asking.ask()
    login.handshake()
    login.token(lambda token: token[:0] if token.endswith(b"again") else b"wrong")
    assert login.is_served()
