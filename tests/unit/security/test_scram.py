"""SCRAM: the examples of RFC 5802's successors, both sides against each other, and messages that are refused."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from appliance.security.scram import (
    ScramClient,
    ScramCredential,
    ScramFailed,
    ScramMechanism,
    ScramServer,
    made_up_credential,
    read_client_first,
    read_plain,
    salted_password,
)

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
RFC_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
RFC_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
RFC_CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
RFC_FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
RFC_LAST = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
"""The exchange of RFC 7677, section 3; the password is `pencil`."""


def credential(mechanism: ScramMechanism = SHA_256, password: str = "pencil", salt: bytes = b"0123456789abcdef", iterations: int = 4096) -> ScramCredential:
    return ScramCredential.of_salted_password(mechanism, salt, salted_password(mechanism, password, salt, iterations), iterations)


def test_the_exchange_of_rfc_7677_comes_out_byte_for_byte() -> None:
    client = ScramClient(SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    server = ScramServer(SHA_256, read_client_first(client.first), credential(salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")), RFC_NONCE)
    assert client.first == RFC_FIRST
    assert server.challenge == RFC_CHALLENGE
    assert client.respond(server.challenge) == RFC_FINAL
    assert server.finish(RFC_FINAL) == RFC_LAST
    client.check(RFC_LAST)


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
@pytest.mark.parametrize("user", ["alice", "a=b,c", "naïve"])
def test_both_sides_agree_and_a_wrong_password_is_found(mechanism: ScramMechanism, user: str) -> None:
    stored = credential(mechanism, "sésame")
    for password, is_right in (("sésame", True), ("sesame", False)):
        client = ScramClient(mechanism, user, password, "abc")
        first = read_client_first(client.first)
        assert first.user == user
        server = ScramServer(mechanism, first, stored, "def")
        final = client.respond(server.challenge)
        if is_right:
            client.check(server.finish(final))
        else:
            with pytest.raises(ScramFailed, match="wrong password"):
                server.finish(final)
        assert stored.verifies(mechanism, password) is is_right


def test_a_server_without_the_credential_is_found() -> None:
    client = ScramClient(SHA_256, "user", "pencil", "abc")
    server = ScramServer(SHA_256, read_client_first(client.first), credential(), "def")
    client.respond(server.challenge)
    with pytest.raises(ScramFailed, match="does not have the credential"):
        client.check(b"v=" + base64.b64encode(bytes(32)))


def test_a_credential_is_written_as_kafka_writes_it() -> None:
    text = credential().encode()
    assert text.startswith("salt=MDEyMzQ1Njc4OWFiY2RlZg==,stored_key=") and text.endswith(",iterations=4096")
    assert ScramCredential.decode(text) == credential()
    for damaged in ("", "salt=,stored_key=,server_key=,iterations=1", text.replace("4096", "0"), text + ",x=1", text.replace("salt=M", "salt=!")):
        with pytest.raises(ValueError, match="no SCRAM credential") as refused:
            ScramCredential.decode(damaged)
        assert "stored_key" not in str(refused.value)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"n,,",
        b"n,,n=,r=abc",
        b"n,,n=user",
        b"n,,r=abc,n=user",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,a=root,n=user,r=abc",
        b"n,root,n=user,r=abc",
        b"n,,n=" + b"u" * 256 + b",r=abc",
        b"n,,n=user,r=" + b"a" * 5000,
    ],
)
def test_a_first_message_that_is_none_is_refused(message: bytes) -> None:
    with pytest.raises(ScramFailed):
        read_client_first(message)


def test_the_nonce_of_old_librdkafka_is_taken_and_covered_by_the_proof() -> None:
    """It sends its own nonce twice (before 2.6.1)."""
    server = ScramServer(SHA_256, read_client_first(b"n,,n=user,r=abc"), credential(), "def")
    without_proof = b"c=biws,r=abcabcdef"
    salted = salted_password(SHA_256, "pencil", b"0123456789abcdef", 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(client_key).digest(), b"n=user,r=abc," + server.challenge + b"," + without_proof, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    assert server.finish(without_proof + b",p=" + base64.b64encode(proof)).startswith(b"v=")


def test_the_extension_of_delegation_tokens_is_seen() -> None:
    assert read_client_first(b"n,,n=user,r=abc,tokenauth=true").by_token
    assert not read_client_first(b"n,,n=user,r=abc,x=tokenauth").by_token


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b"r=abcdef", b"r=abcxyz"),
        lambda final: final.partition(b",p=")[0],
        lambda final: final.partition(b",p=")[0] + b",p=AAAA",
        lambda final: final[:-3] + b"!==",
        lambda _final: b"",
    ],
)
def test_a_changed_final_message_is_refused(change: object) -> None:
    client = ScramClient(SHA_256, "user", "pencil", "abc")
    server = ScramServer(SHA_256, read_client_first(client.first), credential(), "def")
    final = client.respond(server.challenge)
    assert callable(change)
    with pytest.raises(ScramFailed):
        server.finish(change(final))


@pytest.mark.parametrize(
    "challenge", [b"r=abcdef,s=MTIz,i=1", b"r=xyzdef,s=MTIz,i=4096", b"r=abc,s=MTIz,i=4096", b"r=abcdef,s=,i=4096", b"r=abcdef,s=MTIz,i=9e9"]
)
def test_a_client_refuses_a_challenge_that_is_weak_or_of_another_exchange(challenge: bytes) -> None:
    with pytest.raises(ScramFailed):
        ScramClient(SHA_256, "user", "pencil", "abc").respond(challenge)


def test_an_unknown_user_gets_the_same_salt_each_time_and_no_password_fits() -> None:
    made = made_up_credential(SHA_512, "nobody", b"secret", 4096)
    assert made == made_up_credential(SHA_512, "nobody", b"secret", 4096)
    assert made.salt != made_up_credential(SHA_512, "other", b"secret", 4096).salt
    assert [len(part) for part in made[:3]] == [16, 64, 64] == [len(part) for part in credential(SHA_512)[:3]]
    assert not made.verifies(SHA_512, "")


def test_plain_has_user_and_password_and_no_other_identity() -> None:
    assert read_plain(b"\0alice\0secret") == read_plain(b"alice\0alice\0secret") == ("alice", "secret")
    for message in (b"", b"alice", b"\0\0secret", b"\0alice\0", b"\0alice\0a\0b", b"root\0alice\0secret", b"\0\xff\0x"):
        with pytest.raises(ScramFailed) as refused:
            read_plain(message)
        assert "secret" not in str(refused.value)
