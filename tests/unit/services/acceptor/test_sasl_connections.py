"""Connections that authenticate, over real sockets: an acceptor's connections stepped by hand (`services/acceptor/sasl_connections.py`)."""

from __future__ import annotations

import _thread
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import orjson
import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.base.settings import KafkaListener
from appliance.cluster.credential_image import CredentialImage, write_credential_image
from appliance.cluster.metadata_image import BrokerImage, MetadataImage
from appliance.cluster.token_image import TokenImage, write_token_image
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.framing import frame
from appliance.protocol.sasl_apis import (
    SASL_AUTHENTICATE_REQUEST,
    SASL_AUTHENTICATE_RESPONSE,
    SASL_HANDSHAKE_REQUEST,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import Poller
from appliance.runtime.systemd import SystemdNotifier
from appliance.security.delegation_tokens import DelegationToken, password_of, secret_of
from appliance.security.principals import ACTING, BY_TOKEN, UNAUTHENTICATED, ActingFor, Principal, RequestOrigin, local_principal
from appliance.security.scram import ScramClient, ScramMechanism
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from lab.scratch_layout import scratch_layout
from services.acceptor.audit.audit_trail import AuditTrail
from services.acceptor.client_connections import ClientConnections
from services.acceptor.connection import Connection
from services.acceptor.dispatch import ApiVersionsHandler, Dispatch, SaslHandler
from services.acceptor.fetch.cold_reads import ColdReads
from services.acceptor.handlers.forwarded import may_use_tokens
from services.acceptor.inter_broker import InterBrokerGate
from services.acceptor.sasl_session import FRAME_BYTES_MAX
from tests.unit.base.test_settings import make_box
from tests.unit.services.acceptor.test_sasl_session import USERS

PATIENCE_SECONDS = 20
REAUTHENTICATION_MS = 3_600_000
LISTENER = KafkaListener(
    "CLIENTS",
    "SASL_PLAINTEXT",
    "127.0.0.1",
    0,
    "127.0.0.1",
    0,
    {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256", "connections.max.reauth.ms": REAUTHENTICATION_MS},
)


def request(api_key: ApiKey, version: int, body: bytes = b"") -> bytes:
    tags = b"\x00" if SERVED_APIS[api_key].is_flexible(version) else b""
    return frame(api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\x00\x00\x00\x07\x00\x01c" + tags + body)


API_VERSIONS = request(ApiKey.API_VERSIONS, 0)
HANDSHAKE = request(ApiKey.SASL_HANDSHAKE, 1, SASL_HANDSHAKE_REQUEST.encode(1, SaslHandshakeRequest("PLAIN")))
TOKEN = request(ApiKey.SASL_AUTHENTICATE, 0, SASL_AUTHENTICATE_REQUEST.encode(0, SaslAuthenticateRequest(b"\0alice\0pencil")))


class Door:
    """The connections of one acceptor that serves ApiVersions and SASL; `ask` is a client's request."""

    def __init__(self, context: ServiceContext, arena: Arena, listening: socket.socket) -> None:
        self.context = context
        self.address = listening.getsockname()
        self.connections = ClientConnections(context, arena, 0)
        handlers: dict[int, Any] = {ApiKey.API_VERSIONS: ApiVersionsHandler(self.connections.mark_dirty)}
        self.gate = InterBrokerGate("127.0.0.0/8", context.counters, context.clock, context.log)
        sasl = SaslHandler(self.connections.sasl, self.gate, self.connections.mark_dirty)
        handlers |= dict.fromkeys((ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE), sasl)
        cold = ColdReads({}, context.clock, context.counters, lambda _: None, lambda _: None)
        self.dispatch = Dispatch(None, handlers)  # type: ignore[arg-type]
        self.connections.serve(self.on_request, cold)
        assert self.connections.sasl is not None
        self.connections.sasl.credentials.load()
        self.connections.accept()

    def on_request(self, connection: Connection, *rest: Any) -> bool:
        self.last = connection
        return self.dispatch.on_request(connection, *rest)

    def connect_locally(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.connect(self.context.layout.kafka_socket)
        client.setblocking(False)
        return client

    def connect(self) -> socket.socket:
        client = socket.create_connection(self.address, PATIENCE_SECONDS)
        client.setblocking(False)
        return client

    def ask(self, client: socket.socket, sent: bytes) -> bytes:
        """The response, or nothing if the connection was closed."""
        client.sendall(sent)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            self.context.poller.poll(1)
            self.connections.do_work(self.context.clock.monotonic_ns())
            self.connections.send_dirty()
            try:
                return client.recv(65536)
            except BlockingIOError:
                pass
            except ConnectionResetError:
                return b""
        raise AssertionError("no answer in time")

    def closed(self, reason: str) -> int:
        return self.context.counters.counter(f'acceptor.closed{{reason="{reason}"}}').value


@pytest.fixture
def door() -> Iterator[Door]:
    with scratch_layout() as layout, socket.create_server(("127.0.0.1", 0)) as listening:
        write_credential_image(layout.credential_image_file, CredentialImage(1, b"secret", USERS))
        counters = Counters.create_or_adopt(layout, "acceptor@0", 1)
        arena = Arena.create(layout.shared_memory_name("arena", "test", 1), 1 << 16, 1)
        box, log = make_box(listeners=[LISTENER]), Logger("acceptor@0")
        context = ServiceContext(layout, box, ManualClock(), counters, Poller(), "acceptor@0", "0", 1, SystemdNotifier(counters), log, {"kafka": listening})
        made = Door(context, arena, listening)
        yield made
        made.connections.close()
        made.connections.__dict__.clear()  # its views of the arena
        arena.close()
        counters.close()


def _refuse(*_: object) -> NoReturn:
    raise RuntimeError("can't start new thread")


def test_a_login_that_no_thread_can_be_started_for_is_closed_and_a_later_one_works(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    with door.connect() as first, door.connect() as second, door.connect() as third:
        with monkeypatch.context() as patch:
            patch.setattr(_thread, "start_new_thread", _refuse)
            patch.setattr("threading._start_new_thread", _refuse)
            for client in first, second:
                assert door.ask(client, HANDSHAKE)
                assert door.ask(client, TOKEN) == b""
        assert door.closed("authentication-overload") == 2
        assert door.ask(third, HANDSHAKE) and door.ask(third, TOKEN)
        assert door.ask(third, API_VERSIONS), "it is served"


def test_a_connection_that_authenticates_again_sends_nothing_else_meanwhile(door: Door) -> None:
    """Otherwise a session could be used after its end, until the time for the authentication is over."""
    with door.connect() as client:
        for _ in range(2):
            assert door.ask(client, HANDSHAKE) and door.ask(client, TOKEN)
            assert door.ask(client, API_VERSIONS)
        assert door.ask(client, HANDSHAKE)
        assert door.ask(client, API_VERSIONS) == b""
    assert door.closed("unauthenticated-request") == 1


def test_the_first_request_after_the_end_of_a_session_closes_it_unless_it_authenticates_again(door: Door) -> None:
    clock = cast(ManualClock, door.context.clock)
    with door.connect() as again, door.connect() as late:
        for client in again, late:
            assert door.ask(client, HANDSHAKE) and door.ask(client, TOKEN)
        clock.advance_ms(REAUTHENTICATION_MS)
        assert door.ask(late, API_VERSIONS), "the session ends now"
        clock.advance_ms(1)
        assert door.ask(again, HANDSHAKE) and door.ask(again, TOKEN) and door.ask(again, API_VERSIONS)
        assert door.ask(late, API_VERSIONS) == b""
    assert door.closed("session-expired") == 1


def test_frames_before_the_authentication_are_small(door: Door) -> None:
    with door.connect() as client:
        assert door.ask(client, (FRAME_BYTES_MAX + 1).to_bytes(4, "big")) == b""
    assert FRAME_BYTES_MAX == 8 << 10 and door.closed("frame-too-large") == 1


def test_a_lowered_max_connections_closes_the_longest_idle_connections_and_a_raised_one_admits_more(door: Door) -> None:
    """`max.connections` may be altered while the box runs. The listener has no limit of its own."""
    with door.connect() as first, door.connect() as second, door.connect() as third:
        for client in first, second, third:
            door.context.clock.advance_ms(1000)  # type: ignore[attr-defined]
            assert door.ask(client, HANDSHAKE) and door.ask(client, TOKEN)
        door.connections.set_connections_max(1)
        door.connections.sweep(door.context.clock.monotonic_ns())
        assert len(door.connections) == 1 and door.closed("connection-limit") == 2
        assert door.ask(third, API_VERSIONS)
        with door.connect() as refused:
            assert door.ask(refused, HANDSHAKE) == b""
        door.connections.set_connections_max(2)
        with door.connect() as admitted:
            assert door.ask(admitted, HANDSHAKE)


def test_a_login_with_a_delegation_token_is_marked_and_ends_with_it(door: Door) -> None:
    """Its requests about tokens are refused (`forwarded.may_use_tokens`)."""
    clock, now_ms = cast(ManualClock, door.context.clock), door.context.clock.wall_ms()
    secret = secret_of("id", "key")
    token = DelegationToken("id", Principal("User", "alice"), Principal("User", "alice"), (), now_ms, now_ms + 5_000, now_ms + 5_000)
    write_token_image(door.context.layout.token_image_file, TokenImage(1, {"id": (token, secret)}))
    assert door.connections.sasl is not None
    door.connections.sasl.credentials.load()
    scram = request(ApiKey.SASL_HANDSHAKE, 1, SASL_HANDSHAKE_REQUEST.encode(1, SaslHandshakeRequest("SCRAM-SHA-256")))
    login = ScramClient(ScramMechanism.SHA_256, "id", password_of(secret), "abc", by_token=True)
    with door.connect() as client, door.connect() as by_password:
        assert door.ask(client, scram)
        challenge = answered(door.ask(client, acting(login.first)))
        login.check(answered(door.ask(client, acting(login.respond(challenge.auth_bytes)))).auth_bytes)
        assert door.ask(client, API_VERSIONS)
        assert str(door.last.principal) == "User:alice" and door.last.origin.flags == BY_TOKEN and not may_use_tokens(door.last.origin)
        assert door.ask(by_password, HANDSHAKE) and door.ask(by_password, TOKEN) and door.ask(by_password, API_VERSIONS)
        assert may_use_tokens(door.last.origin) and not may_use_tokens(UNAUTHENTICATED)
        clock.advance_ms(5_001)
        assert door.ask(by_password, API_VERSIONS)
        assert door.ask(client, API_VERSIONS) == b""
    assert door.closed("session-expired") == 1


# ---- the console acts for persons


def acting(token: bytes) -> bytes:
    return request(ApiKey.SASL_AUTHENTICATE, 0, SASL_AUTHENTICATE_REQUEST.encode(0, SaslAuthenticateRequest(token)))


ACTS = request(ApiKey.SASL_HANDSHAKE, 1, SASL_HANDSHAKE_REQUEST.encode(1, SaslHandshakeRequest(ACTING)))
PERSON = ActingFor("alice", "10.0.0.9")


def answered(response: bytes) -> Any:
    return SASL_AUTHENTICATE_RESPONSE.decode(response, 8, len(response), 0)


def refusal(door: Door, client: socket.socket, sent: bytes) -> bytes:
    """The answer and the end of the connection come later."""
    client.sendall(sent)
    deadline = time.monotonic() + PATIENCE_SECONDS
    received = b""
    while time.monotonic() < deadline:
        door.context.poller.poll(1)
        door.context.clock.advance_ms(50)  # type: ignore[attr-defined]
        door.connections.do_work(door.context.clock.monotonic_ns())
        door.connections.send_dirty()
        try:
            got = client.recv(65536)
        except BlockingIOError:
            continue
        received += got
        if not got:
            return received
    raise AssertionError("no answer in time")


def test_a_process_of_the_box_becomes_the_person_it_acts_for_and_has_no_more_rights(door: Door) -> None:
    with door.connect_locally() as client:
        assert door.ask(client, ACTS) and door.last.origin.is_privileged
        assert answered(door.ask(client, acting(PERSON.pack()))).error_code == 0
        connection = door.last
        assert str(connection.principal) == "User:alice" and not connection.origin.flags
        assert (connection.address, connection.way, connection.listening.own_path) == ("10.0.0.9", "console", door.context.layout.kafka_socket)
        assert door.ask(client, API_VERSIONS), "it is served"
        assert door.ask(client, ACTS)[8:10] == ErrorCode.ILLEGAL_SASL_STATE.to_bytes(2, "big"), "it cannot become another one"
        assert str(door.last.principal) == "User:alice"
    door.connections.do_work(door.context.clock.monotonic_ns())


def test_a_password_is_verified_and_its_tag_ends_with_it(door: Door) -> None:
    with door.connect_locally() as first, door.connect_locally() as second, door.connect_locally() as third:
        assert door.ask(first, ACTS) and door.ask(second, ACTS) and door.ask(third, ACTS)
        response = answered(door.ask(first, acting(PERSON._replace(password="pencil").pack())))
        assert (response.error_code, str(door.last.principal)) == (0, "User:alice")
        tag = response.auth_bytes.decode()
        assert len(tag) == 32 and answered(door.ask(second, acting(PERSON._replace(tag=tag).pack()))).error_code == 0
        write_credential_image(door.context.layout.credential_image_file, CredentialImage(2, b"secret", {}))
        assert door.connections.sasl is not None
        door.connections.sasl.credentials.load()
        refused = refusal(door, third, acting(PERSON._replace(tag=tag).pack()))
        assert answered(refused).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, "the user was deleted"


@pytest.mark.parametrize(
    ("viewers", "event", "outcome"),
    [
        ("User:alice", "audit.login", "done"), ("User:*", "audit.login", "done"),
        ("User:vera", "audit.login.failed", "the user has no role in the console (http.role.*)"),
    ],
)  # fmt: skip
def test_a_login_of_a_person_without_a_role_in_the_console_is_audited_as_refused(door: Door, viewers: str, event: str, outcome: str) -> None:
    door.context.box.settings["http.role.viewer"] = viewers
    written: list[dict[str, Any]] = []
    records: Any = SimpleNamespace(offer=lambda value: written.append(orjson.loads(value)))
    view: Any = SimpleNamespace(image=MetadataImage.empty(), broker_id=0)
    assert door.connections.sasl is not None
    door.connections.sasl.audit = AuditTrail(view, door.context.clock, Logger("acceptor@0", descriptor=2), door.context.counters, records)
    with door.connect_locally() as client:
        assert door.ask(client, ACTS)
        assert answered(door.ask(client, acting(PERSON._replace(password="pencil").pack()))).error_code == 0
    assert [(each["event"], each["principal"], each["client"], each["outcome"]) for each in written] == [(event, "User:alice", "10.0.0.9", outcome)]


@pytest.mark.parametrize(
    "token",
    [
        PERSON._replace(password="wrong").pack(),
        PERSON._replace(user="nobody", password="pencil").pack(),
        PERSON._replace(user="local:0").pack(),
        PERSON._replace(user="x" * 256).pack(),
        PERSON._replace(tag="0").pack(),
        b"alice",
        b"alice\0not an address\0\0",
        b"\0127.0.0.1\0\0",
        b"\xff\0127.0.0.1\0\0",
        PERSON.pack() + b"\0",
    ],
)
def test_what_names_no_person_is_refused(door: Door, token: bytes) -> None:
    with door.connect_locally() as client:
        assert door.ask(client, ACTS)
        assert answered(refusal(door, client, acting(token))).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert door.context.counters.counter("acceptor.authentications_failed").value == 1


def test_no_client_of_the_network_and_no_other_local_user_acts_for_others(door: Door) -> None:
    with door.connect() as client:
        assert door.ask(client, HANDSHAKE) and door.ask(client, TOKEN)
        assert refusal(door, client, ACTS)[8:10] == ErrorCode.UNSUPPORTED_SASL_MECHANISM.to_bytes(2, "big")
        assert str(door.last.principal) == "User:alice"
    with door.connect_locally() as client:
        assert door.ask(client, API_VERSIONS)
        door.last.set_origin(RequestOrigin(local_principal(4242), ""))
        assert door.ask(client, ACTS)[8:10] == ErrorCode.ILLEGAL_SASL_STATE.to_bytes(2, "big")


def test_another_box_acts_for_persons_only_with_its_certificate(door: Door) -> None:
    door.gate.refresh({2: BrokerImage(2, "box2.example", 9092)})
    with door.connect_locally() as client:
        assert door.ask(client, API_VERSIONS)
        connection = door.last
        connection.listening.name, connection.listening.is_inter_broker = "BOXES", True
        certificates: list[frozenset[str | bytes] | None] = [None, frozenset({"other.example"}), frozenset({"box2.example"})]
        for names in certificates:
            connection.certificate_names = names
            code = ErrorCode.NONE if names == {"box2.example"} else ErrorCode.ILLEGAL_SASL_STATE
            assert door.ask(client, ACTS)[8:10] == code.to_bytes(2, "big"), names


@pytest.mark.parametrize(
    ("boxes_log_in", "is_box"),
    [(None, None), (("alice", "PLAIN"), True), (("bob", "PLAIN"), False), (("alice", "SCRAM-SHA-512"), False)],
)
def test_a_connection_is_that_of_a_box_by_its_user_and_mechanism_on_the_listener_of_boxes(door: Door, boxes_log_in: Any, is_box: bool | None) -> None:
    (listening,) = [each for each in door.connections.listening if each.name == "CLIENTS"]
    listening.box_login = boxes_log_in
    with door.connect() as client:
        assert door.ask(client, HANDSHAKE) and door.ask(client, TOKEN) and door.ask(client, API_VERSIONS)
        assert door.last.is_box_user is is_box
