"""Access control lists in the controller: the three APIs, Kafka's znodes, changes by other boxes and tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.cluster.acl_znodes import LITERAL_STORE, PREFIXED_STORE, decode_rules, encode_rules
from appliance.cluster.security_image import read_security_image
from appliance.ipc.frames import connect_unix
from appliance.ipc.request_frames import KAFKA_REQUEST, KAFKA_RESPONSE, pack_kafka_request
from appliance.protocol import acl_apis
from appliance.protocol.acl_apis import AclCreation, CreateAclsRequest, DeleteAclsFilter, DeleteAclsRequest, DescribeAclsRequest
from appliance.protocol.apis import ApiKey
from appliance.security.acl import AccessRule, AclBinding, AclOperation, AclPermission, AclResource, PatternType
from services.controller.zookeeper.requests import Create, Get, GetChildren, NoNode, SetData
from tests.support.memory_zookeeper import MemoryZooKeeper
from tests.support.stepped_controller import SteppedBox

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
READ = AclBinding(AclResource.TOPIC, "logs", PatternType.LITERAL, "User:alice", "*", AclOperation.READ, AclPermission.ALLOW)
WRITE = READ._replace(operation=AclOperation.WRITE)
PREFIXED = READ._replace(name="app-", pattern=PatternType.PREFIXED, principal="User:bob")
VERSION = 3
EVERYTHING = (1, None, 1, None, None, 1, 1)


class Boxes:
    """One box, or two, over one tree."""

    def __init__(self, directory: Path) -> None:
        self.server = MemoryZooKeeper()
        self.directory = directory
        self.boxes: list[SteppedBox] = []

    def start(self, **settings: Any) -> SteppedBox:
        broker_id = len(self.boxes) + 1
        wanted = {"authorizer.class.name": AUTHORIZER, **settings}
        box = SteppedBox(self.directory / str(broker_id), self.server, broker_id, settings=wanted, kafka_port=9091 + broker_id)
        self.boxes.append(box)
        box.start_writers()
        box.start_controller()
        box.until_ready()
        return box

    def until(self, condition: Any, what: str) -> None:
        box, *others = self.boxes

        def turned() -> bool:
            for other in others:
                other.turn(0)
            return bool(condition())

        box.until(turned, what)


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Boxes]:
    found = Boxes(tmp_path)
    yield found
    for box in found.boxes:
        box.close()


def ask(boxes: Boxes, box: SteppedBox, api_key: ApiKey, request: Any) -> Any:
    messages = {
        ApiKey.DESCRIBE_ACLS: (acl_apis.DESCRIBE_ACLS_REQUEST, acl_apis.DESCRIBE_ACLS_RESPONSE),
        ApiKey.CREATE_ACLS: (acl_apis.CREATE_ACLS_REQUEST, acl_apis.CREATE_ACLS_RESPONSE),
        ApiKey.DELETE_ACLS: (acl_apis.DELETE_ACLS_REQUEST, acl_apis.DELETE_ACLS_RESPONSE),
    }[api_key]
    client = connect_unix(box.layout.controller_socket)
    assert client is not None
    client.send(KAFKA_REQUEST, 7, pack_kafka_request(api_key, VERSION, "test", "127.0.0.1", messages[0].encode(VERSION, request)))
    frames: list[Any] = []
    boxes.until(lambda: frames.extend(frame for frame in client.receive() if frame.kind == KAFKA_RESPONSE) or frames, f"an answer to {api_key.name}")
    client.close()
    payload = frames[0].payload
    return messages[1].decode(payload, 0, len(payload), VERSION)


def create(boxes: Boxes, box: SteppedBox, *bindings: AclBinding) -> list[tuple[int, str | None]]:
    response = ask(boxes, box, ApiKey.CREATE_ACLS, CreateAclsRequest(tuple(AclCreation(*binding) for binding in bindings)))
    return [tuple(result) for result in response.results]


def described(boxes: Boxes, box: SteppedBox, *wanted: Any) -> set[AclBinding]:
    response = ask(boxes, box, ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(*(wanted or EVERYTHING)))
    assert response.error_code == 0
    return {AclBinding(*each[:3], *rule) for each in response.resources for rule in each.acls}


def image(box: SteppedBox) -> frozenset[AclBinding] | None:
    found = read_security_image(box.layout.security_image_file)
    return found.bindings if found is not None else None


def test_a_created_binding_is_in_kafkas_znodes_and_in_the_image_before_the_answer(boxes: Boxes) -> None:
    box = boxes.start()
    assert create(boxes, box, READ, WRITE, PREFIXED) == [(0, None)] * 3
    assert image(box) == {READ, WRITE, PREFIXED}
    assert decode_rules("", boxes.server.write(Get("/kafka-acl/Topic/logs")).data) == {READ.rule, WRITE.rule}
    assert decode_rules("", boxes.server.write(Get("/kafka-acl-extended/prefixed/Topic/app-")).data) == {PREFIXED.rule}
    assert boxes.server.write(Get("/kafka-acl-changes/acl_changes_0000000000")).data == b"Topic:logs"
    assert len(boxes.server.write(GetChildren(PREFIXED_STORE.changes))) == 1
    assert create(boxes, box, READ) == [(0, None)], "it is there already"
    assert len(boxes.server.write(GetChildren(LITERAL_STORE.changes))) == 1


def test_filters_select_what_is_described(boxes: Boxes) -> None:
    box = boxes.start()
    create(boxes, box, READ, WRITE, PREFIXED)
    assert described(boxes, box) == {READ, WRITE, PREFIXED}
    assert described(boxes, box, 2, "app-x", PatternType.MATCH, None, None, 1, 1) == {PREFIXED}
    assert described(boxes, box, 2, None, 1, "User:alice", None, AclOperation.WRITE, 1) == {WRITE}


def test_a_deletion_names_what_each_filter_removed_and_leaves_no_empty_znode(boxes: Boxes) -> None:
    box = boxes.start()
    create(boxes, box, READ, WRITE, PREFIXED)
    filters = (
        DeleteAclsFilter(2, "logs", 3, None, None, 1, 1),
        DeleteAclsFilter(2, "nothing", 3, None, None, 1, 1),
        DeleteAclsFilter(99, None, 1, None, None, 1, 1),
    )
    response = ask(boxes, box, ApiKey.DELETE_ACLS, DeleteAclsRequest(filters))
    assert [result.error_code for result in response.filter_results] == [0, 0, ErrorCode.INVALID_REQUEST]
    assert [len(result.matching_acls) for result in response.filter_results] == [2, 0, 0]
    assert image(box) == {PREFIXED}
    with pytest.raises(NoNode):
        boxes.server.write(Get("/kafka-acl/Topic/logs"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"resource": AclResource.CLUSTER}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"principal": "alice"}, "Could not parse principal"),
        ({"name": "a/b"}, "ZooKeeper cannot hold"),
    ],
)
def test_one_refused_binding_does_not_stop_the_others(boxes: Boxes, change: dict[str, Any], text: str) -> None:
    box = boxes.start()
    refused, created = create(boxes, box, READ._replace(**change), WRITE)
    assert refused[0] == ErrorCode.INVALID_REQUEST and text in (refused[1] or "") and created == (0, None)
    assert image(box) == {WRITE}


def test_without_an_authorizer_every_request_is_answered_security_disabled(boxes: Boxes) -> None:
    box = boxes.start(**{"authorizer.class.name": ""})
    assert create(boxes, box, READ) == [(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")]
    assert ask(boxes, box, ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(*EVERYTHING)).error_code == ErrorCode.SECURITY_DISABLED
    deleted = ask(boxes, box, ApiKey.DELETE_ACLS, DeleteAclsRequest((DeleteAclsFilter(*EVERYTHING),)))
    assert deleted.filter_results[0].error_code == ErrorCode.SECURITY_DISABLED
    assert image(box) is None


def test_a_first_image_is_there_when_there_are_no_lists(boxes: Boxes) -> None:
    box = boxes.start()
    box.until(lambda: image(box) is not None, "an image")
    assert image(box) == frozenset()


def test_each_box_follows_what_another_one_and_kafkas_tools_change(boxes: Boxes) -> None:
    first, second = boxes.start(), boxes.start()
    create(boxes, first, READ)
    boxes.until(lambda: image(second) == {READ}, "box 2 has it")
    path = "/kafka-acl/Topic/logs"
    boxes.server.write(SetData(path, encode_rules([WRITE.rule]), -1))
    boxes.server.write(Create(f"{LITERAL_STORE.changes}/acl_changes_", b"Topic:logs", sequence=True))
    boxes.until(lambda: image(first) == image(second) == {WRITE}, "both have what a tool wrote")
    create(boxes, second, READ)
    boxes.until(lambda: image(first) == {READ, WRITE}, "nothing was overwritten")


def test_a_list_that_cannot_be_read_denies_everything_on_its_resources(boxes: Boxes) -> None:
    box = boxes.start()
    create(boxes, box, READ, PREFIXED)
    boxes.server.write(SetData("/kafka-acl/Topic/logs", b"damaged", -1))
    boxes.server.write(Create(f"{LITERAL_STORE.changes}/acl_changes_", b"Topic:logs", sequence=True))
    denied = AclBinding.of(READ.resources, AccessRule("User:*", "*", AclOperation.ALL, AclPermission.DENY))
    boxes.until(lambda: image(box) == {denied, PREFIXED}, "it denies")
    (refused,) = create(boxes, box, WRITE)
    assert refused[0] == ErrorCode.UNKNOWN_SERVER_ERROR and "repair or remove" in (refused[1] or "")
