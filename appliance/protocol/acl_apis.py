"""APIs about access control lists: messages as data.

DescribeAcls, CreateAcls and DeleteAcls 1-3, as in Kafka 4. The numbers of fields are those of
`appliance/security/acl.py`. Version 3 allows the resource type USER.
"""

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT8, INT16, INT32, STRING, ArrayOf, Field, Message

LITERAL: Final = 3
"""A pattern type, the default."""

# -- DescribeAcls: the bindings that match one filter.


class DescribeAclsRequest(NamedTuple):
    """A filter; null names, principals and hosts match all."""

    resource_type_filter: Annotated[int, Field(INT8)]
    resource_name_filter: Annotated[str | None, Field(STRING, nullable_since=0)]
    pattern_type_filter: Annotated[int, Field(INT8)] = LITERAL
    principal_filter: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    host_filter: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    operation: Annotated[int, Field(INT8)] = 1
    permission_type: Annotated[int, Field(INT8)] = 1


class DescribedAcl(NamedTuple):
    """One binding of a pattern."""

    principal: Annotated[str, Field(STRING)]
    host: Annotated[str, Field(STRING)]
    operation: Annotated[int, Field(INT8)]
    permission_type: Annotated[int, Field(INT8)]


class DescribedAcls(NamedTuple):
    """The bindings of one pattern."""

    resource_type: Annotated[int, Field(INT8)]
    resource_name: Annotated[str, Field(STRING)]
    pattern_type: Annotated[int, Field(INT8)] = LITERAL
    acls: Annotated[tuple[DescribedAcl, ...], Field(ArrayOf(DescribedAcl))] = ()


class DescribeAclsResponse(NamedTuple):
    """What matches, or an error."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    resources: Annotated[tuple[DescribedAcls, ...], Field(ArrayOf(DescribedAcls))] = ()


DESCRIBE_ACLS_REQUEST: Final = Message(ApiKey.DESCRIBE_ACLS, "DescribeAcls request", DescribeAclsRequest)
DESCRIBE_ACLS_RESPONSE: Final = Message(ApiKey.DESCRIBE_ACLS, "DescribeAcls response", DescribeAclsResponse)


# -- CreateAcls: add bindings.


class AclCreation(NamedTuple):
    """One binding."""

    resource_type: Annotated[int, Field(INT8)]
    resource_name: Annotated[str, Field(STRING)]
    resource_pattern_type: Annotated[int, Field(INT8)] = LITERAL
    principal: Annotated[str, Field(STRING)] = ""
    host: Annotated[str, Field(STRING)] = ""
    operation: Annotated[int, Field(INT8)] = 0
    permission_type: Annotated[int, Field(INT8)] = 0


class CreateAclsRequest(NamedTuple):
    """Bindings, each by itself."""

    creations: Annotated[tuple[AclCreation, ...], Field(ArrayOf(AclCreation))]


class AclCreationResult(NamedTuple):
    """NONE, or an error."""

    error_code: Annotated[int, Field(INT16)]
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class CreateAclsResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    results: Annotated[tuple[AclCreationResult, ...], Field(ArrayOf(AclCreationResult))] = ()


CREATE_ACLS_REQUEST: Final = Message(ApiKey.CREATE_ACLS, "CreateAcls request", CreateAclsRequest)
CREATE_ACLS_RESPONSE: Final = Message(
    ApiKey.CREATE_ACLS,
    "CreateAcls response",
    CreateAclsResponse,
    error=lambda _version, request, code, text: CreateAclsResponse(0, tuple(AclCreationResult(code, text) for _ in request.creations)),
)


# -- DeleteAcls: remove what matches filters.


class DeleteAclsFilter(NamedTuple):
    """As `DescribeAclsRequest`."""

    resource_type_filter: Annotated[int, Field(INT8)]
    resource_name_filter: Annotated[str | None, Field(STRING, nullable_since=0)]
    pattern_type_filter: Annotated[int, Field(INT8)] = LITERAL
    principal_filter: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    host_filter: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    operation: Annotated[int, Field(INT8)] = 1
    permission_type: Annotated[int, Field(INT8)] = 1


class DeleteAclsRequest(NamedTuple):
    """Filters, each by itself."""

    filters: Annotated[tuple[DeleteAclsFilter, ...], Field(ArrayOf(DeleteAclsFilter))]


class DeletedAcl(NamedTuple):
    """One binding that matched, and whether it was removed."""

    error_code: Annotated[int, Field(INT16)]
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)]
    resource_type: Annotated[int, Field(INT8)]
    resource_name: Annotated[str, Field(STRING)]
    pattern_type: Annotated[int, Field(INT8)] = LITERAL
    principal: Annotated[str, Field(STRING)] = ""
    host: Annotated[str, Field(STRING)] = ""
    operation: Annotated[int, Field(INT8)] = 0
    permission_type: Annotated[int, Field(INT8)] = 0


class DeleteAclsFilterResult(NamedTuple):
    """What one filter removed, or an error."""

    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    matching_acls: Annotated[tuple[DeletedAcl, ...], Field(ArrayOf(DeletedAcl))] = ()


class DeleteAclsResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    filter_results: Annotated[tuple[DeleteAclsFilterResult, ...], Field(ArrayOf(DeleteAclsFilterResult))] = ()


DELETE_ACLS_REQUEST: Final = Message(ApiKey.DELETE_ACLS, "DeleteAcls request", DeleteAclsRequest)
DELETE_ACLS_RESPONSE: Final = Message(
    ApiKey.DELETE_ACLS,
    "DeleteAcls response",
    DeleteAclsResponse,
    error=lambda _version, request, code, text: DeleteAclsResponse(0, tuple(DeleteAclsFilterResult(code, text) for _ in request.filters)),
)
