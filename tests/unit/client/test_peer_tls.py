"""Connections to other boxes with TLS (`appliance/client/peer_stream.py`, `PeerContext`): both sides show certificates."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.logging import Logger
from appliance.base.settings import KafkaListener, default_settings
from appliance.client import peer_stream
from appliance.client.address import Address
from appliance.client.peer_connection import CONNECT_TIMEOUT_MS, HANDSHAKE_TIMEOUT_MS, PAUSE_MS_QUICK, PeerAnswer, PeerConnection
from appliance.client.peer_stream import BYTES_A_TURN
from appliance.protocol.apis import ApiKey
from appliance.runtime.poller import Poller
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
        tls = PeerContext(certificates.settings(ours, "ours"), Logger("test", descriptor=1))
        self.connection = PeerConnection(self.peer.address, "broker-1-test", self.poller, self.clock, tls, answer_bytes_max=64 << 20)
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
