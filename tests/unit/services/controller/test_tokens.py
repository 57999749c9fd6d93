"""Delegation tokens in the controller: the four APIs, Kafka's znodes, changes by other boxes, expiry."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from appliance.base.clock import SystemClock
from appliance.base.errors import ErrorCode
from appliance.cluster.token_image import TokenImage, read_token_image
from appliance.ipc.frames import FrameSocket, connect_unix
from appliance.ipc.request_frames import KAFKA_REQUEST, KAFKA_RESPONSE, pack_kafka_request
from appliance.protocol import token_apis
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.forwarded_apis import CONTROLLER_APIS
from appliance.protocol.schema import Message
from appliance.protocol.token_apis import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)
from appliance.security.principals import Principal, RequestOrigin
from services.controller.admin.tokens import PUBLISH_MS
from services.controller.zookeeper.requests import Create, Get, GetChildren, NoNode, SetData
from tests.support.memory_zookeeper import MemoryZooKeeper
from tests.support.stepped_controller import SteppedBox

KEY = "a secret of all boxes"
DAY_MS = 24 * 3600 * 1000
BOB, CAROL = TokenPrincipal("User", "bob"), TokenPrincipal("User", "carol d")


class AdvancedClock(SystemClock):
    """The system's, ahead by what `advance_ms` adds."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self.still_ns: int | None = None

    def stand_still(self) -> None:
        self.still_ns = SystemClock.monotonic_ns()

    def advance_ms(self, milliseconds: int) -> None:
        self.ahead_ms += milliseconds

    def monotonic_ns(self) -> int:  # type: ignore[override]
        return (SystemClock.monotonic_ns() if self.still_ns is None else self.still_ns) + self.ahead_ms * 1_000_000

    def monotonic_ms(self) -> int:  # type: ignore[override]
        return self.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:  # type: ignore[override]
        return SystemClock.wall_ms() + self.ahead_ms


class Boxes:
    """Boxes over one tree, whose requests have a principal, as those of acceptors do."""

    def __init__(self, directory: Path) -> None:
        self.clock = AdvancedClock()
        self.server = MemoryZooKeeper(self.clock.wall_ms)
        self.directory = directory
        self.boxes: list[SteppedBox] = []
        (directory / "key").write_text(f"{KEY}\nnot this\n")
        (directory / "key").chmod(0o600)

    def start(self, key_file: str = "key") -> SteppedBox:
        broker_id = len(self.boxes) + 1
        settings = {"delegation.token.secret.key.file": str(self.directory / key_file) if key_file else ""}
        box = SteppedBox(self.directory / str(broker_id), self.server, broker_id, settings=settings, kafka_port=9091 + broker_id, clock=self.clock)
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

    def send(self, box: SteppedBox, request: Any, user: str, version: int | None = None) -> FrameSocket:
        api_key, message, _ = self.api_of(type(request))
        version = SERVED_APIS[api_key].version_max if version is None else version
        client = connect_unix(box.layout.controller_socket)
        assert client is not None
        origin = RequestOrigin(Principal("User", user), "CLIENTS").pack()
        client.send(KAFKA_REQUEST, 7, pack_kafka_request(api_key, version, "test", "127.0.0.1", message.encode(version, request), origin))
        return client

    def answer(self, client: FrameSocket, kind: type[Any], version: int | None = None) -> Any:
        api_key, _, response = self.api_of(kind)
        version = SERVED_APIS[api_key].version_max if version is None else version
        frames: list[Any] = []
        self.until(lambda: frames.extend(frame for frame in client.receive() if frame.kind == KAFKA_RESPONSE) or frames, f"an answer to {api_key}")
        client.close()
        payload = frames[0].payload
        return response.decode(payload, 0, len(payload), version)

    @staticmethod
    def api_of(kind: type[Any]) -> tuple[int, Message[Any], Message[Any]]:
        return next((key, message, response) for key, (message, response) in CONTROLLER_APIS.items() if message.body is kind)

    def ask(self, box: SteppedBox, request: Any, user: str = "alice", version: int | None = None) -> Any:
        return self.answer(self.send(box, request, user, version), type(request), version)

    def create(self, box: SteppedBox, *renewers: TokenPrincipal, user: str = "alice", lifetime_ms: int = -1) -> Any:
        made = self.ask(box, CreateDelegationTokenRequest(None, None, renewers, lifetime_ms), user)
        assert made.error_code == 0
        return made

    def nodes(self) -> list[str]:
        return list(self.server.write(GetChildren("/delegation_token/tokens")))


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Boxes]:
    found = Boxes(tmp_path)
    yield found
    for box in found.boxes:
        box.close()


