"""SCRAM users in the controller: the two APIs, Kafka's znodes, changes by other boxes and tools."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.cluster.credential_image import CredentialImage, read_credential_image
from appliance.cluster.user_znodes import sanitized, user_of_entity, user_of_node
from appliance.cluster.znodes import decode_config, encode_config, encode_config_change
from appliance.ipc.frames import connect_unix
from appliance.ipc.request_frames import KAFKA_REQUEST, KAFKA_RESPONSE, pack_kafka_request
from appliance.protocol import sasl_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.sasl_apis import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    ScramUserName,
)
from appliance.security.scram import ScramCredential, ScramMechanism, salted_password
from services.controller.admin.users import ALTERED_MAX, _changes
from services.controller.zookeeper.requests import Create, Get, GetChildren, SetData
from tests.support.memory_zookeeper import MemoryZooKeeper
from tests.support.stepped_controller import SteppedBox

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
SALT = b"0123456789abcdef"


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096, password: str = "pencil") -> ScramCredentialUpsertion:
    salted = salted_password(ScramMechanism(mechanism), password, SALT, iterations) if mechanism in list(ScramMechanism) else b""
    return ScramCredentialUpsertion(name, mechanism, iterations, SALT, salted)


class Boxes:
    """Boxes over one tree."""

    def __init__(self, directory: Path) -> None:
        self.server = MemoryZooKeeper()
        self.directory = directory
        self.boxes: list[SteppedBox] = []

    def start(self) -> SteppedBox:
        broker_id = len(self.boxes) + 1
        box = SteppedBox(self.directory / str(broker_id), self.server, broker_id, settings={}, kafka_port=9091 + broker_id)
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

    def ask(self, box: SteppedBox, api_key: ApiKey, request: Any) -> Any:
        messages = {
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (sasl_apis.DESCRIBE_USER_SCRAM_CREDENTIALS_REQUEST, sasl_apis.DESCRIBE_USER_SCRAM_CREDENTIALS_RESPONSE),
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_REQUEST, sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_RESPONSE),
        }[api_key]
        client = connect_unix(box.layout.controller_socket)
        assert client is not None
        client.send(KAFKA_REQUEST, 7, pack_kafka_request(api_key, 0, "test", "127.0.0.1", messages[0].encode(0, request)))
        frames: list[Any] = []
        self.until(lambda: frames.extend(frame for frame in client.receive() if frame.kind == KAFKA_RESPONSE) or frames, f"an answer to {api_key.name}")
        client.close()
        payload = frames[0].payload
        return messages[1].decode(payload, 0, len(payload), 0)

    def alter(self, box: SteppedBox, *upsertions: ScramCredentialUpsertion, deletions: tuple[tuple[str, int], ...] = ()) -> dict[str, tuple[int, str | None]]:
        request = AlterUserScramCredentialsRequest(tuple(ScramCredentialDeletion(*each) for each in deletions), upsertions)
        return {each.user: (each.error_code, each.error_message) for each in self.ask(box, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request).results}

    def described(self, box: SteppedBox, *names: str) -> dict[str, Any]:
        request = DescribeUserScramCredentialsRequest(tuple(map(ScramUserName, names)) or None)
        response = self.ask(box, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, request)
        assert response.error_code == 0
        return {each.user: each.error_code or [tuple(info) for info in each.credential_infos] for each in response.results}


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Boxes]:
    found = Boxes(tmp_path)
    yield found
    for box in found.boxes:
        box.close()


def image(box: SteppedBox) -> CredentialImage | None:
    return read_credential_image(box.layout.credential_image_file)


def users(box: SteppedBox) -> dict[str, set[str]]:
    found = image(box)
    return {name: set(texts) for name, texts in found.users.items()} if found is not None else {}


def test_a_credential_is_in_kafkas_znode_and_in_the_image_before_the_answer(boxes: Boxes) -> None:
    box = boxes.start()
    assert boxes.alter(box, upsertion("alice"), upsertion("alice", SHA_512, 8192), upsertion("ö b*~")) == {"alice": (0, ""), "ö b*~": (0, "")}
    assert users(box) == {"alice": {"SCRAM-SHA-256", "SCRAM-SHA-512"}, "ö b*~": {"SCRAM-SHA-256"}}
    config = decode_config("", boxes.server.write(Get("/config/users/alice")).data)
    assert ScramCredential.decode(config["SCRAM-SHA-512"]).verifies(SHA_512, "pencil")
    assert boxes.server.write(Get("/config/users/%C3%B6%20b%2A%7E"))
    (first, second) = sorted(boxes.server.write(GetChildren("/config/changes")))
    assert boxes.server.write(Get(f"/config/changes/{first}")).data == encode_config_change("users/alice")
    assert second
    assert boxes.described(box) == {"alice": [(1, 4096), (2, 8192)], "ö b*~": [(1, 4096)]}
    assert os.stat(box.layout.credential_image_file).st_mode & 0o777 == 0o600


def test_quotas_of_a_user_stay_when_its_credentials_change(boxes: Boxes) -> None:
    box = boxes.start()
    boxes.server.write(Create("/config/users/alice", encode_config({"producer_byte_rate": "1024"})))
    boxes.alter(box, upsertion("alice"))
    assert boxes.alter(box, deletions=(("alice", 1),)) == {"alice": (0, "")}
    assert decode_config("", boxes.server.write(Get("/config/users/alice")).data) == {"producer_byte_rate": "1024"}
    assert users(box) == {}


def test_each_user_is_refused_by_itself_with_kafkas_codes(boxes: Boxes) -> None:
    box = boxes.start()
    answered = boxes.alter(
        box,
        upsertion("few", iterations=4095),
        upsertion("many", iterations=16385),
        upsertion("unknown", 3),
        upsertion("twice"),
        upsertion("twice"),
        upsertion(""),
        upsertion(".."),
        upsertion("local:1000"),
        upsertion("short")._replace(salted_password=b"x"),
        upsertion("good"),
        deletions=(("nobody", 1),),
    )
    codes = {name: ErrorCode(code).name for name, (code, _) in answered.items()}
    assert codes == {
        "few": "UNACCEPTABLE_CREDENTIAL",
        "many": "UNACCEPTABLE_CREDENTIAL",
        "unknown": "UNSUPPORTED_SASL_MECHANISM",
        "twice": "DUPLICATE_RESOURCE",
        "": "UNACCEPTABLE_CREDENTIAL",
        "..": "UNACCEPTABLE_CREDENTIAL",
        "local:1000": "UNACCEPTABLE_CREDENTIAL",
        "short": "UNACCEPTABLE_CREDENTIAL",
        "good": "NONE",
        "nobody": "RESOURCE_NOT_FOUND",
    }
    assert answered["few"][1] == "Too few iterations"
    assert users(box) == {"good": {"SCRAM-SHA-256"}}
    found = boxes.described(box, "good", "nobody", "few", "few")
    assert found == {"good": [(1, 4096)], "nobody": ErrorCode.RESOURCE_NOT_FOUND, "few": ErrorCode.DUPLICATE_RESOURCE}


def test_each_box_follows_what_another_one_and_kafkas_tools_change(boxes: Boxes) -> None:
    first, second = boxes.start(), boxes.start()
    boxes.alter(first, upsertion("alice"))
    boxes.until(lambda: users(second) == {"alice": {"SCRAM-SHA-256"}}, "box 2 has it")
    text = ScramCredential.of_salted_password(SHA_512, SALT, bytes(64), 4096).encode()
    boxes.server.write(SetData("/config/users/alice", encode_config({"SCRAM-SHA-512": text, "SCRAM-SHA-256": "damaged"}), -1))
    boxes.server.write(Create("/config/changes/config_change_", encode_config_change("users/alice"), sequence=True))
    boxes.until(lambda: users(first) == users(second) == {"alice": {"SCRAM-SHA-512"}}, "both have what a tool wrote")


def test_a_box_without_users_has_an_empty_image_and_keeps_its_secret(boxes: Boxes) -> None:
    box = boxes.start()
    boxes.until(lambda: image(box) is not None, "an image")
    before = image(box)
    assert before is not None and before.users == {} and len(before.secret) == 32
    boxes.alter(box, upsertion("alice"))
    after = image(box)
    assert after is not None and after.secret == before.secret and after.generation > before.generation


def test_names_are_those_of_kafkas_sanitizer() -> None:
    assert sanitized("User a+b/c=ü") == "User%20a%2Bb%2Fc%3D%C3%BC"
    assert user_of_node("<default>") is None and user_of_node("%C3%BC") == "ü"
    assert user_of_entity("users/a%20b") == "a b"
    assert user_of_entity("users/a/clients/b") is user_of_entity("topics/t") is user_of_entity(None) is None


def test_a_request_with_too_many_users_is_refused_as_a_whole(boxes: Boxes) -> None:
    box = boxes.start()
    too_many = [upsertion("alice")._replace(name=f"user{number}") for number in range(ALTERED_MAX + 1)]
    answered = boxes.alter(box, *too_many)
    assert set(answered.values()) == {(ErrorCode.INVALID_REQUEST, "A request alters at most 1000 users")} and len(answered) == len(too_many)
    assert users(box) == {}


def test_the_elements_of_a_request_are_read_once() -> None:
    """Not once for each user: 8,000 users took seconds of the controller's turn."""
    reads = []

    class Watched(tuple[Any, ...]):
        def __iter__(self) -> Iterator[Any]:
            for each in super().__iter__():
                reads.append(each)
                yield each

    request = AlterUserScramCredentialsRequest(
        Watched(ScramCredentialDeletion(f"gone{number}", SHA_256) for number in range(30)),
        Watched(upsertion("")._replace(name=f"user{number}") for number in range(30)),
    )
    changes = _changes(request, {"user7"})
    assert len(reads) == 60 and len(changes) == 59
    assert changes["gone7"] == {"SCRAM-SHA-256": None} and changes["user8"].keys() == {"SCRAM-SHA-256"}


def test_names_under_way_count_as_users(boxes: Boxes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.controller.admin.users.USERS_MAX", 3)
    box = boxes.start()
    answered = boxes.alter(box, *(upsertion(name) for name in "abcde"))
    assert [code for code, _ in answered.values()] == [0, 0, 0, ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION]
    assert boxes.alter(box, upsertion("a", iterations=5000), deletions=(("b", 1),)) == {"a": (0, ""), "b": (0, "")}
    assert boxes.alter(box, upsertion("d"), deletions=(("nobody", 1),))["d"] == (0, "")
    assert users(box).keys() == {"a", "c", "d"}


def test_users_that_change_in_one_turn_are_published_once(boxes: Boxes) -> None:
    box = boxes.start()
    boxes.alter(box, upsertion("alice"))
    before = image(box)
    boxes.alter(box, *(upsertion(f"user{number}") for number in range(30)))
    after = image(box)
    assert before is not None and after is not None and len(after.users) == 31
    assert after.generation - before.generation < 10
