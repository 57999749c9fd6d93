"""SCRAM users. The client derives the credentials, so a password is never sent."""

from __future__ import annotations

import os
from collections.abc import Sequence

from appliance.base.errors import ErrorCode
from appliance.client.cluster import ClusterClient
from appliance.client.errors import ALTER, DESCRIBE, refused
from appliance.client.messages import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS
from appliance.protocol.sasl_apis import (
    AlterUserScramCredentialsRequest,
    DescribedScramUser,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    ScramUserName,
)
from appliance.security.scram import SALT_BYTES, ScramMechanism, salted_password

TIMEOUT_MS = 35_000
"""The controller answers within 30 s."""


def describe_users(cluster: ClusterClient, names: Sequence[str] = (), purpose: str = "list users", right: str = DESCRIBE) -> list[DescribedScramUser]:
    """Return these users, or all; those without credentials are left out. Raises RequestRefused; `purpose` and `right` are those of the caller."""
    request = DescribeUserScramCredentialsRequest(tuple(map(ScramUserName, names)) or None)
    response = cluster.ask_controller(DESCRIBE_USER_SCRAM_CREDENTIALS, request, TIMEOUT_MS)
    if response.error_code:
        raise refused(response.error_code, purpose, response.error_message, right)
    found = []
    for user in response.results:
        if user.error_code == ErrorCode.NONE:
            found.append(user)
        elif user.error_code != ErrorCode.RESOURCE_NOT_FOUND:
            raise refused(user.error_code, purpose, user.error_message, right)
    return found


def set_password(cluster: ClusterClient, name: str, password: str, mechanisms: Sequence[ScramMechanism], iterations: int) -> None:
    """Create a user, or replace its credentials. Raises RequestRefused."""
    upsertions = []
    for mechanism in mechanisms:
        salt = os.urandom(SALT_BYTES)
        upsertions.append(ScramCredentialUpsertion(name, mechanism, iterations, salt, salted_password(mechanism, password, salt, iterations)))
    _alter(cluster, AlterUserScramCredentialsRequest((), tuple(upsertions)), f"set the password of user {name!r}")


def delete_user(cluster: ClusterClient, user: DescribedScramUser) -> None:
    """Remove all credentials of a user. Raises RequestRefused."""
    deletions = tuple(ScramCredentialDeletion(user.user, info.mechanism) for info in user.credential_infos)
    _alter(cluster, AlterUserScramCredentialsRequest(deletions), f"delete user {user.user!r}")


def _alter(cluster: ClusterClient, request: AlterUserScramCredentialsRequest, purpose: str) -> None:
    for result in cluster.ask_controller(ALTER_USER_SCRAM_CREDENTIALS, request, TIMEOUT_MS).results:
        if result.error_code:
            raise refused(result.error_code, purpose, result.error_message, ALTER)
