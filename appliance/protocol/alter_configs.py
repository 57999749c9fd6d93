"""AlterConfigs 0-2: all configs of a resource anew; what is not named goes back to its default. Owned by nobody; messages as data.

Weak spot: Kafka's own, for which it made `incremental_alter_configs.py`: two that alter at the same time undo each other's work.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.config_resources import AlteredResources
from appliance.protocol.schema import BOOL, INT8, STRING, ArrayOf, Field, Message


class ConfigToSet(NamedTuple):
    """A null value is refused."""

    name: Annotated[str, Field(STRING)]
    value: Annotated[str | None, Field(STRING, nullable_since=0)]


class ResourceToReplace(NamedTuple):
    """Everything that shall be set on one resource."""

    resource_type: Annotated[int, Field(INT8)]
    resource_name: Annotated[str, Field(STRING)]
    configs: Annotated[tuple[ConfigToSet, ...], Field(ArrayOf(ConfigToSet))] = ()


class AlterConfigsRequest(NamedTuple):
    """Resources to alter, each by itself."""

    resources: Annotated[tuple[ResourceToReplace, ...], Field(ArrayOf(ResourceToReplace))]
    validate_only: Annotated[bool, Field(BOOL)] = False


REQUEST: Final = Message(ApiKey.ALTER_CONFIGS, "AlterConfigs request", AlterConfigsRequest)
RESPONSE: Final = Message(ApiKey.ALTER_CONFIGS, "AlterConfigs response", AlteredResources)
