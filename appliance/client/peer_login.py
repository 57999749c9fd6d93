"""How a box logs in to other boxes: `inter.broker.user`, where the listener of boxes has SASL_SSL.

Frames are those of its connection's owner; this has the tokens. The password is read for each connection, so
that a changed file needs no restart. Weak: the answer to a challenge takes 3 ms of a turn for each connection, and
so long as a disk hangs that has the file, the turn that reads it hangs, too.
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Generator
from typing import Final, NamedTuple

from appliance.base.settings import Box
from appliance.security.listeners import PLAIN, inter_broker_mechanism, uses_sasl
from appliance.security.scram import NONCE_BYTES, SCRAM_MECHANISMS, ScramClient

BYTES_MAX: Final = 1_024


class PeerLogin(NamedTuple):
    """Mechanism, user and password: of a box, or of the user of a command (`client.security`)."""

    mechanism: str
    user: str
    password: str
    by_token: bool = False
    """whether `user` is the id of a delegation token, and `password` its secret in Base64"""

    def __repr__(self) -> str:
        return f"PeerLogin({self.mechanism!r}, {self.user!r}, ***)"

    @classmethod
    def of(cls, box: Box) -> PeerLogin | None:
        """None: boxes do not log in. Raises ValueError if the password cannot be read."""
        if not uses_sasl(box.kafka_listeners[0].protocol):
            return None
        return cls(inter_broker_mechanism(box.text), box.text("inter.broker.user"), read_password(box.text("inter.broker.password.file")))

    def tokens(self) -> Generator[bytes, bytes, None]:
        """Yield the client's tokens, and take the server's. Raises ScramFailed if the server does not know the password."""
        if self.mechanism == PLAIN:
            yield f"\0{self.user}\0{self.password}".encode()
            return
        client = ScramClient(SCRAM_MECHANISMS[self.mechanism], self.user, self.password, base64.b64encode(os.urandom(NONCE_BYTES)).decode(), self.by_token)
        challenge = yield client.first
        client.check((yield client.respond(challenge)))


def read_password(path: str, setting: str = "inter.broker.password.file", what: str = "the password of inter.broker.user") -> str:
    """Return the first line of a file that not all users can read. Raises ValueError that does not contain it."""
    where = f"{setting} {path}"
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode) or mode & stat.S_IRWXO:
                raise ValueError(f"{where} must be a regular file that is closed to other users (mode {stat.S_IMODE(mode):04o}); run chmod o= {path}")
            password = file.readline(BYTES_MAX).rstrip("\n")
    except UnicodeDecodeError:
        raise ValueError(f"{where} could not be read: it is not UTF-8") from None
    except OSError as error:
        raise ValueError(f"{where} could not be read: {error.strerror}") from None
    if not password:
        raise ValueError(f"{where} is empty; write {what} into its first line")
    return password
