"""The security image: the access control lists of the cluster, as the processes of a box read them.

A file beside the metadata image, with its own generation, so that a change of a list rewrites no topics. The
controller alone writes it (mode 0600, a rename on tmpfs); acceptors and the coordinator read it when the
controller announces a change. Without `authorizer.class.name` there is no such file.

File: header `>4sHHQII` (magic, format version, 0, generation, payload bytes, CRC-32C of generation and
payload), then a JSON array of bindings, each an array of the fields of `AclBinding`.
Weak spot: it is written whole, and read whole after each change of it, 1 ms for 1,000 bindings.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from appliance.base.errors import MillraceError
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.base.settings import Box
from appliance.base.trusted_files import shared_mode
from appliance.records.crc32c import crc32c
from appliance.security.acl import AclBinding, AclOperation, AclPermission, AclResource, PatternType
from appliance.security.authorizer import Authorizer, super_users_of

SECURITY_MAGIC: Final = b"MRSI"
SECURITY_FORMAT_VERSION: Final = 1
SECURITY_HEADER: Final = struct.Struct(">4sHHQII")
_GENERATION: Final = struct.Struct(">Q")


class SecurityImageUnreadable(MillraceError):
    """The bytes are no security image of this format version, or they are damaged."""


class SecurityImage(NamedTuple):
    """All bindings of the cluster. Generation 0: none was loaded yet."""

    generation: int = 0
    bindings: frozenset[AclBinding] = frozenset()

    def encode(self) -> bytes:
        return pack_image(SECURITY_MAGIC, self.generation, orjson.dumps(sorted(self.bindings), default=list))

    @classmethod
    def decode(cls, encoded: bytes) -> SecurityImage:
        """Return the image in `encoded`. Raises SecurityImageUnreadable."""
        generation, payload = unpack_image(SECURITY_MAGIC, encoded)
        try:
            return cls(generation, frozenset(map(_binding, orjson.loads(payload))))
        except (ValueError, TypeError) as problem:
            raise SecurityImageUnreadable(f"the security image of generation {generation} holds no bindings: {problem}") from None


def pack_image(image_magic: bytes, generation: int, payload: bytes) -> bytes:
    """Return header and payload of a security image or a credential image."""
    checksum = crc32c(payload, crc32c(_GENERATION.pack(generation)))
    return SECURITY_HEADER.pack(image_magic, SECURITY_FORMAT_VERSION, 0, generation, len(payload), checksum) + payload


def read_generation(path: str, image_magic: bytes) -> int:
    """Return the generation in the header of an image, without its payload; 0 if there is none that can be read."""
    try:
        with Path(path).open("rb", buffering=0) as file:
            header = file.read(SECURITY_HEADER.size)
    except FileNotFoundError:
        return 0
    if len(header) < SECURITY_HEADER.size:
        return 0
    magic, version, _, generation, _, _ = SECURITY_HEADER.unpack(header)
    return int(generation) if magic == image_magic and version == SECURITY_FORMAT_VERSION else 0


def unpack_image(image_magic: bytes, encoded: bytes) -> tuple[int, bytes]:
    """Return generation and payload. Raises SecurityImageUnreadable."""
    if len(encoded) < SECURITY_HEADER.size:
        raise SecurityImageUnreadable(f"a security image has at least {SECURITY_HEADER.size} bytes, this one has {len(encoded)}")
    magic, version, _, generation, size_bytes, checksum = SECURITY_HEADER.unpack_from(encoded)
    payload = encoded[SECURITY_HEADER.size :]
    if magic != image_magic or version != SECURITY_FORMAT_VERSION:
        raise SecurityImageUnreadable(f"not a security image of format version {SECURITY_FORMAT_VERSION}: {magic!r} version {version}")
    if len(payload) != size_bytes or crc32c(payload, crc32c(_GENERATION.pack(generation))) != checksum:
        raise SecurityImageUnreadable(f"the security image of generation {generation} is damaged")
    return generation, payload


def _binding(row: list[Any]) -> AclBinding:
    resource, name, pattern, principal, host, operation, permission = row
    return AclBinding(AclResource(resource), str(name), PatternType(pattern), str(principal), str(host), AclOperation(operation), AclPermission(permission))


def write_security_image(path: str, image: SecurityImage) -> None:
    """Replace the file, which only processes of the box can read."""
    write_private(path, image.encode())


def write_private(path: str, content: bytes) -> None:
    """Replace a file by one that only processes of the box can read."""
    temporary = f"{path}.tmp"
    Path(temporary).unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, shared_mode())
        file.write(content)
    os.replace(temporary, path)


def read_security_image(path: str) -> SecurityImage | None:
    """Return the image, or None if there is none. Raises SecurityImageUnreadable."""
    try:
        return SecurityImage.decode(Path(path).read_bytes())
    except FileNotFoundError:
        return None


def authorizer_of(box: Box) -> Authorizer | None:
    """Return an authorizer without bindings, as the box's settings want it; None: everything is allowed."""
    if not box.text("authorizer.class.name"):
        return None
    return Authorizer(super_users_of(box.text("super.users")), box.flag("allow.everyone.if.no.acl.found"))


class AuthorizerFollower:
    """Keeps a process's authorizer at the newest security image. `on_changed()` is called after each change.

    Until the first image is there, only super users may do anything. An unreadable image leaves the last one
    in use. Owned by one acceptor or coordinator.
    """

    def __init__(self, layout: BoxLayout, authorizer: Authorizer, log: Logger, on_changed: Callable[[], None] = lambda: None) -> None:
        self._path = layout.security_image_file
        self.authorizer = authorizer
        self._log = log
        self._on_changed = on_changed
        self.generation = 0

    @property
    def has_image(self) -> bool:
        return self.generation > 0

    def load(self) -> None:
        """Read the image, after any notification of the controller: only its header, if it is the one in use."""
        if self.generation and read_generation(self._path, SECURITY_MAGIC) == self.generation:
            return
        try:
            image = read_security_image(self._path)
        except SecurityImageUnreadable as problem:
            self._log.error(f"could not read the security image: {problem}; continuing with the last one")
            return
        if image is not None and image.generation != self.generation:
            self.generation = image.generation
            self.authorizer.replace(image.bindings)
            self._on_changed()
