"""Access control entries. Any broker would answer; the controller's connection is there already."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.base.errors import ErrorCode
from appliance.client.cluster import ClusterClient
from appliance.client.errors import ALTER, DESCRIBE, refused
from appliance.client.messages import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS
from appliance.protocol.acl_apis import AclCreation, CreateAclsRequest, DeleteAclsFilter, DeleteAclsRequest, DescribeAclsRequest
from appliance.security.acl import AclBinding, AclFilter, AclOperation, AclPermission, AclResource, PatternType

TIMEOUT_MS = 35_000
"""The controller answers within 30 s."""


def describe_acls(cluster: ClusterClient, wanted: AclFilter, purpose: str = "list access control entries", right: str = DESCRIBE) -> list[AclBinding]:
    """The entries that match. Raises RequestRefused; `purpose` and `right` are those of the caller."""
    response = cluster.ask_controller(DESCRIBE_ACLS, DescribeAclsRequest(*wanted), TIMEOUT_MS)
    if response.error_code:
        raise refused(response.error_code, purpose, response.error_message, right)
    return [
        AclBinding(
            AclResource(of_pattern.resource_type),
            of_pattern.resource_name,
            PatternType(of_pattern.pattern_type),
            each.principal,
            each.host,
            AclOperation(each.operation),
            AclPermission(each.permission_type),
        )
        for of_pattern in response.resources
        for each in of_pattern.acls
    ]


def create_acls(cluster: ClusterClient, bindings: Sequence[AclBinding]) -> None:
    """Add entries. Raises RequestRefused for the first that is refused."""
    response = cluster.ask_controller(CREATE_ACLS, CreateAclsRequest(tuple(AclCreation(*each) for each in bindings)), TIMEOUT_MS)
    for binding, result in zip(bindings, response.results, strict=True):
        if result.error_code:
            raise refused(result.error_code, f"add an entry on {binding.name}", result.error_message, ALTER)


def delete_acls(cluster: ClusterClient, filters: Sequence[AclFilter]) -> None:
    """Remove what matches any filter. Raises RequestRefused for the first that could not be removed."""
    response = cluster.ask_controller(DELETE_ACLS, DeleteAclsRequest(tuple(DeleteAclsFilter(*each) for each in filters)), TIMEOUT_MS)
    for result in response.filter_results:
        for code, text in ((result.error_code, result.error_message), *((each.error_code, each.error_message) for each in result.matching_acls)):
            if code != ErrorCode.NONE:
                raise refused(code, "remove access control entries", text, ALTER)