def image(box: SteppedBox) -> TokenImage:
    found = read_token_image(box.layout.token_image_file)
    assert found is not None
    return found


def test_a_token_is_in_kafkas_znode_without_its_secret_and_in_the_image_before_the_answer(boxes: Boxes) -> None:
    box = boxes.start()
    made = boxes.create(box, BOB, CAROL)
    assert made.hmac == hmac.new(KEY.encode(), made.token_id.encode(), hashlib.sha512).digest()
    assert (made.principal_type, made.principal_name, made.token_requester_principal_name) == ("User", "alice", "alice")
    assert made.max_timestamp_ms - made.issue_timestamp_ms == 7 * DAY_MS and made.expiry_timestamp_ms - made.issue_timestamp_ms == DAY_MS
    assert orjson.loads(boxes.server.write(Get(f"/delegation_token/tokens/{made.token_id}")).data) == {
        "version": 3,
        "owner": "User%3Aalice",
        "tokenRequester": "User%3Aalice",
        "renewers": ["User%3Abob", "User%3Acarol%20d"],
        "issueTimestamp": made.issue_timestamp_ms,
        "maxTimestamp": made.max_timestamp_ms,
        "expiryTimestamp": made.expiry_timestamp_ms,
        "tokenId": made.token_id,
    }
    (change,) = boxes.server.write(GetChildren("/delegation_token/token_changes"))
    assert boxes.server.write(Get(f"/delegation_token/token_changes/{change}")).data == made.token_id.encode()
    assert image(box).tokens[made.token_id][1] == made.hmac
    assert os.stat(box.layout.token_image_file).st_mode & 0o777 == 0o600


def test_owner_and_renewers_change_a_token_and_others_do_not(boxes: Boxes) -> None:
    box = boxes.start()
    made = boxes.create(box, BOB, lifetime_ms=3 * DAY_MS)

    def renew(user: str, period_ms: int, secret: bytes = made.hmac) -> tuple[str, int]:
        answer = boxes.ask(box, RenewDelegationTokenRequest(secret, period_ms), user)
        return ErrorCode(answer.error_code).name, answer.expiry_timestamp_ms

    def expire(user: str, period_ms: int) -> tuple[str, int]:
        answer = boxes.ask(box, ExpireDelegationTokenRequest(made.hmac, period_ms), user)
        return ErrorCode(answer.error_code).name, answer.expiry_timestamp_ms

    assert renew("carol", 1) == expire("carol", -1) == ("DELEGATION_TOKEN_OWNER_MISMATCH", -1)
    assert renew("bob", 10 * DAY_MS) == ("NONE", made.max_timestamp_ms)
    assert renew("alice", 2**63 - 1) == ("NONE", made.max_timestamp_ms)
    assert renew("alice", 1, b"other") == ("DELEGATION_TOKEN_NOT_FOUND", -1)
    code, expires_ms = renew("bob", -1)
    assert code == "NONE" and expires_ms - boxes.clock.wall_ms() in range(DAY_MS - 60_000, DAY_MS + 1)
    code, expires_ms = expire("alice", 1_000)
    assert code == "NONE" and image(box).tokens[made.token_id][0].expires_ms == expires_ms
    boxes.clock.advance_ms(2_000)
    assert renew("alice", -1) == expire("alice", 1) == ("DELEGATION_TOKEN_EXPIRED", -1)
    code, ended_ms = expire("bob", -1)
    assert code == "NONE" and 0 <= boxes.clock.wall_ms() - ended_ms < 60_000
    assert boxes.nodes() == [] and not image(box).tokens
    assert expire("bob", -1) == ("DELEGATION_TOKEN_NOT_FOUND", -1)


