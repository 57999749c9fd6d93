"""Access control lists as Kafka has them: bindings, their wire numbers, filters, and what a new one must be.

A binding allows or denies one operation on the resources of a pattern to one principal from one host. The
numbers are those of Kafka's protocol (`AclOperation`, `ResourceType`, `PatternType`, `AclPermissionType`).
Pure. Weak spot: hosts are compared as text, so an IPv6 address must be written as Java writes it
(`0:0:0:0:0:0:0:1`), as in Kafka; `java_host` does that for the addresses of clients.
"""

from __future__ import annotations

import ipaddress
from enum import IntEnum
from typing import Final, NamedTuple

WILDCARD: Final = "*"
"""As a literal name: all resources of the type. As a host: all hosts."""
WILDCARD_PRINCIPAL: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The only resource of the type CLUSTER."""


class AclResource(IntEnum):
    """Kinds of resource."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of a pattern matches. ANY and MATCH are for filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What a principal does. ANY is for filters, ALL for bindings."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class AclPermission(IntEnum):
    """ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


IMPLIED_BY: Final = {
    AclOperation.DESCRIBE: (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}
"""An operation is also allowed by a binding that allows one of these; denying them denies nothing else."""

_O = AclOperation
SUPPORTED_OPERATIONS: Final[dict[AclResource, frozenset[AclOperation]]] = {
    AclResource.TOPIC: frozenset({_O.READ, _O.WRITE, _O.CREATE, _O.DESCRIBE, _O.DELETE, _O.ALTER, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}),
    AclResource.GROUP: frozenset({_O.READ, _O.DESCRIBE, _O.DELETE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}),
    AclResource.CLUSTER: frozenset({_O.CREATE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.IDEMPOTENT_WRITE, _O.ALTER, _O.DESCRIBE}),
    AclResource.TRANSACTIONAL_ID: frozenset({_O.DESCRIBE, _O.WRITE}),
    AclResource.DELEGATION_TOKEN: frozenset({_O.DESCRIBE}),
    AclResource.USER: frozenset({_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS}),
}
"""What can be done to a resource, in Kafka 3.9."""


class ResourcePattern(NamedTuple):
    """The resources that a binding is about."""

    resource: AclResource
    name: str
    pattern: PatternType


class AccessRule(NamedTuple):
    """Which operation a principal is allowed or denied, and from which host. `principal` is `User:NAME`."""

    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission


class AclBinding(NamedTuple):
    """One line of the access control list."""

    resource: AclResource
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission

    @classmethod
    def of(cls, pattern: ResourcePattern, rule: AccessRule) -> AclBinding:
        return cls(pattern.resource, pattern.name, pattern.pattern, rule.principal, rule.host, rule.operation, rule.permission)

    @property
    def resources(self) -> ResourcePattern:
        return ResourcePattern(self.resource, self.name, self.pattern)

    @property
    def rule(self) -> AccessRule:
        return AccessRule(self.principal, self.host, self.operation, self.permission)


class AclFilter(NamedTuple):
    """Which bindings a request is about. None: any value."""

    resource: AclResource = AclResource.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    def matches(self, binding: AclBinding) -> bool:
        return (
            self.matches_pattern(binding.resources)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (AclOperation.ANY, binding.operation)
            and self.permission in (AclPermission.ANY, binding.permission)
        )

    def matches_pattern(self, wanted: ResourcePattern) -> bool:
        """True for a pattern with this type and name; with MATCH, for each pattern that applies to the name."""
        if self.resource not in (AclResource.ANY, wanted.resource):
            return False
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, wanted.pattern):
            return False
        if self.name is None or self.name == wanted.name:
            return True
        if self.pattern != PatternType.MATCH:
            return False
        return wanted.name == WILDCARD if wanted.pattern == PatternType.LITERAL else self.name.startswith(wanted.name)


def binding_problem(binding: AclBinding) -> str | None:
    """Return why Kafka refuses to create a binding, or None."""
    if binding.resource == AclResource.CLUSTER and binding.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not binding.name:
        return "Invalid empty resource name"
    if binding.resource in (AclResource.UNKNOWN, AclResource.ANY):
        return f"Invalid resourceType {binding.resource.name}"
    if binding.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {binding.pattern.name}"
    if binding.operation in (AclOperation.UNKNOWN, AclOperation.ANY):
        return f"Invalid operation {binding.operation.name}"
    if binding.permission not in (AclPermission.DENY, AclPermission.ALLOW):
        return f"Invalid permissionType {binding.permission.name}"
    if ":" not in binding.principal:
        return f"Could not parse principal from `{binding.principal}` (no colon is present separating the principal type from the principal name)"
    return None


def java_host(address: str) -> str:
    """Return an address as Java's `getHostAddress` writes it; an IPv4-mapped one as IPv4."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return ":".join(f"{int(part, 16):x}" for part in parsed.exploded.split(":"))
