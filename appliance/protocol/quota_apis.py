"""DescribeClientQuotas and AlterClientQuotas (KIP-546): messages as data.

An entity is a set of types (`user`, `client-id`, `ip`), each with a name, or null for the default of its type.
Values are numbers by the name of the quota, such as `producer_byte_rate`.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, FLOAT64, INT8, INT16, INT32, STRING, ArrayOf, Field, Message

MATCH_EXACT, MATCH_DEFAULT, MATCH_SPECIFIED = range(3)
"""A name; the default; any of the type."""


class QuotaFilterComponent(NamedTuple):
    entity_type: Annotated[str, Field(STRING)]
    match_type: Annotated[int, Field(INT8)]
    match: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class DescribeClientQuotasRequest(NamedTuple):
    """`strict`: only entities that have no other types than these."""

    components: Annotated[tuple[QuotaFilterComponent, ...], Field(ArrayOf(QuotaFilterComponent))] = ()
    strict: Annotated[bool, Field(BOOL)] = False


class QuotaEntityPart(NamedTuple):
    entity_type: Annotated[str, Field(STRING)]
    entity_name: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class QuotaValue(NamedTuple):
    key: Annotated[str, Field(STRING)]
    value: Annotated[float, Field(FLOAT64)]


class DescribedQuotas(NamedTuple):
    entity: Annotated[tuple[QuotaEntityPart, ...], Field(ArrayOf(QuotaEntityPart))]
    values: Annotated[tuple[QuotaValue, ...], Field(ArrayOf(QuotaValue))]


class DescribeClientQuotasResponse(NamedTuple):
    """`entries` is null if the whole request failed."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    entries: Annotated[tuple[DescribedQuotas, ...] | None, Field(ArrayOf(DescribedQuotas), nullable_since=0)] = None


DESCRIBE_CLIENT_QUOTAS_REQUEST: Final = Message(ApiKey.DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas request", DescribeClientQuotasRequest)
DESCRIBE_CLIENT_QUOTAS_RESPONSE: Final = Message(ApiKey.DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas response", DescribeClientQuotasResponse)


class QuotaOperation(NamedTuple):
    key: Annotated[str, Field(STRING)]
    value: Annotated[float, Field(FLOAT64)] = 0.0
    remove: Annotated[bool, Field(BOOL)] = False


class QuotasToAlter(NamedTuple):
    entity: Annotated[tuple[QuotaEntityPart, ...], Field(ArrayOf(QuotaEntityPart))]
    ops: Annotated[tuple[QuotaOperation, ...], Field(ArrayOf(QuotaOperation))] = ()


class AlterClientQuotasRequest(NamedTuple):
    entries: Annotated[tuple[QuotasToAlter, ...], Field(ArrayOf(QuotasToAlter))] = ()
    validate_only: Annotated[bool, Field(BOOL)] = False


class AlteredQuotas(NamedTuple):
    error_code: Annotated[int, Field(INT16)]
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)]
    entity: Annotated[tuple[QuotaEntityPart, ...], Field(ArrayOf(QuotaEntityPart))]


class AlterClientQuotasResponse(NamedTuple):
    """One result for each entity."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    entries: Annotated[tuple[AlteredQuotas, ...], Field(ArrayOf(AlteredQuotas))] = ()


ALTER_CLIENT_QUOTAS_REQUEST: Final = Message(ApiKey.ALTER_CLIENT_QUOTAS, "AlterClientQuotas request", AlterClientQuotasRequest)
ALTER_CLIENT_QUOTAS_RESPONSE: Final = Message(
    ApiKey.ALTER_CLIENT_QUOTAS,
    "AlterClientQuotas response",
    AlterClientQuotasResponse,
    error=lambda _version, request, code, text: AlterClientQuotasResponse(0, tuple(AlteredQuotas(code, text, each.entity) for each in request.entries)),
)
