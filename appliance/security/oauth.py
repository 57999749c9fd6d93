"""OAUTHBEARER (RFC 7628, KIP-255, KIP-768): reads the client's message and verifies its token, a JWT (RFC 7519).

Pure. Tokens are verified by the public keys of one issuer (RFC 7517); they must name that issuer, an expected audience
and an end. Symmetric algorithms, `none`, and RSA keys below 2,048 bits are refused. PyJWT and cryptography take 15 MB;
they are imported by `KeySet.parse`, so that only processes that verify tokens have them. A verification takes 0.1 ms, of
a token of 8 KB 1 ms. Weak: a token cannot be revoked before its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

OAUTHBEARER: Final = "OAUTHBEARER"
INVALID_TOKEN: Final = b'{"status":"invalid_token"}'
"""What a client gets for a token that is refused; it answers with one byte, 0x01 (RFC 7628, 3.2.3)."""
KEYS_BYTES_MAX: Final = 256 << 10
"""A document of keys may have this size."""
KEYS_MAX: Final = 100
USER_CHARACTERS_MAX: Final = 256
RSA_BITS_MIN: Final = 2048
END_MAX: Final = 1 << 40
"""A later end of a token counts as this one, in seconds since 1970."""
_ECDSA: Final = {256: "ES256", 384: "ES384", 521: "ES512"}
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_MESSAGE: Final = re.compile(rb"[ny],(?:a=(?P<authzid>[^,\x01]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e\t\r\n]*\x01)*)\x01\Z")
_BEARER: Final = re.compile(rb"(?i:Bearer) +(?P<token>[-_.A-Za-z0-9~+/]+=*)\Z")


class TokenRefused(Exception):
    """Why a message or a token is refused; never has a part of the token."""


class KeysAbsent(Exception):
    """The key of a token may be published, and is not here yet: the client may try again."""


class BearerMessage(NamedTuple):
    """The client's message: its token, and the user that it wants to be ('' for that of the token)."""

    token: str
    authorization_id: str

    def __repr__(self) -> str:
        return f"BearerMessage(***, {self.authorization_id!r})"


class TokenRules(NamedTuple):
    """What a token must have beside a right signature."""

    issuer: str
    audiences: tuple[str, ...]
    """one of them"""
    subject_claim: str = "sub"
    """the claim that is the user"""
    scope_claim: str = "scope"
    scope: str = ""
    """'': any"""
    skew_seconds: int = 30
    """by which the issuer's clock may differ"""


class VerifiedToken(NamedTuple):
    """`expires`: seconds since 1970."""

    user: str
    expires: int


def read_bearer(message: bytes) -> BearerMessage:
    """Return the token in a client's first message. Raises TokenRefused."""
    match = _MESSAGE.match(message)
    if match is None:
        raise TokenRefused("a message that is not one of OAUTHBEARER")
    pairs = dict(pair.split(b"=", 1) for pair in match["pairs"].split(b"\x01") if pair)
    bearer = _BEARER.match(pairs.get(b"auth", b""))
    if bearer is None:
        raise TokenRefused("a message without a bearer token")
    identity = (match["authzid"] or b"").decode("utf-8", "replace").replace("=2C", ",").replace("=3D", "=")
    return BearerMessage(bearer["token"].decode(), identity)


class VerificationKey(NamedTuple):
    """A public key and the algorithms that it may verify."""

    key: Any
    algorithms: tuple[str, ...]


