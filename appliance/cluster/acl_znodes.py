"""Access control lists in ZooKeeper, as Kafka 3.9's AclAuthorizer keeps them: paths and documents.

Literal patterns are below `/kafka-acl`, prefixed ones below `/kafka-acl-extended/prefixed`, one node for each
pattern with all its rules. A change of a pattern leaves a sequential node in the change list of its store.
Pure. Weak spot: ZooKeeper's paths cannot hold every name (`path_problem`); Kafka fails on those, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import orjson

from appliance.cluster.znodes import DocumentUnreadable
from appliance.security.acl import AccessRule, AclOperation, AclPermission, AclResource, PatternType, ResourcePattern

CHANGE_PREFIX: Final = "acl_changes_"
_VERSION: Final = 1


def _pascal(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


RESOURCE_NAMES: Final = {resource: _pascal(resource.name) for resource in AclResource if resource > AclResource.ANY}
OPERATION_NAMES: Final = {operation: _pascal(operation.name) for operation in AclOperation if operation > AclOperation.ANY}
PERMISSION_NAMES: Final = {AclPermission.DENY: "Deny", AclPermission.ALLOW: "Allow"}
_RESOURCES: Final = {name.lower(): resource for resource, name in RESOURCE_NAMES.items()}
_OPERATIONS: Final = {name.lower(): operation for operation, name in OPERATION_NAMES.items()}
_PERMISSIONS: Final = {name.lower(): permission for permission, name in PERMISSION_NAMES.items()}


class AclStore(NamedTuple):
    """Where the patterns of one type are, and the notifications of their changes."""

    pattern: PatternType
    root: str
    changes: str

    def type_path(self, resource: AclResource) -> str:
        return f"{self.root}/{RESOURCE_NAMES[resource]}"

    def path(self, pattern: ResourcePattern) -> str:
        return f"{self.type_path(pattern.resource)}/{pattern.name}"

    def encode_change(self, pattern: ResourcePattern) -> bytes:
        if self.pattern == PatternType.LITERAL:
            return f"{RESOURCE_NAMES[pattern.resource]}:{pattern.name}".encode()
        return orjson.dumps({"version": _VERSION, "resourceType": pattern.resource.name, "name": pattern.name, "patternType": pattern.pattern.name})

    def decode_change(self, path: str, data: bytes) -> ResourcePattern:
        """Return the pattern that has changed. Raises DocumentUnreadable."""
        try:
            if self.pattern == PatternType.LITERAL:
                kind, colon, name = data.decode().partition(":")
                if colon:
                    return ResourcePattern(_RESOURCES[kind.lower()], name, PatternType.LITERAL)
            else:
                document = orjson.loads(data)
                resource, pattern = AclResource[document["resourceType"].upper()], PatternType[document["patternType"]]
                if resource in RESOURCE_NAMES and pattern == self.pattern:
                    return ResourcePattern(resource, str(document["name"]), pattern)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise DocumentUnreadable(f"znode {path} does not name a resource pattern: {data[:100]!r}")


LITERAL_STORE: Final = AclStore(PatternType.LITERAL, "/kafka-acl", "/kafka-acl-changes")
PREFIXED_STORE: Final = AclStore(PatternType.PREFIXED, "/kafka-acl-extended/prefixed", "/kafka-acl-extended-changes")
STORES: Final = (LITERAL_STORE, PREFIXED_STORE)
ACL_ROOTS: Final = tuple(store.type_path(resource) for store in STORES for resource in RESOURCE_NAMES) + tuple(store.changes for store in STORES)
"""Created empty at the start of every broker that has an authorizer."""


def store_of(pattern: ResourcePattern) -> AclStore:
    return LITERAL_STORE if pattern.pattern == PatternType.LITERAL else PREFIXED_STORE


def path_problem(name: str) -> str | None:
    """Return why a resource of this name cannot be kept in ZooKeeper, or None."""
    if "/" in name or name in (".", "..") or not name.isprintable():
        return f"ZooKeeper cannot hold a resource with the name {name!r}: a name has printable characters, no slash, and is neither '.' nor '..'"
    return None


def encode_rules(rules: Iterable[AccessRule]) -> bytes:
    acls = [
        {
            "principal": rule.principal,
            "permissionType": PERMISSION_NAMES[rule.permission],
            "operation": OPERATION_NAMES[rule.operation],
            "host": rule.host,
        }
        for rule in sorted(rules)
    ]
    return orjson.dumps({"version": _VERSION, "acls": acls})


def decode_rules(path: str, data: bytes) -> frozenset[AccessRule]:
    """Return the rules of one pattern. Raises DocumentUnreadable: a rule that is not understood may deny."""
    if not data:
        return frozenset()
    try:
        document: Any = orjson.loads(data)
        if document["version"] != _VERSION:
            raise DocumentUnreadable(f"znode {path} has version {document['version']!r}, expected {_VERSION}")
        return frozenset(_rule(each) for each in document["acls"])
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DocumentUnreadable(f"znode {path} holds no access control list: {type(problem).__name__} {problem}") from None


def _rule(document: Any) -> AccessRule:
    principal, host = document["principal"], document["host"]
    if not isinstance(principal, str) or not isinstance(host, str):
        raise TypeError("principal and host are texts")
    return AccessRule(principal, host, _OPERATIONS[document["operation"].lower()], _PERMISSIONS[document["permissionType"].lower()])
