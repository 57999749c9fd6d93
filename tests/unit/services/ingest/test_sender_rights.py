"""Principals of listeners and tokens: their records need WRITE on the topic."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cluster.security_image import SecurityImage, write_security_image
from appliance.security.acl import AclBinding, AclOperation, AclPermission, AclResource, PatternType
from tests.unit.services.ingest.stepped_ingest import TOPIC, SteppedIngest

SENDERS = {
    "listener": [
        {"name": "apps", "protocol": "syslog", "transport": "tcp", "port": 0, "principal": "User:app"},
        {"name": "relays", "protocol": "relp", "transport": "tcp", "port": 0, "principal": "User:app"},
        {"name": "web", "protocol": "http", "transport": "tcp", "port": 0, "token": [{"value": "secret", "principal": "User:web"}, "other"]},
    ],
    "route": [{"app": "keyed", "topic": TOPIC, "key": "field.user", "key-required": True}, {"app": "routed", "topic": TOPIC}],
    "dead-letter": {"topic": "dead"},
}
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def publish(box: SteppedIngest, generation: int, *principals: str) -> None:
    """Access control lists in which these may write."""
    bindings = [AclBinding(AclResource.TOPIC, TOPIC, PatternType.LITERAL, each, "*", AclOperation.WRITE, AclPermission.ALLOW) for each in principals]
    write_security_image(box.layout.security_image_file, SecurityImage(generation, frozenset(bindings)))
    if box.ingest is not None:
        box.publish(1)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[SteppedIngest]:
    made = SteppedIngest(tmp_path, partitions=1, senders=SENDERS, authorizer_class_name=AUTHORIZER)
    publish(made, 1)
    made.start()
    yield made
    made.close()


def counted(box: SteppedIngest, listener: str, reason: str = "unauthorized") -> int:
    return box.counter(f'ingest.counted{{listener="{listener}",reason="{reason}"}}')


def post(box: SteppedIngest, token: str) -> bytes:
    """The answer to a line for the topic."""
    sender = box.connect("web")
    head = f"POST /ingest/{TOPIC} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\n"
    sender.sendall(head.encode() + b"hello")
    return answer(box, sender)


def answer(box: SteppedIngest, sender: socket.socket) -> bytes:
    sender.setblocking(False)
    received = bytearray()

    def came() -> bool:
        try:
            received.extend(sender.recv(4096))
        except BlockingIOError:
            pass
        return bool(received)

    box.run_until(came, "an answer")
    return bytes(received)


def test_lines_of_a_principal_without_the_right_are_counted_and_kept_nowhere(box: SteppedIngest) -> None:
    sender = box.connect("apps")
    sender.sendall(b"<13>1 - h plain - - - one\n<13>1 - h routed - - - two\n<13>1 - h keyed - - - three\n")
    box.run_until(lambda: counted(box, "apps") == 3, "three are refused")
    assert box.records() == [] and counted(box, "apps", "no_key") == 0, "not even as a dead letter"
    publish(box, 2, "User:app")
    sender.sendall(b"<13>1 - h plain - - - four\n")
    box.run_until(lambda: len(box.records()) == 1, "it is stored")
    box.run_until(lambda: box.ledger().balances, "every line is accounted for")
    assert counted(box, "apps") == 3


def test_a_relp_sender_is_answered_that_its_message_was_refused(box: SteppedIngest) -> None:
    sender = box.connect("relays")
    offers = b"relp_version=0\ncommands=syslog"
    sender.sendall(b"1 open %d %b\n" % (len(offers), offers))
    assert b"200 OK" in answer(box, sender)
    message = b"<13>1 - h plain - - - one"
    sender.sendall(b"2 syslog %d %b\n" % (len(message), message))
    assert answer(box, sender).startswith(b"2 rsp ") and counted(box, "relays") == 1
    assert box.records() == []


def test_a_token_has_the_rights_of_its_own_principal(box: SteppedIngest) -> None:
    assert b" 403 " in post(box, "secret")
    assert b" 200 " in post(box, "other"), "without a principal no right is needed"
    publish(box, 2, "User:web")
    box.run_until(lambda: b" 200 " in post(box, "secret"), "the lists are loaded")
    assert len(box.records()) == 2
