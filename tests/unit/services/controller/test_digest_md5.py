"""SASL's DIGEST-MD5 as RFC 2831 has it, and servers that lie."""

from __future__ import annotations

import hashlib

import pytest

from services.controller.zookeeper.digest_md5 import DIGEST_URI, DigestMd5, SaslFailed, read_directives

CHALLENGE = b'realm="zk-sasl-md5",nonce="OA6MG9tEQGm2hh",charset=utf-8,algorithm=md5-sess,qop="auth"'


def server_proof(password: str, answer: dict[str, str], method: str) -> str:
    """As the server computes it."""

    def md5(text: bytes) -> bytes:
        return hashlib.md5(text).digest()

    first = md5(f"{answer['username']}:{answer['realm']}:{password}".encode()) + f":{answer['nonce']}:{answer['cnonce']}".encode()
    second = md5(f"{method}:{answer['digest-uri']}".encode()).hex()
    return md5(f"{md5(first).hex()}:{answer['nonce']}:{answer['nc']}:{answer['cnonce']}:{answer['qop']}:{second}".encode()).hex()


def test_client_and_server_prove_to_each_other_that_they_have_the_secret() -> None:
    exchange = DigestMd5("millrace", "secret", "client-nonce")
    answer = read_directives(exchange.respond(CHALLENGE))
    assert answer["response"] == server_proof("secret", answer, "AUTHENTICATE") and answer["digest-uri"] == DIGEST_URI
    exchange.verify(f"rspauth={server_proof('secret', answer, '')}".encode())


def test_the_secret_is_not_on_the_wire() -> None:
    assert b"a-long-secret" not in DigestMd5("millrace", "a-long-secret", "n").respond(CHALLENGE)


@pytest.mark.parametrize("end", [b"", b"rspauth=", b"rspauth=0123456789abcdef0123456789abcdef", b"garbage"])
def test_a_server_without_the_secret_is_found_out(end: bytes) -> None:
    exchange = DigestMd5("millrace", "secret", "n")
    exchange.respond(CHALLENGE)
    with pytest.raises(SaslFailed):
        exchange.verify(end)


def test_an_end_without_a_beginning_proves_nothing() -> None:
    with pytest.raises(SaslFailed):
        DigestMd5("millrace", "secret", "n").verify(b"rspauth=")


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"\xff\xfe",
        b'realm="x",algorithm=md5-sess',
        CHALLENGE.replace(b"md5-sess", b"md5"),
        CHALLENGE.replace(b'"auth"', b'"auth-conf"'),
    ],
)
def test_a_challenge_that_is_none_is_refused(challenge: bytes) -> None:
    with pytest.raises(SaslFailed):
        DigestMd5("millrace", "secret", "n").respond(challenge)
