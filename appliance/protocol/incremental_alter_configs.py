"""IncrementalAlterConfigs 0-1: set, delete, append to and subtract from single configs. Owned by nobody; messages as data. Weak spot: none known."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.config_resources import AlteredResources
from appliance.protocol.schema import BOOL, INT8, STRING, ArrayOf, Field, Message


class ConfigToAlter(NamedTuple):
    """`operation`: 0 set, 1 delete, 2 append, 3 subtract; null values are for delete."""

    name: Annotated[str, Field(STRING)]
    operation: Annotated[int, Field(INT8)]
    value: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class ResourceToAlter(NamedTuple):
    """Changes of one resource: all of them, or none."""

    resource_type: Annotated[int, Field(INT8)]
    resource_name: Annotated[str, Field(STRING)]
    configs: Annotated[tuple[ConfigToAlter, ...], Field(ArrayOf(ConfigToAlter))] = ()


class IncrementalAlterConfigsRequest(NamedTuple):
    """Resources to alter, each by itself."""

    resources: Annotated[tuple[ResourceToAlter, ...], Field(ArrayOf(ResourceToAlter))]
    validate_only: Annotated[bool, Field(BOOL)] = False


REQUEST: Final = Message(ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs request", IncrementalAlterConfigsRequest)
RESPONSE: Final = Message(ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs response", AlteredResources)
