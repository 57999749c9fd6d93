"""Read and change access control lists in ZooKeeper.

As in Kafka, any box may change them: a write has the version of what was read, and needs no controller. The
notification is part of the same transaction. A list that cannot be read denies everything on its pattern: it
may have denied something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.logging import Logger
from appliance.cluster.acl_znodes import ACL_ROOTS, CHANGE_PREFIX, RESOURCE_NAMES, STORES, AclStore, decode_rules, encode_rules, path_problem, store_of
from appliance.cluster.znodes import DocumentUnreadable
from appliance.security.acl import WILDCARD, WILDCARD_PRINCIPAL, AccessRule, AclOperation, AclPermission, ResourcePattern
from services.controller.zookeeper import broker_registry
from services.controller.zookeeper.config_changes import AGE_MAX_MS
from services.controller.zookeeper.operation import Operation, OwnWrites, all_of
from services.controller.zookeeper.requests import (
    BadVersion,
    Create,
    Delete,
    Get,
    GetChildren,
    MultiFailed,
    NodeExists,
    NoNode,
    SetData,
    Write,
    ZooKeeperFailed,
)

ATTEMPTS_MAX = 5
"""Attempts of a write when another box or tool writes the same list."""
DENY_ALL = AccessRule(WILDCARD_PRINCIPAL, WILDCARD, AclOperation.ALL, AclPermission.DENY)

Rules = frozenset[AccessRule]
RulesChange = Callable[[Rules], Rules]


class AclTree(NamedTuple):
    """The lists of all patterns, and the notifications that were there before they were read."""

    rules: dict[ResourcePattern, Rules]
    changes: dict[AclStore, frozenset[str]]


def load_acls(log: Logger) -> Operation[AclTree]:
    """Create the roots, watch the notifications, read all lists."""
    yield from broker_registry.create_missing(ACL_ROOTS)
    changes = {}
    for store in STORES:
        changes[store] = frozenset((yield GetChildren(store.changes, True)))
    patterns: list[ResourcePattern] = []
    for store in STORES:
        for resource in RESOURCE_NAMES:
            names = yield GetChildren(store.type_path(resource))
            patterns += [ResourcePattern(resource, name, store.pattern) for name in names]
    return AclTree((yield from read_rules(patterns, log)), changes)


def read_rules(patterns: Iterable[ResourcePattern], log: Logger) -> Operation[dict[ResourcePattern, Rules]]:
    """Read the lists of patterns; one without a node has no rules."""
    wanted = list(patterns)
    found: list[Any] = yield from all_of([Get(store_of(pattern).path(pattern)) for pattern in wanted])
    rules: dict[ResourcePattern, Rules] = {}
    for pattern, node in zip(wanted, found, strict=True):
        if isinstance(node, NoNode):
            rules[pattern] = frozenset()
        elif isinstance(node, ZooKeeperFailed):
            raise node
        else:
            rules[pattern] = _readable(store_of(pattern).path(pattern), node.data, log)
    return rules


def _readable(path: str, data: bytes, log: Logger) -> Rules:
    try:
        return decode_rules(path, data)
    except DocumentUnreadable as problem:
        log.error(f"could not read an access control list: {problem}; everything on its resources is denied until it is repaired or removed")
        return frozenset({DENY_ALL})


def follow_acl_changes(store: AclStore, known: frozenset[str], now_ms: int, log: Logger) -> Operation[AclTree]:
    """Watch the notifications of a store again; read the lists of which they report a change.

    Removes notifications that every broker has had time to read, as Kafka does.
    """
    names = frozenset((yield GetChildren(store.changes, True)))
    patterns = set()
    for name in sorted(names - known):
        path = f"{store.changes}/{name}"
        try:
            node = yield Get(path)
            patterns.add(store.decode_change(path, node.data))
        except NoNode:
            continue  # another broker removed it
        except DocumentUnreadable as problem:
            log.error(f"could not read a notification: {problem}")
    rules = yield from read_rules(patterns, log)
    for name in sorted(names):
        path = f"{store.changes}/{name}"
        try:
            node = yield Get(path)
            if now_ms - node.created_ms <= AGE_MAX_MS:
                break
            yield Delete(path)
        except NoNode:
            continue
    return AclTree(rules, {store: names})


def change_rules(pattern: ResourcePattern, change: RulesChange) -> Operation[tuple[Rules, Rules]]:
    """Apply `change` to the list of a pattern; return it before and after. Raises RequestRefused."""
    if problem := path_problem(pattern.name):
        raise RequestRefused(ErrorCode.INVALID_REQUEST, problem)
    store = store_of(pattern)
    path = store.path(pattern)
    for _attempt in range(ATTEMPTS_MAX):
        node = yield from broker_registry.read(path)
        try:
            former = decode_rules(path, node.data) if node is not None else frozenset()
        except DocumentUnreadable as unreadable:
            raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, f"{unreadable}; repair or remove the znode first") from unreadable
        rules = change(former)
        if rules == former:
            return former, rules
        write: Write
        if node is None:
            write = Create(path, encode_rules(rules))
        elif rules:
            write = SetData(path, encode_rules(rules), node.version)
        else:
            write = Delete(path, node.version)
        notification = Create(f"{store.changes}/{CHANGE_PREFIX}", store.encode_change(pattern), sequence=True)
        try:
            yield from OwnWrites().guard((write, notification))
        except MultiFailed as refused:
            if isinstance(refused.cause, BadVersion | NodeExists | NoNode):
                continue  # another box wrote it between our read and our write: read again
            raise
        return former, rules
    raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, f"the access control list of {pattern.name} was changed by others at the same time; try again")
