"""`millrace acl`: what is refused before any broker is asked. With a box: `tests/system/test_authorized_apis.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base.errors import RequestRefused
from appliance.client import messages
from appliance.command.acl import add, list_all, operations_of, remove, show
from appliance.command.failures import UsageProblem
from appliance.security.acl import AclBinding, AclOperation, AclPermission, AclResource, PatternType
from tests.unit.client.fake_kafka_broker import FakeKafkaBroker


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


def described(error_code: int) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": error_code, "error_message": "Cluster authorization failed." if error_code else None, "resources": []}


@pytest.fixture
def broker() -> Iterator[FakeKafkaBroker]:
    made = FakeKafkaBroker()
    yield made
    made.close()


def test_what_may_not_be_done_names_the_right_that_is_missing(broker: FakeKafkaBroker) -> None:
    broker.answers[messages.DESCRIBE_ACLS] = lambda _request: described(31)
    asked = {"bootstrap": str(broker.address)}
    words = r"could not add access control entries: the right Alter on the cluster is missing \(CLUSTER_AUTHORIZATION_FAILED\)"
    with pytest.raises(RequestRefused, match=words):
        add("User:a", ["Read"], topic="t", **asked)  # type: ignore[arg-type]
    with pytest.raises(RequestRefused, match="could not remove access control entries: the right Alter on the cluster is missing"):
        remove("User:a", **asked)  # type: ignore[arg-type]
    with pytest.raises(RequestRefused, match="could not list access control entries: the right Describe on the cluster is missing"):
        list_all(**asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [{}, {"dry_run": True}, {"as_json": True, "yes": True}])
def test_to_remove_what_is_not_there_is_a_mistake(broker: FakeKafkaBroker, more: dict[str, Any]) -> None:
    broker.answers[messages.DESCRIBE_ACLS] = lambda _request: described(0)
    with pytest.raises(UsageProblem, match="no access control entry has all these properties; see `millrace acl list`"):
        remove("User:a", bootstrap=str(broker.address), **more)


def test_programs_read_json(capsys: pytest.CaptureFixture[str]) -> None:
    show([AclBinding(AclResource.TOPIC, "t", PatternType.PREFIXED, "User:a", "*", AclOperation.ALTER_CONFIGS, AclPermission.DENY)], True)
    (entry,) = json.loads(capsys.readouterr().out)
    assert list(entry.values()) == ["topic", "t", "prefixed", "User:a", "*", "AlterConfigs", "deny"]
