"""`millrace acl`: what is refused before any broker is asked. With a box: `tests/system/test_authorized_apis.py`."""

from __future__ import annotations

import json

import pytest

from appliance.command.acl import add, operations_of, remove, show
from appliance.command.failures import UsageProblem
from appliance.security.acl import AclBinding, AclOperation, AclPermission, AclResource, PatternType


def test_operations_have_kafkas_names_in_any_spelling() -> None:
    expected = [AclOperation.DESCRIBE_CONFIGS, AclOperation.READ]
    assert operations_of(["DescribeConfigs", "read"], AclResource.TOPIC) == expected
    assert operations_of(["DESCRIBE_CONFIGS", "describe-configs", "Read"], AclResource.TOPIC) == expected
    assert operations_of(["All"], AclResource.CLUSTER) == [AclOperation.ALL]


@pytest.mark.parametrize(("name", "resource"), [("Fly", AclResource.TOPIC), ("Any", AclResource.ANY), ("Write", AclResource.GROUP)])
def test_an_operation_that_the_resource_does_not_have_is_refused_with_those_that_it_has(name: str, resource: AclResource) -> None:
    with pytest.raises(UsageProblem, match=f"--operation {name}: use one of .*Describe"):
        operations_of([name], resource)


def test_an_entry_needs_one_resource_and_an_operation() -> None:
    with pytest.raises(UsageProblem, match="say on what"):
        add("User:a", ["Read"])
    with pytest.raises(UsageProblem, match="say on what"):
        add("User:a", topic="t")
    with pytest.raises(UsageProblem, match="name one resource"):
        add("User:a", ["Read"], topic="t", group="g")
    with pytest.raises(UsageProblem, match="say which"):
        remove(operation=["Read"])


def test_programs_read_json(capsys: pytest.CaptureFixture[str]) -> None:
    show([AclBinding(AclResource.TOPIC, "t", PatternType.PREFIXED, "User:a", "*", AclOperation.ALTER_CONFIGS, AclPermission.DENY)], True)
    (entry,) = json.loads(capsys.readouterr().out)
    assert list(entry.values()) == ["topic", "t", "prefixed", "User:a", "*", "AlterConfigs", "deny"]
