"""What the three APIs about configs share: kinds of resource, sources and types of a value, operations on it, by Kafka's numbers.

Owned by nobody. Weak spot: none known.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, NamedTuple

from appliance.protocol.schema import INT8, INT16, INT32, STRING, ArrayOf, Field


class ResourceType(IntEnum):
    """Whose configs are meant."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value comes from."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


CONFIG_TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7, "class": 8, "password": 9}
"""Names of types as Kafka's documentation has them → numbers on the wire."""


class AlteredResource(NamedTuple):
    """What became of one resource; the answer of both APIs that alter."""

    error_code: Annotated[int, Field(INT16)]
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)]
    resource_type: Annotated[int, Field(INT8)]
    resource_name: Annotated[str, Field(STRING)]


class AlteredResources(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    responses: Annotated[tuple[AlteredResource, ...], Field(ArrayOf(AlteredResource))] = ()
