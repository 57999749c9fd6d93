"""The credential image: what verifies the users of the cluster, as the acceptors of a box read it.

A file beside the security image (mode 0600, a rename on tmpfs) with its own magic and generation. The controller
alone writes it; only acceptors with a SASL listener read it. No password is in it, but a stored key allows
guesses without a limit, so it is in no other file, log or metric. Weak: it is read whole after each change (20 ms for
10,000 users).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import orjson

from appliance.base.clock import SystemClock
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.cluster.security_image import SecurityImageUnreadable, pack_image, read_generation, unpack_image, write_private
from appliance.cluster.token_image import TokenFollower
from appliance.security.scram import ITERATIONS_MIN, ScramCredential, ScramMechanism, made_up_credential

CREDENTIAL_MAGIC: Final = b"MRCI"
SECRET_BYTES: Final = 32


class CredentialImage(NamedTuple):
    """Kafka's texts of the credentials by user and mechanism. `secret`: for credentials of unknown users.

    Generation 0: none was loaded yet.
    """

    generation: int = 0
    secret: bytes = b""
    users: Mapping[str, Mapping[str, str]] = MappingProxyType({})

    def encode(self) -> bytes:
        document = {"secret": self.secret.hex(), "users": {user: dict(texts) for user, texts in self.users.items()}}
        return pack_image(CREDENTIAL_MAGIC, self.generation, orjson.dumps(document))

    @classmethod
    def decode(cls, encoded: bytes) -> CredentialImage:
        """Return the image in `encoded`. Raises SecurityImageUnreadable."""
        generation, payload = unpack_image(CREDENTIAL_MAGIC, encoded)
        try:
            document = orjson.loads(payload)
            users = {str(user): {str(label): str(text) for label, text in texts.items()} for user, texts in document["users"].items()}
            return cls(generation, bytes.fromhex(document["secret"]), users)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise SecurityImageUnreadable(f"the credential image of generation {generation} holds no credentials") from None


def write_credential_image(path: str, image: CredentialImage) -> None:
    """Replace the file, which only its owner can read."""
    write_private(path, image.encode())


def read_credential_image(path: str) -> CredentialImage | None:
    """Return the image, or None if there is none. Raises SecurityImageUnreadable."""
    try:
        return CredentialImage.decode(Path(path).read_bytes())
    except FileNotFoundError:
        return None


class CredentialFollower:
    """Keeps the credentials of one acceptor at the newest image. An unreadable one leaves the last one in use."""

    def __init__(self, layout: BoxLayout, log: Logger, random: Callable[[int], bytes] = os.urandom, wall_ms: Callable[[], int] = SystemClock.wall_ms) -> None:
        self.tokens = TokenFollower(layout.token_image_file, log, wall_ms)
        self._path = layout.credential_image_file
        self._log = log
        self._image = CredentialImage(0, random(SECRET_BYTES))
        self._iterations: dict[str, int] = {}

    @property
    def has_image(self) -> bool:
        return self._image.generation > 0

    def load(self) -> None:
        """Read the image, after any notification of the controller: only its header, if it is the one in use. And that of tokens."""
        self.tokens.load()
        if self.has_image and read_generation(self._path, CREDENTIAL_MAGIC) == self._image.generation:
            return
        try:
            image = read_credential_image(self._path)
        except SecurityImageUnreadable as problem:
            self._log.error(f"could not read the credentials of users: {problem}; continuing with the last ones")
            return
        if image is not None and image.generation != self._image.generation:
            self._image = image
            counts: dict[str, Counter[str]] = {}
            for texts in image.users.values():
                for label, text in texts.items():
                    counts.setdefault(label, Counter())[text.rpartition("iterations=")[2]] += 1
            self._iterations = {label: int(count.most_common(1)[0][0]) for label, count in counts.items()}

    def iterations(self, user: str, label: str) -> int | None:
        """Return the iterations of a user's credential of this mechanism; None if there is none."""
        text = self._image.users.get(user, {}).get(label)
        return None if text is None else ScramCredential.decode(text).iterations

    def credential(self, mechanism: ScramMechanism, user: str) -> tuple[ScramCredential, bool]:
        """Return the credential of a user and True, or one that no password fits and False; at about equal cost."""
        text = self._image.users.get(user, {}).get(mechanism.label)
        made_up = made_up_credential(mechanism, user, self._image.secret, self._iterations.get(mechanism.label, ITERATIONS_MIN)).encode()
        return ScramCredential.decode(made_up if text is None else text), text is not None

    def plain_credential(self, user: str) -> tuple[ScramMechanism, ScramCredential, bool]:
        """Return a credential that verifies the password of PLAIN: of SCRAM-SHA-256 if the user has it."""
        texts = self._image.users.get(user, {})
        mechanism = ScramMechanism.SHA_512 if texts and ScramMechanism.SHA_256.label not in texts else ScramMechanism.SHA_256
        return (mechanism, *self.credential(mechanism, user))
