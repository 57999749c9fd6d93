"""Fuzzed SASL: frames of connections that have not authenticated, SCRAM and PLAIN messages, credentials of users.

What a client sends is answered, refused, or ends its connection (`ProtocolViolation`); it never authenticates without a proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import orjson

from appliance.base.errors import ProtocolViolation
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger, Severity
from appliance.cluster.credential_image import CredentialFollower, CredentialImage
from appliance.cluster.security_image import SECURITY_HEADER, SecurityImageUnreadable
from appliance.cluster.token_image import TokenImage, decode_token, encode_token, token_path
from appliance.cluster.user_znodes import sanitized, scram_texts, user_of_entity, user_of_node
from appliance.cluster.znodes import DocumentUnreadable
from appliance.records.crc32c import crc32c
from appliance.security.delegation_tokens import DelegationToken
from appliance.security.oauth import KeySet, TokenRefused, TokenRules, read_bearer
from appliance.security.principals import Principal
from appliance.security.scram import ScramClient, ScramCredential, ScramFailed, ScramMechanism, ScramServer, read_client_first, read_plain
from services.acceptor.sasl_session import CheckedLogin, SaslSession
from tests.fuzz.target import Target, Targets

_CREDENTIAL = ScramCredential(b"0123456789abcdef", bytes(32), bytes(32), 4096)
_NOWHERE = BoxLayout(str(Path("/nonexistent")))
_FOLLOWER = CredentialFollower(_NOWHERE, Logger("fuzz", Severity.CRITICAL), bytes)
_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
_CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
_FRAMES = (
    b"\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff",
    b"\x00\x11\x00\x01\x00\x00\x00\x02\xff\xff\x00\x0dSCRAM-SHA-256",
    b"\x00\x11\x00\x00\x00\x00\x00\x02\xff\xff\x00\x05PLAIN",
    b"\x00\x24\x00\x00\x00\x00\x00\x03\xff\xff\x00\x00\x00\x20" + _CLIENT_FIRST,
    b"\x00\x24\x00\x02\x00\x00\x00\x03\xff\xff\x00\x21" + _CLIENT_FIRST + b"\x00",
    b"\0user\0password",
    b"\x00\x24\x00\x02\x00\x00\x00\x03\xff\xff\x00\x30" + _CLIENT_FIRST + b",tokenauth=true\x00",
)


_N = (
    "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNM"
    "sD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmt"
    "dVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ"
)
_KEY_DOCUMENT = orjson.dumps({"keys": [{"kty": "RSA", "n": _N, "e": "AQAB"}]})
_KEYS = KeySet.parse(_KEY_DOCUMENT)
_TOKEN = b"eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.AAAA"


def fuzz_sasl_frames(data: bytes) -> None:
    """A conversation: each frame has one byte of length before it."""
    session = SaslSession(_MECHANISMS, _FOLLOWER, lambda: "nonce", 0)
    position = 0
    with suppress(ProtocolViolation):
        while position < len(data):
            end = min(position + 1 + data[position], len(data))
            frame = data[position + 1 : end]
            answer = session.on_frame(memoryview(frame), 0, len(frame))
            assert not answer.is_done, "no password is known"
            if answer.failure is not None:
                return
            if answer.check is not None:
                answer = session.on_checked(CheckedLogin("refused"))
                assert answer.failure
                return
            position = end


def fuzz_scram_messages(data: bytes) -> None:
    """A first message that is read comes back by an honest client's escapes; no final message is proof without the password."""
    with suppress(ScramFailed):
        first = read_client_first(data)
        ScramServer(ScramMechanism.SHA_256, first, _CREDENTIAL, "nonce")
        assert read_client_first(ScramClient(ScramMechanism.SHA_256, first.user, "x", first.nonce).first).user == first.user
    with suppress(ScramFailed):
        ScramServer(ScramMechanism.SHA_256, read_client_first(_CLIENT_FIRST), _CREDENTIAL, "nonce").finish(data)
        raise AssertionError("a proof without the password")
    with suppress(ScramFailed):
        user, password = read_plain(data)
        assert user and password and "\0" not in user + password


