"""Access control lists as Kafka's AclAuthorizer has them in ZooKeeper, byte for byte."""

from __future__ import annotations

import orjson
import pytest

from appliance.cluster.acl_znodes import ACL_ROOTS, LITERAL_STORE, PREFIXED_STORE, decode_rules, encode_rules, path_problem, store_of
from appliance.cluster.znodes import DocumentUnreadable
from appliance.security.acl import AccessRule, AclOperation, AclPermission, AclResource, PatternType, ResourcePattern

RULE = AccessRule("User:a", "*", AclOperation.READ, AclPermission.ALLOW)
LITERAL = ResourcePattern(AclResource.TRANSACTIONAL_ID, "payments", PatternType.LITERAL)
PREFIXED = ResourcePattern(AclResource.TOPIC, "app-", PatternType.PREFIXED)


def test_a_list_is_written_as_kafka_writes_it() -> None:
    expected = b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Read","host":"*"}]}'
    assert encode_rules([RULE]) == expected
    assert decode_rules("/p", expected) == {RULE}


@pytest.mark.parametrize("operation", [operation for operation in AclOperation if operation > AclOperation.ANY])
def test_every_operation_and_permission_has_kafkas_name(operation: AclOperation) -> None:
    rules = {RULE._replace(operation=operation, permission=permission) for permission in (AclPermission.ALLOW, AclPermission.DENY)}
    assert decode_rules("/p", encode_rules(rules)) == rules
    assert orjson.loads(encode_rules(rules))["acls"][0]["operation"].lower() == operation.name.replace("_", "").lower()


def test_paths_and_notifications_are_kafkas() -> None:
    assert store_of(LITERAL).path(LITERAL) == "/kafka-acl/TransactionalId/payments"
    assert store_of(PREFIXED).path(PREFIXED) == "/kafka-acl-extended/prefixed/Topic/app-"
    assert LITERAL_STORE.encode_change(LITERAL) == b"TransactionalId:payments"
    assert PREFIXED_STORE.encode_change(PREFIXED) == b'{"version":1,"resourceType":"TOPIC","name":"app-","patternType":"PREFIXED"}'
    for store, pattern in ((LITERAL_STORE, LITERAL), (PREFIXED_STORE, PREFIXED)):
        assert store.decode_change("/p", store.encode_change(pattern)) == pattern
    assert {"/kafka-acl/User", "/kafka-acl-extended/prefixed/Cluster", "/kafka-acl-changes", "/kafka-acl-extended-changes"} <= set(ACL_ROOTS)


def test_a_name_may_have_colons() -> None:
    pattern = LITERAL._replace(resource=AclResource.USER, name="User:alice")
    assert LITERAL_STORE.decode_change("/p", LITERAL_STORE.encode_change(pattern)) == pattern


@pytest.mark.parametrize(
    "data",
    [b"x", b"[]", b'{"version":2,"acls":[]}', b'{"version":1}', b'{"version":1,"acls":[{}]}', b'{"version":1,"acls":[1]}',
     b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Maybe","operation":"Read","host":"*"}]}',
     b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Any","host":"*"}]}',
     b'{"version":1,"acls":[{"principal":7,"permissionType":"Allow","operation":"Read","host":"*"}]}'],
)  # fmt: skip
def test_a_list_that_is_not_understood_is_not_guessed(data: bytes) -> None:
    with pytest.raises(DocumentUnreadable):
        decode_rules("/p", data)


@pytest.mark.parametrize("data", [b"", b"Topic", b"Planet:x", b"\xff:a", b"{}", b"[]"])
@pytest.mark.parametrize("store", [LITERAL_STORE, PREFIXED_STORE])
def test_a_notification_that_names_no_pattern_is_refused(store: object, data: bytes) -> None:
    with pytest.raises(DocumentUnreadable):
        store.decode_change("/p", data)  # type: ignore[attr-defined]


def test_names_that_are_no_znode_names_are_refused() -> None:
    assert path_problem("User:CN=a,O=b") is None
    assert all(path_problem(name) for name in ("a/b", ".", "..", "a\0", "a\n"))
