"""Client quotas: list and change them. Any broker would answer; the controller's connection is there already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from appliance.client.cluster import ClusterClient
from appliance.client.errors import refused
from appliance.client.messages import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from appliance.protocol.quota_apis import (
    MATCH_DEFAULT,
    MATCH_EXACT,
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    QuotaEntityPart,
    QuotaFilterComponent,
    QuotaOperation,
    QuotasToAlter,
)

TIMEOUT_MS = 35_000
"""The controller answers within 30 s."""

Entity = Mapping[str, str | None]
"""Names by type (`user`, `client-id`, `ip`); None: the default of the type."""


class EntityQuotas(NamedTuple):
    """The quotas of one entity, by name."""

    entity: dict[str, str | None]
    values: dict[str, float]


def describe_quotas(cluster: ClusterClient, entity: Entity) -> list[EntityQuotas]:
    """Return the quotas of entities that have all these names, or of all. Raises RequestRefused."""
    wanted = tuple(QuotaFilterComponent(kind, MATCH_DEFAULT if name is None else MATCH_EXACT, name) for kind, name in entity.items())
    response = cluster.ask_controller(DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest(wanted), TIMEOUT_MS)
    if response.error_code:
        raise refused(response.error_code, "list quotas", response.error_message, "DescribeConfigs on the cluster")
    found = [
        EntityQuotas({each.entity_type: each.entity_name for each in described.entity}, {each.key: each.value for each in described.values})
        for described in response.entries or ()
    ]
    return sorted(found, key=lambda each: sorted((kind, name or "") for kind, name in each.entity.items()))


def alter_quotas(cluster: ClusterClient, entity: Entity, values: Mapping[str, float | None]) -> None:
    """Set quotas of one entity; None removes one. Raises RequestRefused."""
    operations = tuple(QuotaOperation(key, value or 0.0, value is None) for key, value in values.items())
    parts = tuple(QuotaEntityPart(kind, name) for kind, name in entity.items())
    response = cluster.ask_controller(ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest((QuotasToAlter(parts, operations),)), TIMEOUT_MS)
    for result in response.entries:
        if result.error_code:
            raise refused(result.error_code, "alter quotas", result.error_message, "AlterConfigs on the cluster")