def fuzz_scram_server(data: bytes) -> None:
    """What a hostile server sends to our client."""
    client = ScramClient(ScramMechanism.SHA_512, "user", "x", "rOprNGfwEbeRWgbNEkqO")
    with suppress(ScramFailed):
        client.check(data)
        raise AssertionError("a signature without the credential")
    if b"i=4096" in data or b"i=" not in data:
        with suppress(ScramFailed):
            client.respond(data)


def fuzz_bearer_tokens(data: bytes) -> None:
    """Messages of OAUTHBEARER, tokens and documents of keys. No token is right without the private key."""
    with suppress(TokenRefused):
        message = read_bearer(data)
        assert message.token.encode() in data
    with suppress(ValueError):
        KeySet.parse(data)
    with suppress(TokenRefused):
        _KEYS.verify(data.decode("latin-1"), TokenRules("https://issuer.example.com", ("millrace",)))
        raise AssertionError("a token without a signature")


def fuzz_user_documents(data: bytes) -> None:
    """Credentials in ZooKeeper, names of nodes, and the credential image with its checksum made right."""
    text = data.decode("utf-8", "replace")
    with suppress(ValueError):
        assert ScramCredential.decode(ScramCredential.decode(text).encode()) == ScramCredential.decode(text)
    scram_texts({"SCRAM-SHA-256": text})
    user_of_entity(text)
    if text:
        assert user_of_node(sanitized(text)) == text
    path = token_path("id")
    with suppress(DocumentUnreadable):
        assert decode_token(path, encode_token(decode_token(path, data))) == decode_token(path, data)
    payload = data[SECURITY_HEADER.size :]
    if len(data) >= SECURITY_HEADER.size:
        magic, version, zero, generation, _, _ = SECURITY_HEADER.unpack_from(data)
        data = SECURITY_HEADER.pack(magic, version, zero, generation, len(payload), crc32c(payload, crc32c(generation.to_bytes(8, "big")))) + payload
    with suppress(SecurityImageUnreadable):
        image = CredentialImage.decode(data)
        assert CredentialImage.decode(image.encode()) == image
    with suppress(SecurityImageUnreadable):
        tokens = TokenImage.decode(data)
        assert TokenImage.decode(tokens.encode()) == tokens


def _conversations() -> Iterator[bytes]:
    for frames in ((0, 1, 3), (0, 1, 4), (2, 5), (1, 3, 3), (1, 6)):
        yield b"".join(bytes((len(_FRAMES[index]),)) + _FRAMES[index] for index in frames)


def _messages() -> Iterator[bytes]:
    yield _CLIENT_FIRST
    yield b"c=biws,r=rOprNGfwEbeRWgbNEkqOnonce,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    yield b"\0user\0password"


def _challenges() -> Iterator[bytes]:
    yield b"r=rOprNGfwEbeRWgbNEkqOnonce,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    yield b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def _bearer_messages() -> Iterator[bytes]:
    """Of RFC 7628 (4.1); the token and the key are those of RFC 7515 (A.2)."""
    yield b"n,a=user@example.com,\x01host=server.example.com\x01port=143\x01auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01\x01"
    yield _TOKEN
    yield _KEY_DOCUMENT


def _documents() -> Iterator[bytes]:
    yield _CREDENTIAL.encode().encode()
    yield CredentialImage(3, b"secret", {"alice": {"SCRAM-SHA-256": _CREDENTIAL.encode()}}).encode()
    alice = Principal("User", "alice")
    token = DelegationToken("id", alice, alice, (alice,), 1, 2, 3)
    yield encode_token(token)
    yield TokenImage(3, {"id": (token, b"secret")}).encode()


SASL_TARGETS: Targets = {
    "sasl_frames": Target(fuzz_sasl_frames, _conversations, 256),
    "scram_messages": Target(fuzz_scram_messages, _messages, 256),
    "scram_server": Target(fuzz_scram_server, _challenges, 128),
    "bearer_tokens": Target(fuzz_bearer_tokens, _bearer_messages, 512),
    "user_documents": Target(fuzz_user_documents, _documents, 512),
}