def test_principals_that_a_token_cannot_have_are_refused(boxes: Boxes) -> None:
    box = boxes.start()
    group = TokenPrincipal("Group", "bob")
    refused = {
        CreateDelegationTokenRequest(None, None, (group,), -1): "INVALID_PRINCIPAL_TYPE",
        CreateDelegationTokenRequest("Group", "bob", (), -1): "INVALID_PRINCIPAL_TYPE",
        CreateDelegationTokenRequest("User", "local:0", (), -1): "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
        CreateDelegationTokenRequest(None, None, (BOB,) * 101, -1): "POLICY_VIOLATION",
        CreateDelegationTokenRequest(None, None, (TokenPrincipal("User", "x" * 300),), -1): "POLICY_VIOLATION",
    }
    for request, code in refused.items():
        answer = boxes.ask(box, request)
        assert (ErrorCode(answer.error_code).name, answer.token_id, answer.hmac) == (code, "", b"")
    assert boxes.nodes() == []
    made = boxes.ask(box, CreateDelegationTokenRequest("User", "bob", (), -1))
    assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (0, "bob", "alice")


def test_tokens_are_described_by_owner(boxes: Boxes) -> None:
    box = boxes.start()
    first, second = boxes.create(box, CAROL), boxes.create(box, user="bob")

    def described(owners: tuple[TokenPrincipal, ...] | None, version: int = 3) -> dict[str, tuple[bytes, tuple[TokenPrincipal, ...]]]:
        answer = boxes.ask(box, DescribeDelegationTokenRequest(owners), version=version)
        assert answer.error_code == 0
        return {each.token_id: (each.hmac, each.renewers) for each in answer.tokens}

    of_alice, of_bob = {first.token_id: (first.hmac, (CAROL,))}, {second.token_id: (second.hmac, ())}
    assert described(None) == described(None, 1) == of_alice | of_bob
    assert described((CAROL,)) == of_alice and described((BOB,)) == of_bob and described(()) == {}


def test_each_box_follows_what_another_one_and_a_kafka_write(boxes: Boxes) -> None:
    first, second = boxes.start(), boxes.start()
    made = boxes.create(first)
    boxes.until(lambda: made.token_id in image(second).tokens, "box 2 has it")
    assert image(second).tokens == image(first).tokens
    renewed = boxes.ask(second, RenewDelegationTokenRequest(made.hmac, 5_000))
    boxes.until(lambda: image(first).tokens[made.token_id][0].expires_ms == renewed.expiry_timestamp_ms, "box 1 has the new expiry")
    of_old_kafka = {"version": 1, "owner": "User:dave", "renewers": [], "issueTimestamp": 1, "maxTimestamp": 2**50, "expiryTimestamp": 2**50, "tokenId": "old"}
    boxes.server.write(Create("/delegation_token/tokens/old", orjson.dumps(of_old_kafka)))
    boxes.server.write(Create("/delegation_token/tokens/damaged", b"{}"))
    for token_id in (b"damaged", b"old"):
        boxes.server.write(Create("/delegation_token/token_changes/token_change_", token_id, sequence=True))
    boxes.until(lambda: all("old" in image(box).tokens for box in (first, second)), "both have what a Kafka wrote")
    token = image(first).tokens["old"][0]
    assert token.owner == token.requester == Principal("User", "dave") and "damaged" not in image(first).tokens
    boxes.server.write(SetData("/delegation_token/tokens/old", orjson.dumps({**of_old_kafka, "tokenId": "../other"}), -1))
    boxes.server.write(Create("/delegation_token/token_changes/token_change_", b"old", sequence=True))
    boxes.until(lambda: "old" not in image(first).tokens, "a node of another token is none")


