"""SCRAM (RFC 5802, RFC 7677) as Kafka uses it: credentials, both sides of an exchange, and the check of a
password.

Pure: bytes in, bytes out; nonces and salts are arguments. No channel binding. The server's side costs two
HMACs and a hash, about 10 µs; deriving a credential from a password costs `iterations` HMACs (1.6 to 13 ms).
A server has no password, only what verifies one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from enum import IntEnum
from typing import Final, NamedTuple

from appliance.base.errors import MillraceError

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
SALT_BYTES: Final = 16
NONCE_BYTES: Final = 24
MESSAGE_BYTES_MAX: Final = 4096
"""No message of an exchange is longer: a name has at most `NAME_MAX` characters."""
NAME_MAX: Final = 255
_ITERATIONS_READ_MAX: Final = 10_000_000
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+\Z")


class ScramMechanism(IntEnum):
    """Numbers of AlterUserScramCredentials."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def label(self) -> str:
        """The name of the mechanism in SASL."""
        return f"SCRAM-{self.name.replace('_', '-')}"

    @property
    def digest(self) -> str:
        return self.name.replace("_", "").lower()

    @property
    def key_bytes(self) -> int:
        return 32 if self is ScramMechanism.SHA_256 else 64


SCRAM_MECHANISMS: Final = {mechanism.label: mechanism for mechanism in ScramMechanism}


class ScramFailed(MillraceError):
    """A message is malformed, or the proof is wrong. `is_malformed`: no client that follows the RFC sends this."""

    def __init__(self, message: str, is_malformed: bool = False) -> None:
        super().__init__(message)
        self.is_malformed = is_malformed


class ScramCredential(NamedTuple):
    """What verifies a password with one mechanism, as `/config/users/NAME` has it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def encode(self) -> str:
        """Return Kafka's text of a credential."""
        salt, stored_key, server_key = (base64.b64encode(part).decode() for part in self[:3])
        return f"salt={salt},stored_key={stored_key},server_key={server_key},iterations={self.iterations}"

    @classmethod
    def decode(cls, text: str) -> ScramCredential:
        """Inverse of `encode`. Raises ValueError without the text, which is a secret."""
        parts = dict(part.partition("=")[::2] for part in text.split(","))
        try:
            salt, stored_key, server_key = (base64.b64decode(parts[name], validate=True) for name in ("salt", "stored_key", "server_key"))
            iterations = int(parts["iterations"])
        except (KeyError, ValueError):
            raise ValueError("this is no SCRAM credential") from None
        if not salt or not stored_key or not server_key or not 0 < iterations <= _ITERATIONS_READ_MAX or len(parts) != 4:
            raise ValueError("this is no SCRAM credential")
        return cls(salt, stored_key, server_key, iterations)

    @classmethod
    def of_salted_password(cls, mechanism: ScramMechanism, salt: bytes, salted_password: bytes, iterations: int) -> ScramCredential:
        digest = mechanism.digest
        client_key = hmac.digest(salted_password, b"Client Key", digest)
        return cls(salt, hashlib.new(digest, client_key).digest(), hmac.digest(salted_password, b"Server Key", digest), iterations)

    def verifies(self, mechanism: ScramMechanism, password: str) -> bool:
        """Return whether the password is this one; takes `iterations` HMACs."""
        salted = salted_password(mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(self.of_salted_password(mechanism, self.salt, salted, self.iterations).stored_key, self.stored_key)


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Derive the salted password (RFC 5802, Hi). As Kafka, it does not normalize the password."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def made_up_credential(mechanism: ScramMechanism, user: str, secret: bytes, iterations: int) -> ScramCredential:
    """Return what an unknown user is given: the same at each attempt, so that it looks like a known one, and no
    password fits.
    """
    made = hmac.digest(secret, f"{mechanism.label} {user}".encode(), "sha512")
    key = hashlib.shake_256(made + b"key").digest(2 * mechanism.key_bytes)
    return ScramCredential(made[:SALT_BYTES], key[: mechanism.key_bytes], key[mechanism.key_bytes :], iterations)


# --- messages


class ClientFirst(NamedTuple):
    """`gs2_header` and `bare` are parts of the message as it came."""

    user: str
    nonce: str
    gs2_header: str
    bare: str
    by_token: bool


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramFailed(f"a message of {len(message)} bytes", True)
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramFailed("a message that is not UTF-8", True) from None


def _attributes(text: str, wanted: str) -> list[str]:
    """Return the values of the attributes that a message begins with, in the order of RFC 5802."""
    parts = text.split(",")
    if len(parts) < len(wanted) or any(not part.startswith(f"{letter}=") for letter, part in zip(wanted, parts, strict=False)):
        raise ScramFailed(f"a message without the attributes {', '.join(wanted)}", True)
    return [part[2:] for part in parts[: len(wanted)]]


def _octets(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramFailed("a value that is not Base64", True) from None


def escape_name(user: str) -> str:
    return user.replace("=", "=3D").replace(",", "=2C")


def _unescape_name(text: str) -> str:
    if re.search(r"=(?!2C|3D)", text):
        raise ScramFailed("a user name with a wrong escape", True)
    return text.replace("=2C", ",").replace("=3D", "=")


def read_client_first(message: bytes) -> ClientFirst:
    """Read the first message of a client. Raises ScramFailed."""
    text = _text(message)
    binding, comma, rest = text.partition(",")
    authorization, second, bare = rest.partition(",")
    if binding not in ("n", "y") or not comma or not second:
        raise ScramFailed("a first message that asks for channel binding, or is none", True)
    name, nonce = _attributes(bare, "nr")
    user = _unescape_name(name)
    if not user or len(user) > NAME_MAX:
        raise ScramFailed(f"a user name of {len(user)} characters", True)
    if not _NONCE.match(nonce):
        raise ScramFailed("a nonce that RFC 5802 does not allow", True)
    if authorization and (not authorization.startswith("a=") or _unescape_name(authorization[2:]) != user):
        raise ScramFailed("another authorization identity than the user", not authorization.startswith("a="))
    by_token = "tokenauth=true" in bare.split(",")[2:]
    return ClientFirst(user, nonce, f"{binding},{authorization},", bare, by_token)


class ScramServer:
    """The server's side of one exchange: `challenge` at its creation, then `finish`."""

    def __init__(self, mechanism: ScramMechanism, first: ClientFirst, credential: ScramCredential, nonce: str) -> None:
        self._mechanism = mechanism
        self._first = first
        self._credential = credential
        self._nonce = first.nonce + nonce
        self.challenge = f"r={self._nonce},s={base64.b64encode(credential.salt).decode()},i={credential.iterations}".encode()

    def finish(self, message: bytes) -> bytes:
        """Return the last message of the server. Raises ScramFailed for a wrong proof."""
        text = _text(message)
        without_proof, found, proof_text = text.rpartition(",p=")
        if not found:
            raise ScramFailed("a final message without a proof", True)
        binding, nonce = _attributes(without_proof, "cr")
        if _octets(binding) != self._first.gs2_header.encode():
            raise ScramFailed("another channel binding than in the first message", True)
        # librdkafka before 2.6.1 sends its own nonce once more before the whole one, which Kafka takes, too. The proof covers what was sent.
        if not nonce.endswith(self._nonce):
            raise ScramFailed("another nonce than the server's", True)
        credential, digest = self._credential, self._mechanism.digest
        signed = b",".join((self._first.bare.encode(), self.challenge, without_proof.encode()))
        signature = hmac.digest(credential.stored_key, signed, digest)
        client_key = _xor(_octets(proof_text), signature)
        if not hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key):
            raise ScramFailed("wrong password")
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, signed, digest))


