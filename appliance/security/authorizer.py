"""What a principal may do: Kafka's StandardAuthorizer over a list of bindings.

Deny comes first; without a binding that matches, access is denied, or allowed if the resource has no binding
at all and `allow.everyone.if.no.acl.found` is set. Super users may do everything. `Rights` are those of one
principal on one host; they keep their decisions, so a repeated question is one look-up in a dict.
`Authorizer.replace` installs another list and forgets all decisions; holders keep their `Rights`.
Pure. Owned by one process. Weak spot: the first question of a principal goes through all bindings of that principal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakValueDictionary

from appliance.security.acl import (
    CLUSTER_NAME,
    IMPLIED_BY,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AccessRule,
    AclBinding,
    AclOperation,
    AclPermission,
    AclResource,
    PatternType,
    java_host,
)

DECISIONS_MAX: Final = 10_000
"""Decisions that one `Rights` keeps; then it starts again."""
_PROBE: Final = "hardcode"
"""The name that Kafka asks about to recognise principals that may do everything."""


def _bit(operation: AclOperation) -> int:
    return 1 << operation


_ALLOWED_BY: Final = {operation: _bit(operation) | _bit(AclOperation.ALL) | sum(map(_bit, IMPLIED_BY.get(operation, ()))) for operation in AclOperation}
_DENIED_BY: Final = {operation: _bit(operation) | _bit(AclOperation.ALL) for operation in AclOperation}


class _Masks:
    """The operations that the bindings of one pattern allow and deny, as bits."""

    __slots__ = ("allowed", "denied")

    def __init__(self) -> None:
        self.allowed = 0
        self.denied = 0


class _Patterns:
    """The patterns of one resource type that concern one principal on one host."""

    __slots__ = ("_prefix_lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _Masks] = {}
        self.prefixed: dict[str, _Masks] = {}
        self._prefix_lengths: tuple[int, ...] = ()

    def add(self, pattern: PatternType, name: str, rule: AccessRule) -> None:
        by_name = self.literal if pattern == PatternType.LITERAL else self.prefixed
        masks = by_name.get(name)
        if masks is None:
            masks = by_name[name] = _Masks()
            self._prefix_lengths = tuple(sorted(set(map(len, self.prefixed))))
        if rule.permission == AclPermission.ALLOW:
            masks.allowed |= _bit(rule.operation)
        else:
            masks.denied |= _bit(rule.operation)

    def masks_of(self, name: str) -> tuple[int, int]:
        """Return what all patterns that match the name allow and deny."""
        allowed = denied = 0
        for wanted in (WILDCARD, name):
            masks = self.literal.get(wanted)
            if masks is not None:
                allowed |= masks.allowed
                denied |= masks.denied
        for length in self._prefix_lengths:
            if length > len(name):
                break
            masks = self.prefixed.get(name[:length])
            if masks is not None:
                allowed |= masks.allowed
                denied |= masks.denied
        return allowed, denied

    def matches(self, name: str) -> bool:
        """True if a pattern matches the name."""
        if name in self.literal or WILDCARD in self.literal:
            return True
        return any(name[:length] in self.prefixed for length in self._prefix_lengths if length <= len(name))

    def allows_any(self, operation: AclOperation) -> bool:
        """True if the operation is allowed on any name, by the rules of `authorizeByResourceType`: without
        implied operations, and a pattern does not count if denied patterns cover all of it."""
        wanted = _DENIED_BY[operation]
        everything = self.literal.get(WILDCARD)
        if everything is not None and everything.denied & wanted:
            return False
        if everything is not None and everything.allowed & wanted:
            return True
        denied = {name for name, masks in self.prefixed.items() if masks.denied & wanted}
        for by_name, is_literal in ((self.literal, True), (self.prefixed, False)):
            for name, masks in by_name.items():
                if not masks.allowed & wanted or (is_literal and masks.denied & wanted):
                    continue
                if not any(name[:length] in denied for length in range(1, len(name) + 1)):
                    return True
        return False


class Rights:
    """What one principal may do from one host. Kept by connections; `Authorizer.replace` renews it."""

    __slots__ = ("__weakref__", "_by_resource", "_decisions", "_is_privileged", "authorizer", "host", "is_super_user", "principal")

    def __init__(self, authorizer: Authorizer, principal: str, host: str, is_privileged: bool = False) -> None:
        """`is_privileged`: a super user, whatever the setting says."""
        self.authorizer = authorizer
        self.principal = principal
        self.host = host
        self._is_privileged = is_privileged
        self._decisions: dict[tuple[AclOperation, AclResource, str], bool] = {}
        self.renew()

    def renew(self) -> None:
        """Forget all decisions: the bindings are other ones."""
        self._decisions.clear()
        self.is_super_user = self._is_privileged or self.principal in self.authorizer.super_users
        self._by_resource: dict[AclResource, _Patterns] | None = None

    def allows(self, operation: AclOperation, resource: AclResource, name: str) -> bool:
        """True if the operation is allowed on the resource. A denial is reported to `Authorizer.on_denied`."""
        key = operation, resource, name
        decision = self._decisions.get(key)
        if decision:
            return True
        if decision is None and self._decide_once(key):
            return True
        if self.authorizer.on_denied is not None:
            self.authorizer.on_denied(self, operation, resource, name)
        return False

    def would_allow(self, operation: AclOperation, resource: AclResource, name: str) -> bool:
        """As `allows`, where a denial is none of the client's request: what it may see of all, or one of two rights that suffice."""
        key = operation, resource, name
        decision = self._decisions.get(key)
        return self._decide_once(key) if decision is None else decision

    def allows_on_cluster(self, operation: AclOperation) -> bool:
        return self.allows(operation, AclResource.CLUSTER, CLUSTER_NAME)

    def would_allow_on_cluster(self, operation: AclOperation) -> bool:
        return self.would_allow(operation, AclResource.CLUSTER, CLUSTER_NAME)

    def _decide_once(self, key: tuple[AclOperation, AclResource, str]) -> bool:
        if len(self._decisions) >= DECISIONS_MAX:
            self._decisions.clear()
        decision = self._decisions[key] = self._decide(*key)
        return decision

    def allows_any(self, operation: AclOperation, resource: AclResource) -> bool:
        """True if the operation is allowed on at least one resource of the type, whether or not it exists."""
        if self.would_allow(operation, resource, _PROBE):
            return True
        patterns = self._patterns().get(resource)
        return patterns is not None and patterns.allows_any(operation)

    def operations(self, resource: AclResource, name: str) -> int:
        """Return the allowed operations as bits (KIP-430)."""
        return sum(_bit(operation) for operation in SUPPORTED_OPERATIONS[resource] if self.would_allow(operation, resource, name))

    def _decide(self, operation: AclOperation, resource: AclResource, name: str) -> bool:
        if self.is_super_user:
            return True
        patterns = self._patterns().get(resource)
        if patterns is not None:
            allowed, denied = patterns.masks_of(name)
            if denied & _DENIED_BY[operation]:
                return False
            if allowed & _ALLOWED_BY[operation]:
                return True
        return self.authorizer.allow_without_bindings and not self.authorizer.has_bindings(resource, name)

    def _patterns(self) -> dict[AclResource, _Patterns]:
        if self._by_resource is None:
            self._by_resource = {}
            for principal in {self.principal, WILDCARD_PRINCIPAL}:
                for binding in self.authorizer.bindings_of(principal):
                    if binding.host in (WILDCARD, self.host):
                        self._by_resource.setdefault(binding.resource, _Patterns()).add(binding.pattern, binding.name, binding.rule)
        return self._by_resource