def test_the_controller_of_the_cluster_removes_expired_tokens(boxes: Boxes) -> None:
    first, second = boxes.start(), boxes.start()
    made, kept = boxes.create(second, lifetime_ms=2_000), boxes.create(second)
    boxes.until(lambda: len(image(first).tokens) == 2, "the controller knows both")
    boxes.clock.advance_ms(3_600_000)
    boxes.until(lambda: boxes.nodes() == [kept.token_id], "the expired one is gone")
    boxes.until(lambda: all(set(image(box).tokens) == {kept.token_id} for box in (first, second)), "and in both images")
    assert made.token_id not in image(second).tokens


def test_tokens_have_limits(boxes: Boxes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.controller.admin.tokens.TOKENS_OF_REQUESTER_MAX", 1)
    monkeypatch.setattr("services.controller.admin.tokens.TOKENS_MAX", 2)
    box = boxes.start()
    first = boxes.create(box)
    assert boxes.ask(box, CreateDelegationTokenRequest()).error_code == ErrorCode.POLICY_VIOLATION
    boxes.create(box, user="bob")
    assert boxes.ask(box, CreateDelegationTokenRequest(), "carol").error_code == ErrorCode.POLICY_VIOLATION
    monkeypatch.setattr("services.controller.admin.tokens.CHANGES_MAX", 0)
    assert boxes.ask(box, ExpireDelegationTokenRequest(first.hmac, -1)).error_code == ErrorCode.POLICY_VIOLATION
    boxes.clock.advance_ms(8 * DAY_MS)
    boxes.until(lambda: boxes.nodes() == [], "expired ones are removed nevertheless")


def test_a_principal_that_changes_tokens_without_end_hinders_no_other(boxes: Boxes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.controller.admin.tokens.CHANGES_OF_ONE_MAX", 3)
    box = boxes.start()
    made = boxes.create(box)
    codes = [boxes.ask(box, RenewDelegationTokenRequest(made.hmac, period_ms)).error_code for period_ms in (1_000_000, 2_000_000, 3_000_000)]
    assert codes == [0, 0, ErrorCode.POLICY_VIOLATION]
    boxes.create(box, user="bob")
    boxes.clock.advance_ms(15 * 60 * 1000)
    boxes.until(lambda: boxes.ask(box, RenewDelegationTokenRequest(made.hmac, 3_000_000)).error_code == 0, "it may again after 15 minutes")


def test_tokens_that_change_at_about_the_same_time_are_published_together(boxes: Boxes) -> None:
    box = boxes.start()
    boxes.create(box)
    boxes.clock.stand_still()
    before = image(box).generation
    clients = [boxes.send(box, CreateDelegationTokenRequest(), f"user-{number}") for number in range(5)]
    boxes.until(lambda: len(boxes.nodes()) == 6, "all are written")
    assert image(box).generation <= before + 1
    boxes.clock.advance_ms(PUBLISH_MS)
    answers = [boxes.answer(client, CreateDelegationTokenRequest) for client in clients]
    assert all(answer.error_code == 0 and answer.token_id in image(box).tokens for answer in answers)
    assert image(box).generation <= before + 2


@pytest.mark.parametrize("key_file", ["", "missing"])
def test_without_a_key_there_are_no_tokens(boxes: Boxes, key_file: str) -> None:
    box = boxes.start(key_file)
    for request in (
        CreateDelegationTokenRequest(),
        RenewDelegationTokenRequest(b"x"),
        ExpireDelegationTokenRequest(b"x"),
        DescribeDelegationTokenRequest(),
    ):
        assert boxes.ask(box, request).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert not os.path.exists(box.layout.token_image_file)
    with pytest.raises(NoNode):
        boxes.server.write(Get("/delegation_token"))


def test_secrets_do_not_appear_in_words() -> None:
    for message in (
        token_apis.CreateDelegationTokenResponse(hmac=b"hush"),
        token_apis.RenewDelegationTokenRequest(b"hush"),
        token_apis.ExpireDelegationTokenRequest(b"hush"),
        token_apis.DescribedDelegationToken("User", "alice", hmac=b"hush"),
    ):
        assert "hush" not in repr(message)
    assert ApiKey.CREATE_DELEGATION_TOKEN == 38
