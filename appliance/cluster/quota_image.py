"""The quota image: the client quotas of the cluster, as the acceptors of a box read them.

A file beside the security image, written as it is, with its own magic and generation. The controller
alone writes it; a box whose cluster has never had a quota has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import orjson

from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.cluster.security_image import SecurityImageUnreadable, pack_image, read_generation, unpack_image, write_private
from appliance.security.quotas import ClientQuotas, QuotaEntity, quota_problem

QUOTA_MAGIC: Final = b"MRQI"

Quotas = Mapping[QuotaEntity, Mapping[str, float]]


class QuotaImage(NamedTuple):
    """Quotas by entity. Generation 0: none was written yet."""

    generation: int = 0
    quotas: Quotas = MappingProxyType({})

    def encode(self) -> bytes:
        rows = [[*entity, dict(values)] for entity, values in self.quotas.items()]
        return pack_image(QUOTA_MAGIC, self.generation, orjson.dumps(rows))

    @classmethod
    def decode(cls, encoded: bytes) -> QuotaImage:
        """Return the image in `encoded`, without values that no quota can have. Raises SecurityImageUnreadable."""
        generation, payload = unpack_image(QUOTA_MAGIC, encoded)
        try:
            rows = [(QuotaEntity(*names), values) for *names, values in orjson.loads(payload)]
            if not all(name is None or isinstance(name, str) for entity, _ in rows for name in entity):
                raise ValueError("a name that is no text")
            quotas = {entity: {key: float(values[key]) for key in entity.quota_keys if key in values} for entity, values in rows}
        except (ValueError, TypeError, AttributeError):
            raise SecurityImageUnreadable(f"the quota image of generation {generation} holds no quotas") from None
        valid = {
            entity: {key: value for key, value in values.items() if quota_problem(key, value, entity.quota_keys) is None} for entity, values in quotas.items()
        }
        return cls(generation, {entity: values for entity, values in valid.items() if values})


def write_quota_image(path: str, image: QuotaImage) -> None:
    """Replace the file, which only processes of the box can read."""
    write_private(path, image.encode())


def read_quota_image(path: str) -> QuotaImage | None:
    """Return the image, or None if there is none. Raises SecurityImageUnreadable."""
    try:
        return QuotaImage.decode(Path(path).read_bytes())
    except FileNotFoundError:
        return None


class QuotaFollower:
    """Keeps the quotas of one acceptor at the newest image. An unreadable one leaves the last one in use."""

    def __init__(self, layout: BoxLayout, log: Logger) -> None:
        self._path = layout.quota_image_file
        self._log = log
        self._generation = 0
        self.quotas = ClientQuotas({})

    def load(self) -> bool:
        """Read the image, after any notification of the controller; return whether it is another one."""
        if read_generation(self._path, QUOTA_MAGIC) == self._generation:
            return False
        try:
            image = read_quota_image(self._path)
        except SecurityImageUnreadable as problem:
            self._log.error(f"could not read the client quotas: {problem}; continuing with the last ones")
            return False
        if image is None:
            return False
        self._generation = image.generation
        self.quotas = ClientQuotas(image.quotas)
        return True
