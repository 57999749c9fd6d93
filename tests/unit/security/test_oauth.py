"""Bearer tokens (`appliance/security/oauth.py`), signed by openssl."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path

import pytest

from appliance.security.oauth import END_MAX, KeysAbsent, KeySet, TokenRefused, TokenRules, read_bearer
from lab.token_issuer import AUDIENCE, ISSUER, TokenIssuer, in_base64, key_set

RULES = TokenRules(ISSUER, ("other", AUDIENCE))


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> TokenIssuer:
    return TokenIssuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def keys(issuer: TokenIssuer) -> KeySet:
    return KeySet.parse(key_set(issuer.public_key()))


def refused(keys: KeySet, token: str, rules: TokenRules = RULES) -> str:
    with pytest.raises(TokenRefused) as error:
        keys.verify(token, rules)
    assert not token or token not in str(error.value)
    return str(error.value)


def test_a_token_in_its_time_for_our_audience_names_its_user_and_its_end(issuer: TokenIssuer, keys: KeySet) -> None:
    exp = 4_000_000_000
    assert keys.verify(issuer.token(exp=exp), RULES) == ("alice", exp)
    assert keys.verify(issuer.token(exp=10**400), RULES).expires == END_MAX
    assert keys.verify(issuer.token(aud=["x", AUDIENCE], seconds=-10), RULES).user == "alice", "the clocks may differ by 30 s"
    assert keys.verify(issuer.token(client="bob"), RULES._replace(subject_claim="client")).user == "bob"
    for scope in ("read write", ["read", "write"]):
        assert keys.verify(issuer.token(scp=scope), RULES._replace(scope_claim="scp", scope="write")).user == "alice"
    assert keys.verify(issuer.token(header={"kid": None}), RULES).user == "alice", "there is one key only"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"iss": "https://issuer.example.com/"}, "invalid issuer"),
        ({"iss": None}, "missing required claim"),
        ({"aud": "others"}, "invalid audience"),
        ({"aud": None}, "missing required claim"),
        ({"aud": {"a": 1}}, "invalid"),
        ({"seconds": -40}, "expired signature"),
        ({"exp": None}, "missing required claim"),
        ({"exp": "soon"}, "decode"),
        ({"exp": 1e400}, "decode"),
        ({"nbf": 4_000_000_000}, "immature signature"),
        ({"user": ""}, "no user"),
        ({"sub": None}, "no user"),
        ({"sub": ["alice"]}, "no user"),
        ({"user": "x" * 257}, "no user"),
        ({"user": "\ud800"}, "no user"),  # it has no bytes
        ({"user": "a\nb"}, "no user"),
        ({"header": {"alg": "none"}}, "signed by 'none'"),
        ({"header": {"alg": "HS256"}}, "signed by 'HS256'"),
        ({"header": {"alg": "RS512"}}, "invalid signature"),
        ({"header": {"alg": None}}, "signed by 'None'"),
        ({"header": {"crit": ["x"], "x": 1}}, ""),
    ],
)
def test_a_token_that_lacks_something_is_refused(issuer: TokenIssuer, keys: KeySet, claims: dict[str, object], reason: str) -> None:
    assert reason in refused(keys, issuer.token(**claims))  # type: ignore[arg-type]


def test_a_token_of_a_key_that_is_not_here_is_not_refused_for_good(issuer: TokenIssuer, keys: KeySet) -> None:
    with pytest.raises(KeysAbsent):
        keys.verify(issuer.token(header={"kid": "second"}), RULES)


def test_of_two_keys_with_one_id_the_one_that_fits_is_used(issuer: TokenIssuer) -> None:
    """RFC 7517, 4.5: keys of different kinds may have the same id."""
    curve = {"kty": "OKP", "kid": "first", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
    for order in (1, -1):
        two = KeySet.parse(key_set(*[curve, issuer.public_key()][::order]))
        assert len(two) == 2 and two.verify(issuer.token(), RULES).user == "alice"


def test_a_scope_that_is_wanted_must_be_there(issuer: TokenIssuer, keys: KeySet) -> None:
    rules = RULES._replace(scope="write")
    for scope in ("read", "writes", None, {"write": 1}, [["write"]]):
        assert "scope" in refused(keys, issuer.token(scope=scope), rules)


def test_a_changed_token_is_refused(issuer: TokenIssuer, keys: KeySet) -> None:
    header, claims, signature = issuer.token().split(".")
    other = issuer.token("mallory").split(".")
    for token in (f"{header}.{other[1]}.{signature}", f"{header}.{claims}.{other[2]}", f"{header}.{claims}.", f"{header}.{claims}", "", "a.b.c"):
        refused(keys, token)


def test_a_public_key_is_no_secret_for_hmac(issuer: TokenIssuer, keys: KeySet) -> None:
    """The classic confusion: the attacker signs by HMAC with the public key, which is no secret."""
    public = json.dumps(issuer.public_key()).encode()
    signed = ".".join(in_base64(json.dumps(part).encode()) for part in ({"alg": "HS256", "kid": "first"}, {"sub": "root", "iss": ISSUER, "aud": AUDIENCE}))
    assert "HS256" in refused(keys, f"{signed}.{in_base64(hmac.digest(public, signed.encode(), hashlib.sha256))}")


def test_only_public_keys_for_signatures_are_used(issuer: TokenIssuer, tmp_path: Path) -> None:
    short = TokenIssuer(tmp_path, "short", 1024)
    useless: list[dict[str, str]] = [
        short.public_key(),
        issuer.public_key(use="enc"),
        issuer.public_key(alg="RSA-OAEP"),
        {"kty": "oct", "kid": "secret", "k": in_base64(b"x" * 32)},
        {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"},
        {"kty": "EC", "kid": "broken", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "EC", "kid": "secp256k1", "crv": "secp256k1", "x": "AA", "y": "AA"},
    ]
    for key in useless:
        with pytest.raises(ValueError, match="no public key"):
            KeySet.parse(key_set(key))
    assert len(KeySet.parse(key_set(*useless, issuer.public_key()))) == 1
    only = KeySet.parse(key_set(issuer.public_key(alg="RS512")))
    assert "its key is for RS512" in refused(only, issuer.token())


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b'{"keys": {}}', b'{"keys": []}', b'{"keys": [1]}', b"[" * 100_000, b" " * 300_000])
def test_a_document_without_keys_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError, match=r"document|JWK"):
        KeySet.parse(document)


def test_a_client_message_is_read_as_the_rfc_says() -> None:
    message = read_bearer(b"n,a=user@example.com,\x01host=server.example.com\x01port=143\x01auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01\x01")
    assert message == ("vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==", "user@example.com"), "RFC 7628, 4.1"
    assert read_bearer(b"n,,\x01auth=bearer a.b.c\x01\x01") == ("a.b.c", "")
    assert "a.b.c" not in repr(read_bearer(b"n,,\x01auth=Bearer a.b.c\x01\x01"))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"\x01",
        b"p=tls-unique,,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"n,,\x01auth=Basic a\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01host=x\x01\x01",
        b"n,,\x01auth=Bearer a\x01\x01\x01",
        b"n,a=x\x01y,\x01auth=Bearer a\x01\x01",
    ],
)
def test_another_message_is_refused(message: bytes) -> None:
    with pytest.raises(TokenRefused):
        read_bearer(message)
