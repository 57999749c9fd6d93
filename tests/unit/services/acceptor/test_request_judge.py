"""The rules about forwarded requests. `tests/system/test_authorized_apis.py` compares them with a real Kafka."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.metadata_image import MetadataImage, TopicImage
from appliance.protocol import consumer_group_apis, group_offset_apis, share_apis, streams_apis, token_apis, topic_apis
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


def test_a_streams_application_names_only_topics_that_it_may_describe() -> None:
    request, response = streams_apis.STREAMS_GROUP_HEARTBEAT_REQUEST, streams_apis.STREAMS_GROUP_HEARTBEAT_RESPONSE
    topology = streams_apis.Topology(
        0, (streams_apis.Subtopology("0", ("a",), changelog_topics=(streams_apis.TopicInfo("b"),), repartition_sink_topics=("c",)),)
    )
    body = request.encode(0, streams_apis.StreamsGroupHeartbeatRequest("g", "m", topology=topology))
    group = streams_apis.DescribedStreamsGroup(group_id="g", topology=streams_apis.DescribedTopology(0, (_described(topology.subtopologies[0]),)))

    def code(*allowed: tuple[AclResource, str, AclOperation]) -> int | None:
        judged = JUDGE.judge(rights(*allowed), ApiKey.STREAMS_GROUP_HEARTBEAT, 0, body)
        return None if judged.body is not None else int(response.decode(judged.answer, 0, len(judged.answer), 0).error_code)

    def described(*allowed: tuple[AclResource, str, AclOperation]) -> int:
        message, answer = streams_apis.STREAMS_GROUP_DESCRIBE_REQUEST, streams_apis.STREAMS_GROUP_DESCRIBE_RESPONSE
        wanted = message.encode(0, streams_apis.StreamsGroupDescribeRequest(("g",)))
        judged = JUDGE.judge(rights(*allowed), ApiKey.STREAMS_GROUP_DESCRIBE, 0, wanted)
        if judged.body is None or judged.complete is None:
            return int(answer.decode(judged.answer, 0, len(judged.answer), 0).groups[0].error_code)
        completed = judged.complete(answer.encode(0, streams_apis.StreamsGroupDescribeResponse(0, (group,))))
        return int(answer.decode(completed, 0, len(completed), 0).groups[0].error_code)

    member = AclResource.GROUP, "g", AclOperation.READ
    topics = [(AclResource.TOPIC, name, AclOperation.DESCRIBE) for name in "abc"]
    assert code(*topics) == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert [code(member, *(topic for topic in topics if topic is not left)) for left in topics] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 3
    assert code(member, *topics) is None
    assert described(*topics) == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert described(member, *topics[:2]) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert described(member, *topics) == 0


def _described(each: streams_apis.Subtopology) -> streams_apis.DescribedSubtopology:
    return streams_apis.DescribedSubtopology(each.subtopology_id, each.source_topics, each.repartition_sink_topics, each.changelog_topics)


SHARED = {name: TopicImage(name, TopicId(name.encode() * 16), (), {}) for name in "ab"}
SHARE_JUDGE = RequestJudge(cast(MetadataCache, SimpleNamespace(image=MetadataImage(1, "", 1, {}, SHARED))))
MEMBER = (AclResource.GROUP, "g", AclOperation.READ)
READS_A = (AclResource.TOPIC, "a", AclOperation.READ)
WANTED = tuple(share_apis.ShareTopicRequest(SHARED[name].topic_id, (share_apis.SharePartitionRequest(0),)) for name in "ab")


def test_a_member_of_a_share_group_gets_records_of_topics_that_it_may_read_only() -> None:
    request, response = share_apis.SHARE_FETCH_REQUEST, share_apis.SHARE_FETCH_RESPONSE
    body = request.encode(2, share_apis.ShareFetchRequest("g", "m", topics=WANTED))
    refused = SHARE_JUDGE.judge(rights(READS_A), ApiKey.SHARE_FETCH, 2, body)
    assert refused.body is None and response.decode(refused.answer, 0, len(refused.answer), 2).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    judged = SHARE_JUDGE.judge(rights(MEMBER, READS_A), ApiKey.SHARE_FETCH, 2, body)
    assert judged.body is not None and judged.complete is not None
    assert request.decode(judged.body, 0, len(judged.body), 2).topics == WANTED[:1]
    # the session may have the other topic from a time when it was allowed
    records = share_apis.SharePartitionResponse(0, records=b"records")
    sent = share_apis.ShareFetchResponse(topics=tuple(share_apis.ShareTopicResponse(each.topic_id, (records,)) for each in WANTED))
    answer = judged.complete(response.encode(2, sent))
    found = [(topic.partitions[0].error_code, topic.partitions[0].records) for topic in response.decode(answer, 0, len(answer), 2).topics]
    denied = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")
    assert found == [(0, b"records"), denied, denied]


def test_a_member_of_a_share_group_acknowledges_records_of_topics_that_it_may_read_only() -> None:
    request, response = share_apis.SHARE_ACKNOWLEDGE_REQUEST, share_apis.SHARE_ACKNOWLEDGE_RESPONSE
    judged = SHARE_JUDGE.judge(
        rights(MEMBER, READS_A), ApiKey.SHARE_ACKNOWLEDGE, 2, request.encode(2, share_apis.ShareAcknowledgeRequest("g", "m", 1, False, WANTED))
    )
    assert judged.body is not None and judged.complete is not None
    assert request.decode(judged.body, 0, len(judged.body), 2).topics == WANTED[:1]
    accepted = share_apis.AcknowledgedTopic(WANTED[0].topic_id, (share_apis.AcknowledgedPartition(0),))
    answer = judged.complete(response.encode(2, share_apis.ShareAcknowledgeResponse(topics=(accepted,))))
    topics = response.decode(answer, 0, len(answer), 2).topics
    assert [topic.partitions[0].error_code for topic in topics] == [0, ErrorCode.TOPIC_AUTHORIZATION_FAILED]


def test_offsets_of_a_share_group_need_the_group_and_the_topics() -> None:
    request, response = share_apis.ALTER_SHARE_GROUP_OFFSETS_REQUEST, share_apis.ALTER_SHARE_GROUP_OFFSETS_RESPONSE
    topics = tuple(share_apis.NewStartOffsets(name, (share_apis.NewStartOffset(0, 7),)) for name in "ab")
    body = request.encode(0, share_apis.AlterShareGroupOffsetsRequest("g", topics))
    assert SHARE_JUDGE.judge(rights(READS_A), ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, body).body is None
    judged = SHARE_JUDGE.judge(rights(MEMBER, READS_A), ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, body)
    assert judged.body is not None and judged.complete is not None
    assert request.decode(judged.body, 0, len(judged.body), 0).topics == topics[:1]
    answer = judged.complete(response.encode(0, share_apis.AlterShareGroupOffsetsResponse()))
    (topic,) = response.decode(answer, 0, len(answer), 0).topics
    assert (topic.topic, topic.partitions[0].error_code) == ("b", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    describe, described = share_apis.DESCRIBE_SHARE_GROUP_OFFSETS_REQUEST, share_apis.DESCRIBE_SHARE_GROUP_OFFSETS_RESPONSE
    judged = SHARE_JUDGE.judge(
        rights(READS_A),
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        1,
        describe.encode(1, share_apis.DescribeShareGroupOffsetsRequest((share_apis.ShareOffsetsGroup("g"),))),
    )
    (group,) = described.decode(judged.answer, 0, len(judged.answer), 1).groups
    assert group.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_a_token_for_another_owner_needs_the_right_to_create_it() -> None:
    request = token_apis.CREATE_DELEGATION_TOKEN_REQUEST
    create = (AclResource.USER, "User:b", AclOperation.CREATE_TOKENS)
    for owner, allowed, is_allowed in ((None, (), True), ("a", (), True), ("b", (), False), ("b", (create,), True), ("c", (create,), False)):
        body = request.encode(3, token_apis.CreateDelegationTokenRequest("User" if owner else None, owner))
        judged = JUDGE.judge(rights(*allowed), ApiKey.CREATE_DELEGATION_TOKEN, 3, body)
        if is_allowed:
            assert judged.body == body and judged.complete is None
        else:
            answer = token_apis.CREATE_DELEGATION_TOKEN_RESPONSE.decode(judged.answer, 0, len(judged.answer), 3)
            assert judged.body is None and answer.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED


def test_a_client_sees_tokens_that_concern_it_or_that_it_may_describe() -> None:
    request, response = token_apis.DESCRIBE_DELEGATION_TOKEN_REQUEST, token_apis.DESCRIBE_DELEGATION_TOKEN_RESPONSE
    token, client = token_apis.DescribedDelegationToken, token_apis.TokenPrincipal("User", "a")
    tokens = (
        token("User", "a", "User", "z", token_id="owned"),
        token("User", "b", "User", "a", token_id="requested"),
        token("User", "b", "User", "b", token_id="renewed", renewers=(client,)),
        token("User", "b", "User", "b", token_id="by id"),
        token("User", "c", "User", "c", token_id="by owner"),
        token("Group", "a", "User", "z", token_id="none"),
    )
    allowed = rights((AclResource.DELEGATION_TOKEN, "by id", AclOperation.DESCRIBE), (AclResource.USER, "User:c", AclOperation.DESCRIBE_TOKENS))
    body = request.encode(3, token_apis.DescribeDelegationTokenRequest(None))
    for those, count in ((allowed, 5), (rights(), 3)):
        judged = JUDGE.judge(those, ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, body)
        assert judged.complete is not None
        answer = judged.complete(response.encode(3, token_apis.DescribeDelegationTokenResponse(0, tokens)))
        assert response.decode(answer, 0, len(answer), 3).tokens == tokens[:count]
