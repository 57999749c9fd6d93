"""The authorizer's rules, by examples; `tests/system/test_acl_matrix.py` compares them with Kafka's."""

from __future__ import annotations

import pytest

from appliance.security.acl import (
    CLUSTER_NAME,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResource,
    PatternType,
    ResourcePattern,
    binding_problem,
    java_host,
)
from appliance.security.authorizer import Authorizer, Rights, super_users_of

ALICE = "User:alice"
HOST = "10.0.0.1"
TOPIC, GROUP, CLUSTER = AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER
READ, WRITE, DESCRIBE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALL


def allow(name: str, operation: AclOperation = READ, principal: str = ALICE, host: str = "*", resource: AclResource = TOPIC) -> AclBinding:
    return AclBinding(resource, name, PatternType.LITERAL, principal, host, operation, AclPermission.ALLOW)


def deny(name: str, operation: AclOperation = READ, principal: str = ALICE) -> AclBinding:
    return allow(name, operation, principal)._replace(permission=AclPermission.DENY)


def prefixed(binding: AclBinding) -> AclBinding:
    return binding._replace(pattern=PatternType.PREFIXED)


def rights(*bindings: AclBinding, principal: str = ALICE, host: str = HOST, **options: object) -> Rights:
    authorizer = Authorizer(**options)  # type: ignore[arg-type]
    authorizer.replace(bindings)
    return authorizer.rights_of(principal, host)


def test_nothing_is_allowed_without_a_binding() -> None:
    assert not rights().allows(READ, TOPIC, "logs")


def test_a_literal_binding_allows_its_resource_only() -> None:
    of_alice = rights(allow("logs"))
    assert of_alice.allows(READ, TOPIC, "logs")
    assert not of_alice.allows(READ, TOPIC, "logs2")
    assert not of_alice.allows(WRITE, TOPIC, "logs")
    assert not of_alice.allows(READ, GROUP, "logs")


def test_prefixes_of_every_length_match() -> None:
    of_alice = rights(prefixed(allow("app-")), prefixed(allow("app-a", WRITE)), prefixed(allow("z", DESCRIBE)))
    assert of_alice.allows(READ, TOPIC, "app-") and of_alice.allows(READ, TOPIC, "app-abc")
    assert of_alice.allows(WRITE, TOPIC, "app-abc") and not of_alice.allows(WRITE, TOPIC, "app-b")
    assert not of_alice.allows(READ, TOPIC, "app")


def test_a_denial_wins_over_every_permission() -> None:
    of_alice = rights(allow("*", ALL), prefixed(deny("secret", READ)))
    assert not of_alice.allows(READ, TOPIC, "secrets")
    assert of_alice.allows(WRITE, TOPIC, "secrets")
    assert of_alice.allows(DESCRIBE, TOPIC, "secrets"), "denying READ denies nothing that READ implies"


@pytest.mark.parametrize("operation", [READ, WRITE, AclOperation.DELETE, AclOperation.ALTER])
def test_an_operation_on_a_resource_implies_that_it_may_be_described(operation: AclOperation) -> None:
    assert rights(allow("logs", operation)).allows(DESCRIBE, TOPIC, "logs")


def test_altering_configs_implies_describing_them() -> None:
    of_alice = rights(allow("logs", AclOperation.ALTER_CONFIGS))
    assert of_alice.allows(AclOperation.DESCRIBE_CONFIGS, TOPIC, "logs")
    assert not of_alice.allows(DESCRIBE, TOPIC, "logs")


def test_bindings_of_another_host_or_principal_do_not_count() -> None:
    bindings = (allow("logs", host="10.0.0.2"), allow("metrics", principal="User:bob"), allow("public", principal="User:*"))
    of_alice = rights(*bindings)
    assert [of_alice.allows(READ, TOPIC, name) for name in ("logs", "metrics", "public")] == [False, False, True]
    assert rights(*bindings, host="10.0.0.2").allows(READ, TOPIC, "logs")


def test_super_users_and_privileged_connections_may_do_everything() -> None:
    assert rights(deny("logs"), super_users=[ALICE]).allows(READ, TOPIC, "logs")
    authorizer = Authorizer()
    assert authorizer.rights_of(ALICE, HOST, True).allows(READ, TOPIC, "logs")
    assert not authorizer.rights_of(ALICE, HOST).allows(READ, TOPIC, "logs")


def test_resources_without_bindings_are_open_only_if_the_setting_says_so() -> None:
    of_alice = rights(allow("logs", principal="User:bob"), prefixed(deny("p", principal="User:bob")), allow_without_bindings=True)
    assert of_alice.allows(READ, TOPIC, "other")
    assert not of_alice.allows(READ, TOPIC, "logs") and not of_alice.allows(READ, TOPIC, "pq")


