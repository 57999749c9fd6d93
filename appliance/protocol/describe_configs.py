"""DescribeConfigs 0-4: values of topics and brokers, where they come from, what they mean. Owned by nobody; messages as data.

Weak spot: none known. Version 0, which kio does not know, tells only whether a value is a default.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT8, INT16, INT32, STRING, ArrayOf, Field, Message


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
    """A place from which the value may come; the first one has it."""

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
    """One resource, or why not."""

    error_code: Annotated[int, Field(INT16)]
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)]
    resource_type: Annotated[int, Field(INT8)]
    resource_name: Annotated[str, Field(STRING)]
    configs: Annotated[tuple[DescribedConfig, ...], Field(ArrayOf(DescribedConfig))] = ()


class DescribeConfigsResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    results: Annotated[tuple[DescribedResource, ...], Field(ArrayOf(DescribedResource))] = ()


REQUEST: Final = Message(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigs request", DescribeConfigsRequest)
RESPONSE: Final = Message(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigs response", DescribeConfigsResponse)
