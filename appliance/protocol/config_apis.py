"""APIs that describe and alter configs: messages as data.

DescribeConfigs 0-4 (kio: 1-4; version 0 says only whether a value is a default), AlterConfigs 0-2
IncrementalAlterConfigs 0-1 and ListConfigResources 0-1. AlterConfigs replaces all configs of a resource, so two callers at
the same time undo each other's changes; Kafka added IncrementalAlterConfigs for that.
"""

from enum import IntEnum
from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT8, INT16, INT32, STRING, ArrayOf, Field, Message


class ResourceType(IntEnum):
    """Kinds of resource that have configs."""

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
    DYNAMIC_BROKER_LOGGER = 6
    GROUP = 8


CONFIG_TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7, "class": 8, "password": 9}
"""Names of types as Kafka's documentation has them → numbers on the wire."""


class AlteredResource(NamedTuple):
    """The result for one resource, of both APIs that alter."""

    error_code: Annotated[int, Field(INT16)]
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)]
    resource_type: Annotated[int, Field(INT8)]
    resource_name: Annotated[str, Field(STRING)]


class AlteredResources(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    responses: Annotated[tuple[AlteredResource, ...], Field(ArrayOf(AlteredResource))] = ()


# -- DescribeConfigs: values of topics and brokers, their sources and meanings.


class ResourceToDescribe(NamedTuple):
    """`configuration_keys` None or empty: all of them."""

    resource_type: Annotated[int, Field(INT8)]
    resource_name: Annotated[str, Field(STRING)]
    configuration_keys: Annotated[tuple[str, ...] | None, Field(ArrayOf(STRING), nullable_since=0)] = None


class DescribeConfigsRequest(NamedTuple):
    """Resources to describe, each by itself."""

    resources: Annotated[tuple[ResourceToDescribe, ...], Field(ArrayOf(ResourceToDescribe))]
    include_synonyms: Annotated[bool, Field(BOOL, since=1)] = False
    include_documentation: Annotated[bool, Field(BOOL, since=3)] = False


class ConfigSynonym(NamedTuple):
    """One possible source of the value; the first one in the list applies."""

    name: Annotated[str, Field(STRING)]
    value: Annotated[str | None, Field(STRING, nullable_since=0)]
    source: Annotated[int, Field(INT8)]


class DescribedConfig(NamedTuple):
    """One config. Values of sensitive ones are null."""

    name: Annotated[str, Field(STRING)]
    value: Annotated[str | None, Field(STRING, nullable_since=0)]
    read_only: Annotated[bool, Field(BOOL)] = False
    is_default: Annotated[bool, Field(BOOL, until=0)] = False
    config_source: Annotated[int, Field(INT8, since=1)] = -1
    is_sensitive: Annotated[bool, Field(BOOL)] = False
    synonyms: Annotated[tuple[ConfigSynonym, ...], Field(ArrayOf(ConfigSynonym), since=1)] = ()
    config_type: Annotated[int, Field(INT8, since=3)] = 0
    documentation: Annotated[str | None, Field(STRING, since=3, nullable_since=3)] = None


class DescribedResource(NamedTuple):
    """One resource, or an error."""

    error_code: Annotated[int, Field(INT16)]
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)]
    resource_type: Annotated[int, Field(INT8)]
    resource_name: Annotated[str, Field(STRING)]
    configs: Annotated[tuple[DescribedConfig, ...], Field(ArrayOf(DescribedConfig))] = ()


class DescribeConfigsResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    results: Annotated[tuple[DescribedResource, ...], Field(ArrayOf(DescribedResource))] = ()


DESCRIBE_CONFIGS_REQUEST: Final = Message(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigs request", DescribeConfigsRequest)
DESCRIBE_CONFIGS_RESPONSE: Final = Message(
    ApiKey.DESCRIBE_CONFIGS,
    "DescribeConfigs response",
    DescribeConfigsResponse,
    error=lambda _version, request, code, text: DescribeConfigsResponse(
        0, tuple(DescribedResource(code, text, each.resource_type, each.resource_name) for each in request.resources)
    ),
)


# -- AlterConfigs: replace all configs of a resource; a config that is not named gets its default.


class ConfigToSet(NamedTuple):
    """A null value is refused."""

    name: Annotated[str, Field(STRING)]
    value: Annotated[str | None, Field(STRING, nullable_since=0)]


class ResourceToReplace(NamedTuple):
    """All configs of one resource."""

    resource_type: Annotated[int, Field(INT8)]
    resource_name: Annotated[str, Field(STRING)]
    configs: Annotated[tuple[ConfigToSet, ...], Field(ArrayOf(ConfigToSet))] = ()


class AlterConfigsRequest(NamedTuple):
    """Resources to alter, each by itself."""

    resources: Annotated[tuple[ResourceToReplace, ...], Field(ArrayOf(ResourceToReplace))]
    validate_only: Annotated[bool, Field(BOOL)] = False


ALTER_CONFIGS_REQUEST: Final = Message(ApiKey.ALTER_CONFIGS, "AlterConfigs request", AlterConfigsRequest)
ALTER_CONFIGS_RESPONSE: Final = Message(
    ApiKey.ALTER_CONFIGS,
    "AlterConfigs response",
    AlteredResources,
    error=lambda _version, request, code, text: AlteredResources(
        0, tuple(AlteredResource(code, text, each.resource_type, each.resource_name) for each in request.resources)
    ),
)


# -- IncrementalAlterConfigs: set, delete, append to and subtract from single configs.


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


INCREMENTAL_ALTER_CONFIGS_REQUEST: Final = Message(ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs request", IncrementalAlterConfigsRequest)
INCREMENTAL_ALTER_CONFIGS_RESPONSE: Final = Message(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    "IncrementalAlterConfigs response",
    AlteredResources,
    error=lambda _version, request, code, text: AlteredResources(
        0, tuple(AlteredResource(code, text, each.resource_type, each.resource_name) for each in request.resources)
    ),
)


# -- ListConfigResources: what has configs.


class ListConfigResourcesRequest(NamedTuple):
    """Types of resources; none: all."""

    resource_types: Annotated[tuple[int, ...], Field(ArrayOf(INT8), since=1)] = ()


class ListedConfigResource(NamedTuple):
    """One resource."""

    resource_name: Annotated[str, Field(STRING)]
    resource_type: Annotated[int, Field(INT8, since=1)] = ResourceType.CLIENT_METRICS


class ListConfigResourcesResponse(NamedTuple):
    """All resources of these types."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    config_resources: Annotated[tuple[ListedConfigResource, ...], Field(ArrayOf(ListedConfigResource))] = ()


LIST_CONFIG_RESOURCES_REQUEST: Final = Message(ApiKey.LIST_CONFIG_RESOURCES, "ListConfigResources request", ListConfigResourcesRequest)
LIST_CONFIG_RESOURCES_RESPONSE: Final = Message(ApiKey.LIST_CONFIG_RESOURCES, "ListConfigResources response", ListConfigResourcesResponse)