def test_a_new_list_reaches_rights_that_are_already_held() -> None:
    authorizer = Authorizer()
    authorizer.replace([allow("logs")])
    held = authorizer.rights_of(ALICE, HOST)
    assert held.allows(READ, TOPIC, "logs")
    authorizer.replace([])
    assert not held.allows(READ, TOPIC, "logs")
    assert authorizer.rights_of(ALICE, HOST) is held


@pytest.mark.parametrize(
    ("bindings", "expected"),
    [
        ((), False),
        ((allow("logs", WRITE),), True),
        ((allow("logs", READ),), False),
        ((allow("logs", WRITE), deny("logs", WRITE)), False),
        ((allow("logs", WRITE), deny("*", WRITE)), False),
        ((allow("*", WRITE), prefixed(deny("l", WRITE))), True),
        ((prefixed(allow("logs", WRITE)), prefixed(deny("lo", ALL))), False),
        ((prefixed(allow("lo", WRITE)), prefixed(deny("logs", WRITE))), True),
        ((allow("logs", ALL),), True),
    ],
)
def test_a_permission_on_any_resource_of_a_type_needs_one_that_no_denial_covers(bindings: tuple[AclBinding, ...], expected: bool) -> None:
    assert rights(*bindings).allows_any(WRITE, TOPIC) is expected


def test_allowed_operations_are_bits() -> None:
    assert rights(allow("logs")).operations(TOPIC, "logs") == 1 << READ | 1 << DESCRIBE
    assert rights(allow(CLUSTER_NAME, ALL, resource=CLUSTER)).operations(CLUSTER, CLUSTER_NAME) == 0b1_1111_1010_0000


@pytest.mark.parametrize(
    ("wanted", "matched"),
    [
        (AclFilter(), ["logs", "lo", "*"]),
        (AclFilter(TOPIC, "logs", PatternType.LITERAL), ["logs"]),
        (AclFilter(TOPIC, "logs", PatternType.ANY), ["logs"]),
        (AclFilter(TOPIC, "logs", PatternType.MATCH), ["logs", "lo", "*"]),
        (AclFilter(TOPIC, "lo", PatternType.MATCH), ["lo", "*"]),
        (AclFilter(TOPIC, None, PatternType.PREFIXED), ["lo"]),
        (AclFilter(GROUP), []),
        (AclFilter(principal="User:bob"), ["*"]),
        (AclFilter(host="*", permission=AclPermission.DENY), []),
        (AclFilter(operation=WRITE), ["lo"]),
    ],
)
def test_a_filter_selects_bindings_as_kafkas_does(wanted: AclFilter, matched: list[str]) -> None:
    bindings = [allow("logs"), prefixed(allow("lo", WRITE)), allow("*", principal="User:bob")]
    assert [each.name for each in bindings if wanted.matches(each)] == matched


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"resource": CLUSTER}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"name": ""}, "Invalid empty resource name"),
        ({"resource": AclResource.ANY}, "Invalid resourceType ANY"),
        ({"pattern": PatternType.MATCH}, "Invalid patternType MATCH"),
        ({"operation": AclOperation.ANY}, "Invalid operation ANY"),
        ({"permission": AclPermission.ANY}, "Invalid permissionType ANY"),
        ({"principal": "alice"}, "Could not parse principal from `alice` (no colon"),
    ],
)
def test_a_binding_that_kafka_refuses_is_refused_in_its_words(change: dict[str, object], problem: str) -> None:
    assert binding_problem(allow("logs")) is None
    assert (binding_problem(allow("logs")._replace(**change)) or "").startswith(problem)  # type: ignore[arg-type]


def test_addresses_are_written_as_java_writes_them() -> None:
    assert java_host("127.0.0.1") == "127.0.0.1"
    assert java_host("::1") == "0:0:0:0:0:0:0:1"
    assert java_host("fe80::1%eth0") == "fe80:0:0:0:0:0:0:1"
    assert java_host("::ffff:10.0.0.1") == "10.0.0.1"


def test_super_users_are_separated_by_semicolons() -> None:
    assert super_users_of(" User:a;User:CN=b,O=c ;") == {"User:a", "User:CN=b,O=c"}
    with pytest.raises(ValueError, match="User:NAME"):
        super_users_of("alice")


def test_a_pattern_of_a_binding_can_be_taken_apart() -> None:
    binding = allow("logs")
    assert AclBinding.of(binding.resources, binding.rule) == binding
    assert binding.resources == ResourcePattern(TOPIC, "logs", PatternType.LITERAL)
