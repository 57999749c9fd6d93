"""APIs about authentication: messages as data.

SaslHandshake and SaslAuthenticate come before all other requests of a listener with SASL, and again when a
session is to be extended (KIP-368). DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554)
administer the users. The bytes of tokens are those of the mechanism (`appliance/security/scram.py`).
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BYTES, INT8, INT16, INT32, INT64, STRING, ArrayOf, Field, Message

# -- SaslHandshake: choose a mechanism.


class SaslHandshakeRequest(NamedTuple):
    mechanism: Annotated[str, Field(STRING)]


class SaslHandshakeResponse(NamedTuple):
    """NONE or an error, and the mechanisms of the listener."""

    error_code: Annotated[int, Field(INT16)] = 0
    mechanisms: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()


SASL_HANDSHAKE_REQUEST: Final = Message(ApiKey.SASL_HANDSHAKE, "SaslHandshake request", SaslHandshakeRequest)
SASL_HANDSHAKE_RESPONSE: Final = Message(ApiKey.SASL_HANDSHAKE, "SaslHandshake response", SaslHandshakeResponse)


# -- SaslAuthenticate: one token of the mechanism.


class SaslAuthenticateRequest(NamedTuple):
    auth_bytes: Annotated[bytes, Field(BYTES)]


class SaslAuthenticateResponse(NamedTuple):
    """The token in return. `session_lifetime_ms` 0: for ever."""

    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    auth_bytes: Annotated[bytes, Field(BYTES)] = b""
    session_lifetime_ms: Annotated[int, Field(INT64, since=1)] = 0


SASL_AUTHENTICATE_REQUEST: Final = Message(ApiKey.SASL_AUTHENTICATE, "SaslAuthenticate request", SaslAuthenticateRequest)
SASL_AUTHENTICATE_RESPONSE: Final = Message(ApiKey.SASL_AUTHENTICATE, "SaslAuthenticate response", SaslAuthenticateResponse)


# -- DescribeUserScramCredentials: mechanisms and iterations, no material.


class ScramUserName(NamedTuple):
    name: Annotated[str, Field(STRING)]


class DescribeUserScramCredentialsRequest(NamedTuple):
    """Null or empty: all users."""

    users: Annotated[tuple[ScramUserName, ...] | None, Field(ArrayOf(ScramUserName), nullable_since=0)] = None


class ScramCredentialInfo(NamedTuple):
    mechanism: Annotated[int, Field(INT8)]
    iterations: Annotated[int, Field(INT32)]


class DescribedScramUser(NamedTuple):
    user: Annotated[str, Field(STRING)]
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    credential_infos: Annotated[tuple[ScramCredentialInfo, ...], Field(ArrayOf(ScramCredentialInfo))] = ()


class DescribeUserScramCredentialsResponse(NamedTuple):
    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    results: Annotated[tuple[DescribedScramUser, ...], Field(ArrayOf(DescribedScramUser))] = ()


DESCRIBE_USER_SCRAM_CREDENTIALS_REQUEST: Final = Message(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentials request", DescribeUserScramCredentialsRequest
)
DESCRIBE_USER_SCRAM_CREDENTIALS_RESPONSE: Final = Message(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentials response", DescribeUserScramCredentialsResponse
)


# -- AlterUserScramCredentials: set and remove credentials. The client derives them, so no password is sent.


class ScramCredentialDeletion(NamedTuple):
    name: Annotated[str, Field(STRING)]
    mechanism: Annotated[int, Field(INT8)]


class ScramCredentialUpsertion(NamedTuple):
    name: Annotated[str, Field(STRING)]
    mechanism: Annotated[int, Field(INT8)]
    iterations: Annotated[int, Field(INT32)]
    salt: Annotated[bytes, Field(BYTES)] = b""
    salted_password: Annotated[bytes, Field(BYTES)] = b""


class AlterUserScramCredentialsRequest(NamedTuple):
    deletions: Annotated[tuple[ScramCredentialDeletion, ...], Field(ArrayOf(ScramCredentialDeletion))] = ()
    upsertions: Annotated[tuple[ScramCredentialUpsertion, ...], Field(ArrayOf(ScramCredentialUpsertion))] = ()


class AlteredScramUser(NamedTuple):
    user: Annotated[str, Field(STRING)]
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class AlterUserScramCredentialsResponse(NamedTuple):
    """One result for each user."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    results: Annotated[tuple[AlteredScramUser, ...], Field(ArrayOf(AlteredScramUser))] = ()


def altered_users(request: AlterUserScramCredentialsRequest) -> tuple[str, ...]:
    """Return the users of a request, each once."""
    return tuple(dict.fromkeys([*(each.name for each in request.deletions), *(each.name for each in request.upsertions)]))


ALTER_USER_SCRAM_CREDENTIALS_REQUEST: Final = Message(
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "AlterUserScramCredentials request", AlterUserScramCredentialsRequest
)
ALTER_USER_SCRAM_CREDENTIALS_RESPONSE: Final = Message(
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    "AlterUserScramCredentials response",
    AlterUserScramCredentialsResponse,
    error=lambda _version, request, code, text: AlterUserScramCredentialsResponse(
        0, tuple(AlteredScramUser(user, code, text) for user in altered_users(request))
    ),
)
