"""Kafka's StandardAuthorizer and ours answer the same questions: principal x host x operation x resource x pattern."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest

from appliance.security.acl import CLUSTER_NAME, SUPPORTED_OPERATIONS, AclBinding, AclOperation, AclPermission, AclResource, PatternType
from appliance.security.authorizer import Authorizer, super_users_of
from lab.acl_oracle import answers, question, scenario
from lab.real_kafka import skip_without_kafka

pytestmark = [pytest.mark.system, pytest.mark.slow]

PRINCIPALS = ("User:alice", "User:bob", "User:CN=box,O=Ä", "Group:alice", "User:ANONYMOUS")
HOSTS = ("10.0.0.1", "10.0.0.2", "::1")
NAMES = ("a", "ab", "abc", "abcd", "b", "hardcode", "*", "é")
PATTERNS = ("a", "ab", "abc", "b", "h", "*", "é", "hardcode")
SCENARIOS = 60


def generated(chance: random.Random) -> list[AclBinding]:
    """Up to 30 bindings, drawn so that literal names, prefixes, wildcards and denials meet."""
    bindings = []
    for _ in range(chance.randrange(30)):
        resource = chance.choice([AclResource.TOPIC] * 3 + [AclResource.GROUP, AclResource.CLUSTER, AclResource.TRANSACTIONAL_ID])
        name = CLUSTER_NAME if resource is AclResource.CLUSTER else chance.choice(PATTERNS)
        pattern = PatternType.LITERAL if name == "*" else chance.choice((PatternType.LITERAL, PatternType.PREFIXED))
        principal = chance.choice((*PRINCIPALS[:4], "User:*"))
        host = chance.choice(("*", "10.0.0.1", "0:0:0:0:0:0:0:1", "::1"))
        operation = chance.choice([AclOperation.ALL, *sorted(SUPPORTED_OPERATIONS[resource])])
        permission = chance.choice([AclPermission.ALLOW] * 3 + [AclPermission.DENY])
        bindings.append(AclBinding(resource, name, pattern, principal, host, operation, permission))
    return list(dict.fromkeys(bindings))


def test_every_answer_is_that_of_kafkas_authorizer(tmp_path: Path) -> None:
    skip_without_kafka()
    chance = random.Random(20261123)
    lines: list[str] = []
    asked: list[str] = []
    ours: list[bool] = []
    for number in range(SCENARIOS):
        bindings = generated(chance)
        super_users, everyone = ("User:bob;Group:x" if number % 5 == 0 else ""), number % 3 == 0
        authorizer = Authorizer(super_users_of(super_users), everyone)
        authorizer.replace(bindings)
        lines += scenario(bindings, super_users, everyone)
        for principal, host in product(PRINCIPALS, HOSTS):
            rights = authorizer.rights_of(principal, host)
            for resource, operations in SUPPORTED_OPERATIONS.items():
                for operation in sorted(operations):
                    asked.append(question(principal, host, operation, resource, None))
                    ours.append(rights.allows_any(operation, resource))
                    lines.append(asked[-1])
                    for name in (CLUSTER_NAME,) if resource is AclResource.CLUSTER else NAMES:
                        asked.append(question(principal, host, operation, resource, name))
                        ours.append(rights.allows(operation, resource, name))
                        lines.append(asked[-1])
    theirs = answers(lines, tmp_path)
    assert len(theirs) == len(ours) > 100_000
    different = [f"{line}: Kafka {judge}" for line, judge, mine in zip(asked, theirs, ours, strict=True) if judge != mine]
    assert not different, f"{len(different)} of {len(ours)}: {different[:10]}"
    assert 0.05 < sum(ours) / len(ours) < 0.95