class ScramClient:
    """The client's side of one exchange: `first`, then `respond`, then `check`."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, nonce: str, by_token: bool = False) -> None:
        """`by_token`: `user` is the id of a delegation token, and `password` its secret in Base64."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={escape_name(user)},r={nonce}{',tokenauth=true' if by_token else ''}"
        self._server_signature = b""
        self.first = f"n,,{self._bare}".encode()

    def respond(self, challenge: bytes) -> bytes:
        """Return the final message. Raises ScramFailed if the server's message is no challenge, or a weak one."""
        nonce, salt_text, count = _attributes(_text(challenge), "rsi")
        salt = _octets(salt_text)
        if not nonce.startswith(self._nonce) or len(nonce) <= len(self._nonce) or not salt:
            raise ScramFailed("a challenge that belongs to another exchange", True)
        if not count.isascii() or not count.isdecimal() or not ITERATIONS_MIN <= int(count) <= _ITERATIONS_READ_MAX:
            raise ScramFailed(f"a challenge with {count[:20]!r} iterations", True)
        digest = self._mechanism.digest
        credential = salted_password(self._mechanism, self._password, salt, int(count))
        client_key = hmac.digest(credential, b"Client Key", digest)
        without_proof = f"c={base64.b64encode(b'n,,').decode()},r={nonce}".encode()
        signed = b",".join((self._bare.encode(), challenge, without_proof))
        proof = _xor(client_key, hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest))
        self._server_signature = hmac.digest(hmac.digest(credential, b"Server Key", digest), signed, digest)
        return without_proof + b",p=" + base64.b64encode(proof)

    def check(self, message: bytes) -> None:
        """Raise ScramFailed unless the server's last message proves that it has the credential."""
        text = _text(message)
        if text.startswith("e="):
            raise ScramFailed(f"the server refused: {text[2:]}")
        (signature,) = _attributes(text, "v")
        if not self._server_signature or not hmac.compare_digest(_octets(signature), self._server_signature):
            raise ScramFailed("the server does not have the credential of the user")


def _xor(left: bytes, right: bytes) -> bytes:
    """Return the exclusive or; of other sizes than these it is a wrong proof."""
    if len(left) != len(right):
        raise ScramFailed("a proof of another size", True)
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


# --- PLAIN (RFC 4616)


def read_plain(message: bytes) -> tuple[str, str]:
    """Return user and password of a PLAIN message. Raises ScramFailed, without the password."""
    parts = _text(message).split("\0")
    if len(parts) != 3 or not parts[1] or not parts[2] or len(parts[1]) > NAME_MAX:
        raise ScramFailed("a message that is not PLAIN", True)
    authorization, user, password = parts
    if authorization and authorization != user:
        raise ScramFailed("another authorization identity than the user")
    return user, password
