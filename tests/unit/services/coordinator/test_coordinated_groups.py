"""Groups on the partitions that this box leads (`services/coordinator/coordinated_groups.py`): what becomes of the offsets of topics that go."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.cluster.metadata_image import MetadataImage, TopicImage
from appliance.ipc.request_frames import KAFKA_REQUEST, KafkaRequest, unpack_kafka_request
from appliance.protocol import topic_apis
from appliance.protocol.apis import ApiKey
from appliance.security.acl import CLUSTER_NAME, AclBinding, AclOperation, AclPermission, AclResource, PatternType
from appliance.security.authorizer import Authorizer
from appliance.security.principals import Principal, RequestOrigin
from services.coordinator.coordinated_groups import CREATE_TOPICS_VERSION, CREATION_MS, CoordinatedGroups, TopicCreations
from services.coordinator.groups.ports import InternalTopic
from services.coordinator.member_rights import MemberRights


class World:
    """Groups over an image that the test changes; `ended` says of which topics the offsets had to go."""

    def __init__(self) -> None:
        self.view = SimpleNamespace(image=MetadataImage.empty())
        self.ended: list[set[str]] = []
        box = SimpleNamespace(integer=lambda _name: 1, text=lambda _name: "bidirectional")
        topic = SimpleNamespace(serve=lambda _coordinator: None, count_partitions=lambda: 1, refresh=lambda: None)
        counters = cast(Any, SimpleNamespace(counter=lambda _label: None))
        self.groups = CoordinatedGroups(cast(Any, box), cast(Any, topic), cast(Any, self.view), cast(Any, None), lambda: 7, counters)
        self.groups.coordinator = cast(Any, SimpleNamespace(on_topics_deleted=self._on_topics_deleted))

    def _on_topics_deleted(self, topics: Collection[str], now_ms: int) -> None:
        assert now_ms == 7
        self.ended.append(set(topics))

    def see(self, **topics: int) -> None:
        """The next image, with these topics and their ids."""
        images = {name: TopicImage(name, TopicId(bytes([number]) * 16), (), {}) for name, number in topics.items()}
        self.view.image = MetadataImage(self.view.image.generation + 1, "", 1, {}, images)
        self.groups.refresh()


def test_offsets_go_with_their_topic() -> None:
    world = World()
    world.see(a=1, b=2)
    world.see(b=2)
    world.see(b=2, c=3)
    assert world.ended == [{"a"}]


def test_offsets_of_a_topic_that_was_recreated_between_two_images_are_removed() -> None:
    world = World()
    world.see(a=1, b=2)
    world.see(a=3, b=2)
    world.see(a=3, b=2)
    assert world.ended == [{"a"}]


# ---- internal topics of streams groups


class Controller:
    """A link whose answers the test gives."""

    def __init__(self) -> None:
        self.asked: list[tuple[topic_apis.CreateTopicsRequest, Callable[[bytes | None], None]]] = []

    def request(self, kind: int, payload: bytes, timeout_ms: int, on_response: Callable[[bytes | None], None]) -> None:
        assert (kind, timeout_ms) == (KAFKA_REQUEST, CREATION_MS)
        request = unpack_kafka_request(payload)
        assert (request.client_id, request.client_host, str(request.origin.principal)) == ("client", "10.0.0.9", "User:a")
        self.asked.append((topic_apis.CREATE_TOPICS_REQUEST.decode(request.body, 0, len(request.body), request.api_version), on_response))

    def answer(self, **codes: ErrorCode) -> None:
        _, on_response = self.asked.pop(0)
        results = tuple(topic_apis.CreatedTopic(name, error_code=code, error_message=f"because of {name}" if code else None) for name, code in codes.items())
        on_response(topic_apis.encode_create_topics_body(CREATE_TOPICS_VERSION, results))


MEMBER = ("group", "member")
ASKED = KafkaRequest(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, "client", "10.0.0.9", b"body", RequestOrigin(Principal("User", "a"), ""))


def test_an_internal_topic_is_asked_for_once_and_what_refused_it_is_returned_for_a_while() -> None:
    controller = Controller()
    created: list[list[str]] = []
    creations = TopicCreations(cast(Any, controller), lambda asker, names: created.append([asker.client_id, *names]))
    creations.on_heartbeat(MEMBER, ASKED)
    a, b = InternalTopic("a", 3, 0, (("cleanup.policy", "compact"),)), InternalTopic("b", 1, 2, ())
    assert creations.create((a, b), 0, MEMBER) == "" and creations.create((a, b), 1, MEMBER) == ""
    ((request, _),) = controller.asked
    compact = topic_apis.TopicConfig("cleanup.policy", "compact")
    assert request.topics == (topic_apis.CreatableTopic("a", 3, -1, (), (compact,)), topic_apis.CreatableTopic("b", 1, 2))
    controller.answer(a=ErrorCode.TOPIC_ALREADY_EXISTS, b=ErrorCode.INVALID_REPLICATION_FACTOR)
    assert creations.create((b,), 2, MEMBER) == "Creation failed: b: because of b" and not controller.asked
    other = b._replace(replication_factor=1)
    assert creations.create((other,), 2, MEMBER) == "", "what another group needs is another topic"
    controller.answer(b=ErrorCode.NONE)
    assert created == [["client", "b"]]
    assert creations.create((b,), 2 + CREATION_MS, MEMBER) == ""
    assert [topic.name for topic in controller.asked[0][0].topics] == ["b"]


def test_a_controller_that_does_not_answer_is_asked_again() -> None:
    controller = Controller()
    creations = TopicCreations(cast(Any, controller))
    creations.on_heartbeat(MEMBER, ASKED)
    topic = InternalTopic("a", 3, 0, ())
    creations.create((topic,), 0, MEMBER)
    controller.asked.pop()[1](None)
    assert creations.create((topic,), CREATION_MS - 1, MEMBER) == "" and not controller.asked
    creations.create((topic,), CREATION_MS, MEMBER)
    assert len(controller.asked) == 1


def test_a_member_creates_topics_by_a_right_on_the_cluster_or_on_each_of_them() -> None:
    def denied(*allowed: tuple[AclResource, str]) -> list[str]:
        authorizer = Authorizer()
        authorizer.replace([AclBinding(kind, name, PatternType.LITERAL, "User:a", "*", AclOperation.CREATE, AclPermission.ALLOW) for kind, name in allowed])
        rights = MemberRights(cast(Any, SimpleNamespace(authorizer=authorizer)))
        assert rights.not_created(*MEMBER, ["a", "b"]) == ["a", "b"], "its principal is not known"
        rights.on_heartbeat(*MEMBER, ASKED.origin, "10.0.0.9")
        return rights.not_created(*MEMBER, ["a", "b"])

    assert denied() == ["a", "b"]
    assert denied((AclResource.TOPIC, "a")) == ["b"]
    assert denied((AclResource.CLUSTER, CLUSTER_NAME)) == []