class Authorizer:
    """The bindings of a cluster, and the rights that follow from them."""

    def __init__(self, super_users: Iterable[str] = (), allow_without_bindings: bool = False) -> None:
        """`super_users` as `User:NAME`; `allow_without_bindings`: `allow.everyone.if.no.acl.found`."""
        self.super_users = frozenset(super_users)
        self.allow_without_bindings = allow_without_bindings
        self.on_denied: Callable[[Rights, AclOperation, AclResource, str], None] | None = None
        """what audits denials"""
        self._by_principal: dict[str, list[AclBinding]] = {}
        self._all: dict[AclResource, _Patterns] = {}
        self._rights: WeakValueDictionary[tuple[str, str, bool], Rights] = WeakValueDictionary()

    def replace(self, bindings: Iterable[AclBinding]) -> None:
        """Install all bindings of the cluster."""
        self._by_principal = {}
        self._all = {}
        for binding in bindings:
            self._by_principal.setdefault(binding.principal, []).append(binding)
            self._all.setdefault(binding.resource, _Patterns()).add(binding.pattern, binding.name, binding.rule)
        for rights in list(self._rights.values()):
            rights.renew()

    def rights_of(self, principal: str, address: str, is_privileged: bool = False) -> Rights:
        """Return the rights of a principal at a client's address, the same object for the same values."""
        key = principal, address, is_privileged
        rights = self._rights.get(key)
        if rights is None:
            rights = self._rights[key] = Rights(self, principal, java_host(address), is_privileged)
        return rights

    def bindings_of(self, principal: str) -> Iterable[AclBinding]:
        return self._by_principal.get(principal, ())

    def has_bindings(self, resource: AclResource, name: str) -> bool:
        """True if any principal has a binding, of either permission, that matches the resource."""
        patterns = self._all.get(resource)
        return patterns is not None and patterns.matches(name)


def super_users_of(setting: str) -> frozenset[str]:
    """Return the principals in `super.users`, which separates them by `;`. Raises ValueError."""
    users = [user.strip() for user in setting.split(";") if user.strip()]
    for user in users:
        if ":" not in user:
            raise ValueError(f"{user!r} is no principal: it has the form User:NAME")
    return frozenset(users)
