"""The rules about forwarded requests. `tests/system/test_authorized_apis.py` compares them with a real Kafka."""

from __future__ import annotations

from typing import Any, cast

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.metadata_image import MetadataImage
from appliance.protocol import consumer_group_apis, group_offset_apis, topic_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.forwarded_apis import CONTROLLER_APIS, COORDINATED_APIS
from appliance.security.acl import AclBinding, AclOperation, AclPermission, AclResource, PatternType
from appliance.security.authorizer import Authorizer, Rights
from services.acceptor.authorization.request_judge import RULES, RequestJudge
from services.acceptor.handlers.coordinated import COORDINATED_KEYS


class _View:
    image = MetadataImage.empty()


JUDGE = RequestJudge(cast(MetadataCache, _View()))


def rights(*allowed: tuple[AclResource, str, AclOperation]) -> Rights:
    authorizer = Authorizer()
    authorizer.replace([AclBinding(kind, name, PatternType.LITERAL, "User:a", "*", operation, AclPermission.ALLOW) for kind, name, operation in allowed])
    return authorizer.rights_of("User:a", "10.0.0.1")


def test_every_forwarded_api_has_a_rule() -> None:
    assert RULES.keys() == CONTROLLER_APIS.keys() | COORDINATED_APIS.keys() == CONTROLLER_APIS.keys() | COORDINATED_KEYS


def test_a_super_users_request_is_forwarded_as_it_is() -> None:
    judged = JUDGE.judge(Authorizer(["User:a"]).rights_of("User:a", "::1"), ApiKey.DELETE_TOPICS, 6, b"not even decoded")
    assert judged.body == b"not even decoded" and judged.complete is None


def test_denied_topics_of_a_commit_are_left_out_and_return_with_their_error() -> None:
    request, response = group_offset_apis.OFFSET_COMMIT_REQUEST, group_offset_apis.OFFSET_COMMIT_RESPONSE
    partitions = (group_offset_apis.OffsetCommitPartition(0, 5),)
    body = request.encode(7, group_offset_apis.OffsetCommitRequest("g", topics=tuple(group_offset_apis.OffsetCommitTopic(name, partitions) for name in "ab")))
    judged = JUDGE.judge(rights((AclResource.GROUP, "g", AclOperation.READ), (AclResource.TOPIC, "b", AclOperation.READ)), ApiKey.OFFSET_COMMIT, 7, body)
    assert judged.body is not None and judged.complete is not None
    forwarded = request.decode(judged.body, 0, len(judged.body), 7)
    assert [topic.topic for topic in forwarded.topics] == ["b"]
    answer = judged.complete(response.encode(7, group_offset_apis.OffsetCommitResponse(0, group_offset_apis.same_result(forwarded.topics, 0))))
    topics = response.decode(answer, 0, len(answer), 7).topics
    assert {topic.topic: topic.partitions[0].error_code for topic in topics} == {"a": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "b": 0}


def test_a_request_of_which_nothing_is_left_is_not_forwarded() -> None:
    request, response = topic_apis.DELETE_TOPICS_REQUEST, topic_apis.DELETE_TOPICS_RESPONSE
    for version in (1, 5, 6):
        wanted: dict[str, Any] = {"topics": (topic_apis.TopicToDelete("t"),)} if version == 6 else {"topic_names": ("t",)}
        judged = JUDGE.judge(rights(), ApiKey.DELETE_TOPICS, version, request.encode(version, topic_apis.DeleteTopicsRequest(**wanted)))
        assert judged.body is None
        (topic,) = response.decode(judged.answer, 0, len(judged.answer), version).topics
        assert (topic.name, topic.error_code) == ("t", ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def test_a_topic_id_that_this_image_does_not_know_is_not_deleted() -> None:
    """The controller's image may be newer, and the controller does not judge again."""
    request, response = topic_apis.DELETE_TOPICS_REQUEST, topic_apis.DELETE_TOPICS_RESPONSE
    unknown = TopicId(bytes(15) + b"7")
    body = request.encode(6, topic_apis.DeleteTopicsRequest(topics=(topic_apis.TopicToDelete(None, unknown),)))
    judged = JUDGE.judge(rights(), ApiKey.DELETE_TOPICS, 6, body)
    assert judged.body is None
    (topic,) = response.decode(judged.answer, 0, len(judged.answer), 6).topics
    assert (topic.name, topic.topic_id, topic.error_code) == (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID)


def test_a_consumer_may_subscribe_only_to_topics_that_it_may_describe() -> None:
    request, response = consumer_group_apis.CONSUMER_GROUP_HEARTBEAT_REQUEST, consumer_group_apis.CONSUMER_GROUP_HEARTBEAT_RESPONSE
    body = request.encode(1, consumer_group_apis.ConsumerGroupHeartbeatRequest("g", "m", subscribed_topic_names=("a", "b")))

    def code(*allowed: tuple[AclResource, str, AclOperation]) -> int | None:
        judged = JUDGE.judge(rights(*allowed), ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)
        return None if judged.body is not None else int(response.decode(judged.answer, 0, len(judged.answer), 1).error_code)

    group, a, b = (AclResource.GROUP, "g", AclOperation.READ), (AclResource.TOPIC, "a", AclOperation.READ), (AclResource.TOPIC, "b", AclOperation.DESCRIBE)
    assert code(a, b) == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert code(group, a) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert code(group, a, b) is None
