"""Delegation tokens in ZooKeeper, as Kafka 3.9 keeps them, and the image that acceptors read them from.

A znode `/delegation_token/tokens/ID` has a token without its secret; a change leaves a sequential node with the id.
The image is a file beside the security image (mode 0600, a rename on tmpfs), written by the controller alone, and
has the secrets: with one of them a client logs in as the owner. Without `delegation.token.secret.key.file` there is
none. Weak: it is read whole after each change (20 ms for 10,000 tokens).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_plus

import orjson

from appliance.base.logging import Logger
from appliance.cluster.security_image import SecurityImageUnreadable, pack_image, read_generation, unpack_image, write_private
from appliance.cluster.user_znodes import sanitized
from appliance.cluster.znodes import DocumentUnreadable
from appliance.security.delegation_tokens import DelegationToken, password_of
from appliance.security.principals import USER_TYPE, Principal
from appliance.security.scram import ITERATIONS_MIN, SALT_BYTES, ScramCredential, ScramMechanism, salted_password

TOKENS: Final = "/delegation_token/tokens"
TOKEN_CHANGES: Final = "/delegation_token/token_changes"  # noqa: S105
TOKEN_CHANGE_PREFIX: Final = "token_change_"  # noqa: S105
TOKEN_ROOTS: Final = (TOKENS, TOKEN_CHANGES)
TOKEN_MAGIC: Final = b"MRTI"
_VERSION: Final = 3
_PRINCIPAL_MAX: Final = 8_000


def token_path(token_id: str) -> str:
    return f"{TOKENS}/{token_id}"


def encode_token(token: DelegationToken) -> bytes:
    """Return the content of its znode."""
    return orjson.dumps(_document(token))


def _document(token: DelegationToken) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "owner": sanitized(str(token.owner)),
        "tokenRequester": sanitized(str(token.requester)),
        "renewers": [sanitized(str(each)) for each in token.renewers],
        "issueTimestamp": token.issued_ms,
        "maxTimestamp": token.max_ms,
        "expiryTimestamp": token.expires_ms,
        "tokenId": token.token_id,
    }


def decode_token(path: str, data: bytes) -> DelegationToken:
    """Inverse of `encode_token`; versions 1 and 2 have no requester. Raises DocumentUnreadable."""
    try:
        token = _token(orjson.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DocumentUnreadable(f"znode {path} holds no delegation token") from None
    if token_path(token.token_id) != path:
        raise DocumentUnreadable(f"znode {path} holds the delegation token {token.token_id!r}")
    return token


def _token(document: Mapping[str, Any]) -> DelegationToken:
    version = int(document["version"])
    if not 0 < version <= _VERSION:
        raise ValueError(f"version {version}")
    owner = _principal(document["owner"])
    requester = _principal(document["tokenRequester"]) if version >= _VERSION else owner
    times = [document[name] for name in ("issueTimestamp", "expiryTimestamp", "maxTimestamp")]
    if any(type(time_ms) is not int or not 0 <= time_ms < 1 << 63 for time_ms in times):
        raise ValueError("a time that no clock shows")
    return DelegationToken(str(document["tokenId"]), owner, requester, tuple(map(_principal, document["renewers"])), *times)


def _principal(text: str) -> Principal:
    if len(text) > _PRINCIPAL_MAX:
        raise ValueError("a principal that no response can have")
    return Principal.from_text(unquote_plus(text))


class TokenImage(NamedTuple):
    """All tokens with their secrets, by id. Generation 0: none was loaded yet."""

    generation: int = 0
    tokens: Mapping[str, tuple[DelegationToken, bytes]] = MappingProxyType({})

    def encode(self) -> bytes:
        rows = [{**_document(token), "secret": secret.hex()} for token, secret in self.tokens.values()]
        return pack_image(TOKEN_MAGIC, self.generation, orjson.dumps(rows))

    @classmethod
    def decode(cls, encoded: bytes) -> TokenImage:
        """Return the image in `encoded`. Raises SecurityImageUnreadable."""
        generation, payload = unpack_image(TOKEN_MAGIC, encoded)
        try:
            found = [(_token(row), bytes.fromhex(row["secret"])) for row in orjson.loads(payload)]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise SecurityImageUnreadable(f"the token image of generation {generation} holds no tokens") from None
        return cls(generation, {token.token_id: (token, secret) for token, secret in found})

    def __repr__(self) -> str:
        return f"TokenImage({self.generation}, {len(self.tokens)} tokens)"


def write_token_image(path: str, image: TokenImage) -> None:
    """Replace the file, which only processes of the box can read."""
    write_private(path, image.encode())


def read_token_image(path: str) -> TokenImage | None:
    """Return the image, or None if there is none. Raises SecurityImageUnreadable."""
    try:
        return TokenImage.decode(Path(path).read_bytes())
    except FileNotFoundError:
        return None


class TokenLogin(NamedTuple):
    """What a login with a token gives: its owner, and for how long. `secret`: of the token."""

    owner: str
    lifetime_ms: int
    secret: bytes

    def __repr__(self) -> str:
        return f"TokenLogin({self.owner!r}, {self.lifetime_ms}, ***)"


class TokenFollower:
    """Keeps the tokens of one acceptor at the newest image. An unreadable one leaves the last one in use.

    Credentials are derived at the first login with a token (2 to 5 ms, by a thread), and kept as long as the token.
    """

    def __init__(self, path: str, log: Logger, wall_ms: Callable[[], int]) -> None:
        self._path = path
        self._log = log
        self._wall_ms = wall_ms
        self._image = TokenImage()
        self._by_secret: dict[bytes, DelegationToken] = {}
        self._credentials: dict[tuple[bytes, ScramMechanism], ScramCredential] = {}

    def load(self) -> None:
        """Read the image: only its header, if it is the one in use."""
        generation = read_generation(self._path, TOKEN_MAGIC)
        if generation == self._image.generation:
            return
        try:
            image = read_token_image(self._path) or TokenImage()
        except SecurityImageUnreadable as problem:
            self._log.error(f"could not read the delegation tokens: {problem}; continuing with the last ones")
            return
        self._image = image
        self._by_secret = {secret: token for token, secret in image.tokens.values()}
        for key in list(self._credentials):  # at once: a thread may add one meanwhile
            if key[0] not in self._by_secret:
                del self._credentials[key]

    def login(self, token_id: str) -> TokenLogin | None:
        """Return what a login with a token gives; None if there is no such token that is valid now."""
        token, secret = self._image.tokens.get(token_id, (None, b""))
        now_ms = self._wall_ms()
        if token is None or token.is_expired(now_ms) or token.owner.kind != USER_TYPE:
            return None
        return TokenLogin(token.owner.name, max(1, min(token.expires_ms, token.max_ms) - now_ms), secret)

    def with_secret(self, secret: bytes) -> DelegationToken | None:
        return self._by_secret.get(secret)

    def credential(self, mechanism: ScramMechanism, secret: bytes) -> ScramCredential | None:
        """Return what verifies the secret of a token, if it was derived."""
        return self._credentials.get((secret, mechanism))

    def derive(self, mechanism: ScramMechanism, secret: bytes) -> None:
        """Keep the credential of a token. Called by a thread."""
        salt = os.urandom(SALT_BYTES)
        salted = salted_password(mechanism, password_of(secret), salt, ITERATIONS_MIN)
        self._credentials[secret, mechanism] = ScramCredential.of_salted_password(mechanism, salt, salted, ITERATIONS_MIN)