class KeySet:
    """The public keys of an issuer. `keys`: with their ids, '' for one without; two may have the same (RFC 7517, 4.5)."""

    def __init__(self, keys: Sequence[tuple[str, VerificationKey]]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    @classmethod
    def parse(cls, document: bytes) -> KeySet:
        """Return the usable keys of a JWK set. Raises ValueError if it is none, or has no such key."""
        if len(document) > KEYS_BYTES_MAX:
            raise ValueError(f"the document of keys has more than {KEYS_BYTES_MAX} bytes")
        try:
            listed = json.loads(document)["keys"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError('the document is no JWK set ({"keys": […]})') from None
        if not isinstance(listed, list) or len(listed) > KEYS_MAX:
            raise ValueError(f"the JWK set has no list of at most {KEYS_MAX} keys")
        keys = [(str(each.get("kid", "")), key) for each in listed if isinstance(each, dict) and (key := _verification_key(each)) is not None]
        if not keys:
            raise ValueError(f"the JWK set has no public key for signatures (RSA from {RSA_BITS_MIN} bits, EC or Ed25519)")
        return cls(keys)

    def verify(self, token: str, rules: TokenRules) -> VerifiedToken:
        """Return the user of a token that is right and in its time. Raises TokenRefused, or KeysAbsent for one of another key."""
        import jwt

        header = _header(token)
        named = self._named(header)
        if not named:
            raise KeysAbsent("the token names a key that the issuer does not publish")
        found = next((key for key in named if header.get("alg") in key.algorithms), None)
        if found is None:
            algorithms = ", ".join(algorithm for key in named for algorithm in key.algorithms)
            raise TokenRefused(f"the token is signed by {str(header.get('alg'))[:20]!r}; its key is for {algorithms}")
        try:
            claims = jwt.decode(
                token,
                found.key,
                algorithms=[header["alg"]],
                audience=rules.audiences,
                issuer=rules.issuer,
                leeway=rules.skew_seconds,
                options={"require": ["exp", "iss", "aud"], "verify_sub": False},
            )
        except jwt.InvalidTokenError as error:
            raise TokenRefused(_reason(error)) from None
        except Exception as error:  # what the JSON of a hostile client does in a library must not end the thread
            raise TokenRefused(f"the token cannot be read ({type(error).__name__})") from None
        user = claims.get(rules.subject_claim)
        if not isinstance(user, str) or not 0 < len(user) <= USER_CHARACTERS_MAX or not user.isprintable():
            raise TokenRefused(f"the token has no user of at most {USER_CHARACTERS_MAX} printable characters in its claim {rules.subject_claim!r}")
        if rules.scope and rules.scope not in _scopes(claims.get(rules.scope_claim)):
            raise TokenRefused(f"the token does not have the scope {rules.scope!r}")
        return VerifiedToken(user, min(int(claims["exp"]), END_MAX))

    def _named(self, header: Mapping[str, Any]) -> list[VerificationKey]:
        """Return the keys that a token names. One without a key id is verified by the only key that there is."""
        key_id = header.get("kid")
        if key_id is None:
            return [key for _, key in self._keys] if len(self._keys) == 1 else []
        return [key for name, key in self._keys if name == key_id]


def _header(token: str) -> dict[str, Any]:
    import jwt

    try:
        header: dict[str, Any] = jwt.get_unverified_header(token)
        return header
    except (jwt.InvalidTokenError, ValueError, RecursionError):
        raise TokenRefused("the token is no JWT") from None


def _verification_key(document: dict[str, Any]) -> VerificationKey | None:
    """Return None for a key that is not used: symmetric, short, for encryption, of an unknown kind."""
    import jwt
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    public = {name: value for name, value in document.items() if name in ("kty", "n", "e", "crv", "x", "y")}
    if document.get("use", "sig") != "sig" or public.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    try:
        key = jwt.PyJWK(public).key
    except Exception:  # any of them: the document comes from outside
        return None
    algorithms: Collection[str] = ()
    if isinstance(key, RSAPublicKey) and key.key_size >= RSA_BITS_MIN:
        algorithms = _RSA
    elif isinstance(key, EllipticCurvePublicKey) and key.curve.name.startswith("secp") and key.curve.name.endswith("r1"):
        algorithms = [_ECDSA[key.key_size]] if key.key_size in _ECDSA else ()
    elif isinstance(key, Ed25519PublicKey):
        algorithms = ("EdDSA",)
    if "alg" in document:
        algorithms = [each for each in algorithms if each == document["alg"]]
    return VerificationKey(key, tuple(algorithms)) if algorithms else None


def _scopes(claim: object) -> Collection[str]:
    if isinstance(claim, str):
        return claim.split()
    return [each for each in claim if isinstance(each, str)] if isinstance(claim, list) else ()


def _reason(error: Exception) -> str:
    """PyJWT's texts may have a claim of the token; its classes say enough."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__.removesuffix("Error")).lower()
    return f"the token is refused: {words}"
