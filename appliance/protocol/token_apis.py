"""APIs of delegation tokens (KIP-48, KIP-373): messages as data.

`hmac` is the secret of a token: a client that has it can log in as the owner. `repr` does not show it.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BYTES, INT16, INT32, INT64, STRING, ArrayOf, Field, Message

NO_TIMESTAMP: Final = -1


class TokenPrincipal(NamedTuple):
    """An owner or a renewer."""

    principal_type: Annotated[str, Field(STRING)]
    principal_name: Annotated[str, Field(STRING)]


# -- CreateDelegationToken: without an owner for the client itself.


class CreateDelegationTokenRequest(NamedTuple):
    """`max_lifetime_ms` below 1: that of the box."""

    owner_principal_type: Annotated[str | None, Field(STRING, since=3, nullable_since=3)] = None
    owner_principal_name: Annotated[str | None, Field(STRING, since=3, nullable_since=3)] = None
    renewers: Annotated[tuple[TokenPrincipal, ...], Field(ArrayOf(TokenPrincipal))] = ()
    max_lifetime_ms: Annotated[int, Field(INT64)] = -1


class CreateDelegationTokenResponse(NamedTuple):
    """Owner, requester, times in milliseconds since 1970."""

    error_code: Annotated[int, Field(INT16)] = 0
    principal_type: Annotated[str, Field(STRING)] = ""
    principal_name: Annotated[str, Field(STRING)] = ""
    token_requester_principal_type: Annotated[str, Field(STRING, since=3)] = ""
    token_requester_principal_name: Annotated[str, Field(STRING, since=3)] = ""
    issue_timestamp_ms: Annotated[int, Field(INT64)] = NO_TIMESTAMP
    expiry_timestamp_ms: Annotated[int, Field(INT64)] = NO_TIMESTAMP
    max_timestamp_ms: Annotated[int, Field(INT64)] = NO_TIMESTAMP
    token_id: Annotated[str, Field(STRING)] = ""
    hmac: Annotated[bytes, Field(BYTES)] = b""
    throttle_time_ms: Annotated[int, Field(INT32)] = 0

    def __repr__(self) -> str:
        return f"CreateDelegationTokenResponse({self.error_code}, {self.token_id!r}, ***)"


CREATE_DELEGATION_TOKEN_REQUEST: Final = Message(ApiKey.CREATE_DELEGATION_TOKEN, "CreateDelegationToken request", CreateDelegationTokenRequest)
CREATE_DELEGATION_TOKEN_RESPONSE: Final = Message(
    ApiKey.CREATE_DELEGATION_TOKEN,
    "CreateDelegationToken response",
    CreateDelegationTokenResponse,
    error=lambda _version, request, code, _text: CreateDelegationTokenResponse(code, request.owner_principal_type or "", request.owner_principal_name or ""),
)


# -- RenewDelegationToken, ExpireDelegationToken: to the owner and the renewers.


class RenewDelegationTokenRequest(NamedTuple):
    """`renew_period_ms` from now on; negative: that of the box."""

    hmac: Annotated[bytes, Field(BYTES)]
    renew_period_ms: Annotated[int, Field(INT64)] = -1

    def __repr__(self) -> str:
        return f"RenewDelegationTokenRequest(***, {self.renew_period_ms})"


class ExpireDelegationTokenRequest(NamedTuple):
    """`expiry_time_period_ms` from now on; negative: now."""

    hmac: Annotated[bytes, Field(BYTES)]
    expiry_time_period_ms: Annotated[int, Field(INT64)] = -1

    def __repr__(self) -> str:
        return f"ExpireDelegationTokenRequest(***, {self.expiry_time_period_ms})"


class TokenExpiryResponse(NamedTuple):
    """Until when the token is valid now."""

    error_code: Annotated[int, Field(INT16)] = 0
    expiry_timestamp_ms: Annotated[int, Field(INT64)] = NO_TIMESTAMP
    throttle_time_ms: Annotated[int, Field(INT32)] = 0


RENEW_DELEGATION_TOKEN_REQUEST: Final = Message(ApiKey.RENEW_DELEGATION_TOKEN, "RenewDelegationToken request", RenewDelegationTokenRequest)
RENEW_DELEGATION_TOKEN_RESPONSE: Final = Message(
    ApiKey.RENEW_DELEGATION_TOKEN,
    "RenewDelegationToken response",
    TokenExpiryResponse,
    error=lambda _version, _request, code, _text: TokenExpiryResponse(code),
)
EXPIRE_DELEGATION_TOKEN_REQUEST: Final = Message(ApiKey.EXPIRE_DELEGATION_TOKEN, "ExpireDelegationToken request", ExpireDelegationTokenRequest)
EXPIRE_DELEGATION_TOKEN_RESPONSE: Final = Message(
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    "ExpireDelegationToken response",
    TokenExpiryResponse,
    error=lambda _version, _request, code, _text: TokenExpiryResponse(code),
)


# -- DescribeDelegationToken: with the secrets, to owners, requesters, renewers, and principals with a right to describe them.


class DescribeDelegationTokenRequest(NamedTuple):
    """Null: all tokens that the client may see; empty: none."""

    owners: Annotated[tuple[TokenPrincipal, ...] | None, Field(ArrayOf(TokenPrincipal), nullable_since=0)] = None


class DescribedDelegationToken(NamedTuple):
    principal_type: Annotated[str, Field(STRING)]
    principal_name: Annotated[str, Field(STRING)]
    token_requester_principal_type: Annotated[str, Field(STRING, since=3)] = ""
    token_requester_principal_name: Annotated[str, Field(STRING, since=3)] = ""
    issue_timestamp: Annotated[int, Field(INT64)] = 0
    expiry_timestamp: Annotated[int, Field(INT64)] = 0
    max_timestamp: Annotated[int, Field(INT64)] = 0
    token_id: Annotated[str, Field(STRING)] = ""
    hmac: Annotated[bytes, Field(BYTES)] = b""
    renewers: Annotated[tuple[TokenPrincipal, ...], Field(ArrayOf(TokenPrincipal))] = ()

    def __repr__(self) -> str:
        return f"DescribedDelegationToken({self.token_id!r}, ***)"


class DescribeDelegationTokenResponse(NamedTuple):
    error_code: Annotated[int, Field(INT16)] = 0
    tokens: Annotated[tuple[DescribedDelegationToken, ...], Field(ArrayOf(DescribedDelegationToken))] = ()
    throttle_time_ms: Annotated[int, Field(INT32)] = 0


DESCRIBE_DELEGATION_TOKEN_REQUEST: Final = Message(ApiKey.DESCRIBE_DELEGATION_TOKEN, "DescribeDelegationToken request", DescribeDelegationTokenRequest)
DESCRIBE_DELEGATION_TOKEN_RESPONSE: Final = Message(
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    "DescribeDelegationToken response",
    DescribeDelegationTokenResponse,
    error=lambda _version, _request, code, _text: DescribeDelegationTokenResponse(code),
)
