"""Delegation tokens (KIP-48, KIP-373): what one is, which principals change it, and until when it is valid.

The secret of a token is the HMAC of its id with a key that the boxes share, so nothing that is stored suffices to
log in. Pure. Weak: a token of another key than this box's is known here, and nothing can log in with it.
"""

from __future__ import annotations

import base64
import hmac
from typing import Final, NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.security.principals import LOCAL_NAMES, USER_TYPE, Principal
from appliance.security.scram import NAME_MAX

TOKENS_MAX: Final = 10_000
"""Each takes about 0.5 KB in ZooKeeper and in each process that reads the image."""
TOKENS_OF_REQUESTER_MAX: Final = 1_000
RENEWERS_MAX: Final = 100


class TokenLimits(NamedTuple):
    """Settings `delegation.token.max.lifetime.ms` and `delegation.token.expiry.time.ms`."""

    lifetime_ms: int
    expiry_ms: int


class DelegationToken(NamedTuple):
    """A token without its secret. Times in milliseconds since 1970."""

    token_id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int

    def concerns(self, principal: Principal) -> bool:
        """Return whether the principal may see it without any right."""
        return principal in (self.owner, self.requester, *self.renewers)

    def is_expired(self, now_ms: int) -> bool:
        return min(self.max_ms, self.expires_ms) < now_ms

    def with_expiry(self, expires_ms: int) -> DelegationToken:
        return self._replace(expires_ms=min(self.max_ms, expires_ms))

    def renewed(self, by: Principal, period_ms: int, now_ms: int, limits: TokenLimits) -> DelegationToken:
        """Return it with another expiry. `period_ms` negative: that of the box. Raises RequestRefused."""
        self._check_changer(by)
        self._check_expiry(now_ms)
        return self.with_expiry(now_ms + (limits.expiry_ms if period_ms < 0 else period_ms))

    def expired(self, by: Principal, period_ms: int, now_ms: int) -> DelegationToken | None:
        """Return it with an expiry after `period_ms`; None: it ends now, because that is negative. Raises RequestRefused."""
        self._check_changer(by)
        if period_ms < 0:
            return None
        self._check_expiry(now_ms)
        return self.with_expiry(now_ms + period_ms)

    def _check_changer(self, by: Principal) -> None:
        if by not in (self.owner, *self.renewers):
            raise RequestRefused(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, "neither the owner of the token nor a renewer")

    def _check_expiry(self, now_ms: int) -> None:
        if self.is_expired(now_ms):
            raise RequestRefused(ErrorCode.DELEGATION_TOKEN_EXPIRED, "the token has expired")


class WantedToken(NamedTuple):
    """What a CreateDelegationToken asks for. `lifetime_ms` below 1: that of the box."""

    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    lifetime_ms: int

    def check(self) -> None:
        """Raise RequestRefused for principals that a token cannot have: of users alone, because a login by it is a user's."""
        if any(each.kind != USER_TYPE for each in (self.owner, *self.renewers)):
            raise RequestRefused(ErrorCode.INVALID_PRINCIPAL_TYPE, f"a principal of another type than {USER_TYPE}")
        if self.owner.name.startswith(LOCAL_NAMES):
            raise RequestRefused(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "users on the Unix socket cannot log in elsewhere; name an owner")
        if len(self.renewers) > RENEWERS_MAX or any(not 0 < len(each.name) <= NAME_MAX for each in (self.owner, *self.renewers)):
            raise RequestRefused(ErrorCode.POLICY_VIOLATION, f"more than {RENEWERS_MAX} renewers, or a name without or with more than {NAME_MAX} characters")

    def issued(self, token_id: str, now_ms: int, limits: TokenLimits) -> DelegationToken:
        max_ms = now_ms + (limits.lifetime_ms if self.lifetime_ms <= 0 else min(self.lifetime_ms, limits.lifetime_ms))
        return DelegationToken(token_id, self.owner, self.requester, self.renewers, now_ms, min(max_ms, now_ms + limits.expiry_ms), max_ms)


def secret_of(token_id: str, key: str) -> bytes:
    """Return the HMAC that a client shows."""
    return hmac.digest(key.encode(), token_id.encode(), "sha512")


def password_of(secret: bytes) -> str:
    """Return what a client of SCRAM has as its password."""
    return base64.b64encode(secret).decode()
