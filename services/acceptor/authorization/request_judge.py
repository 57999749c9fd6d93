"""What an authorizer leaves of a request to the controller or the coordinator, and what it changes in the response.

One rule for each forwarded API, after Kafka's `KafkaApis`. A rule takes out what the principal may not do;
the rest is forwarded, and the parts that were taken out return to the response with their errors. A request of
which nothing is left is answered at once. Pure: messages in, messages out. Used only by acceptors of boxes with
an authorizer. Weak spot: a request of which something is taken out is encoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_TOPIC_ID
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.metadata_image import MetadataImage
from appliance.protocol import (
    config_apis,
    consumer_group_apis,
    group_apis,
    group_offset_apis,
    share_apis,
    streams_apis,
    token_apis,
    topic_apis,
    transaction_apis,
)
from appliance.protocol.apis import SHARE_STATE_KEYS, ApiKey
from appliance.protocol.forwarded_apis import CONTROLLER_APIS, COORDINATED_APIS
from appliance.protocol.topic_partitions import TopicResult, same_result
from appliance.security.acl import AclOperation, AclResource
from appliance.security.authorizer import Rights

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
)
TOPIC, GROUP, TRANSACTIONAL_ID = AclResource.TOPIC, AclResource.GROUP, AclResource.TRANSACTIONAL_ID

TOPIC_DENIED, GROUP_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_DENIED, TRANSACTIONAL_ID_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
TEXTS: Final = {
    TOPIC_DENIED: "Topic authorization failed.",
    CLUSTER_DENIED: "Cluster authorization failed.",
    GROUP_DENIED: "Group authorization failed.",
    ErrorCode.UNKNOWN_TOPIC_ID: "This server does not host this topic ID.",
}
BATCHED_BY_BROKERS_SINCE: Final = 4
"""AddPartitionsToTxn from this version on is sent by brokers."""

Complete: TypeAlias = Callable[[Any], Any]
"""From the response of the owner to that of the client."""


class Ruling(NamedTuple):
    """What is left of a request. `request` None: nothing, and `response` is the answer."""

    request: Any = None
    complete: Complete | None = None
    response: Any = None


class Asked(NamedTuple):
    """A decoded request and what a rule needs to judge it."""

    api_key: int
    version: int
    request: Any
    rights: Rights
    image: MetadataImage

    def refused(self, code: ErrorCode, text: str | None = None) -> Ruling:
        """The error in each place of the response."""
        api = COORDINATED_APIS.get(self.api_key)
        response = api.response if api is not None else CONTROLLER_APIS[self.api_key][1]
        return Ruling(response=response.error_response(self.version, self.request, code, text or TEXTS.get(code)))


Rule: TypeAlias = Callable[[Asked], Ruling | None]
"""None: everything is allowed, and the response needs no change."""


def _on_cluster(operation: AclOperation) -> Rule:
    """The whole request needs one operation on the cluster."""

    def rule(asked: Asked) -> Ruling | None:
        return None if asked.rights.allows_on_cluster(operation) else asked.refused(CLUSTER_DENIED)

    return rule


def _split(items: Iterable[Any], is_allowed: Callable[[Any], bool]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    allowed: list[Any] = []
    denied: list[Any] = []
    for item in items:
        (allowed if is_allowed(item) else denied).append(item)
    return tuple(allowed), tuple(denied)


# --- topics and configs, at the controller


def _create_topics(asked: Asked) -> Ruling | None:
    rights, request = asked.rights, asked.request
    all_topics = rights.would_allow_on_cluster(CREATE)
    allowed, denied = _split(request.topics, lambda topic: all_topics or rights.allows(CREATE, TOPIC, topic.name))
    refused = tuple(
        _without_configs(rights, topic_apis.CreatedTopic(name, error_code=TOPIC_DENIED, error_message="Authorization failed."))
        for name in dict.fromkeys(each.name for each in denied)
    )

    def complete(response: topic_apis.CreateTopicsResponse) -> topic_apis.CreateTopicsResponse:
        return response._replace(topics=tuple(topic if topic.error_code else _without_configs(rights, topic) for topic in response.topics) + refused)

    if not allowed and denied:
        return Ruling(response=topic_apis.CreateTopicsResponse(0, refused))
    return Ruling(request._replace(topics=allowed), complete)


def _without_configs(rights: Rights, topic: topic_apis.CreatedTopic) -> topic_apis.CreatedTopic:
    """Without DESCRIBE_CONFIGS, the response does not show what the topic has got."""
    if rights.would_allow(AclOperation.DESCRIBE_CONFIGS, TOPIC, topic.name):
        return topic
    return topic._replace(num_partitions=-1, replication_factor=-1, configs=None, topic_config_error_code=TOPIC_DENIED)


def _delete_topics(asked: Asked) -> Ruling | None:
    """By name and by id: without DESCRIBE the name of an id is not disclosed."""
    rights, image = asked.rights, asked.image
    wanted = topic_apis.topics_to_delete(asked.request)
    allowed: list[topic_apis.TopicToDelete] = []
    refused: list[topic_apis.DeletedTopic] = []
    for topic in wanted:
        known = image.topics_by_id.get(topic.topic_id) if topic.topic_id != NO_TOPIC_ID else None
        name = topic.name if topic.name is not None else known.name if known is not None else None
        if name is None:  # the controller's image may be newer, and the controller does not judge
            refused.append(topic_apis.DeletedTopic(None, topic.topic_id, ErrorCode.UNKNOWN_TOPIC_ID, TEXTS[ErrorCode.UNKNOWN_TOPIC_ID]))
            continue
        if rights.allows(DELETE, TOPIC, name):
            allowed.append(topic)
            continue
        shown = name if topic.name is not None or rights.would_allow(DESCRIBE, TOPIC, name) else None
        refused.append(topic_apis.DeletedTopic(shown, topic.topic_id, TOPIC_DENIED, TEXTS[TOPIC_DENIED]))
    if not refused:
        return None
    if not allowed:
        return Ruling(response=topic_apis.DeleteTopicsResponse(0, tuple(refused)))
    request = asked.request
    request = request._replace(topics=tuple(allowed)) if request.topics else request._replace(topic_names=tuple(each.name or "" for each in allowed))
    return Ruling(request, lambda response: response._replace(topics=(*response.topics, *refused)))


def _create_partitions(asked: Asked) -> Ruling | None:
    allowed, denied = _split(asked.request.topics, lambda topic: asked.rights.allows(ALTER, TOPIC, topic.name))
    if not denied:
        return None
    refused = tuple(topic_apis.GrownTopic(name, TOPIC_DENIED) for name in dict.fromkeys(each.name for each in denied))
    if not allowed:
        return Ruling(response=topic_apis.CreatePartitionsResponse(0, refused))
    return Ruling(asked.request._replace(topics=allowed), lambda response: response._replace(results=response.results + refused))


def _configs(operation: AclOperation, describes: bool) -> Rule:
    """Topics and groups need the operation on themselves, everything else on the cluster."""

    def denial(rights: Rights, resource: Any) -> ErrorCode | None:
        if resource.resource_type == config_apis.ResourceType.TOPIC:
            return None if rights.allows(operation, TOPIC, resource.resource_name) else TOPIC_DENIED
        if resource.resource_type == config_apis.ResourceType.GROUP:
            return None if rights.allows(operation, GROUP, resource.resource_name) else GROUP_DENIED
        return None if rights.allows_on_cluster(operation) else CLUSTER_DENIED

    def rule(asked: Asked) -> Ruling | None:
        allowed, denied = _split(asked.request.resources, lambda resource: denial(asked.rights, resource) is None)
        if not denied:
            return None
        codes = [denial(asked.rights, resource) or CLUSTER_DENIED for resource in denied]
        result = config_apis.DescribedResource if describes else config_apis.AlteredResource
        refused = tuple(result(code, TEXTS[code], each.resource_type, each.resource_name) for code, each in zip(codes, denied, strict=True))
        if not allowed:
            whole = config_apis.DescribeConfigsResponse(0, refused) if describes else config_apis.AlteredResources(0, refused)  # type: ignore[arg-type]
            return Ruling(response=whole)
        field = "results" if describes else "responses"
        return Ruling(asked.request._replace(resources=allowed), lambda response: response._replace(**{field: getattr(response, field) + refused}))

    return rule


# --- delegation tokens, at the controller


def _create_token(asked: Asked) -> Ruling | None:
    """For another owner, CREATE_TOKENS on that user."""
    request, rights = asked.request, asked.rights
    owner = f"{request.owner_principal_type}:{request.owner_principal_name}" if request.owner_principal_name else rights.principal
    if owner == rights.principal or rights.allows(AclOperation.CREATE_TOKENS, AclResource.USER, owner):
        return None
    return asked.refused(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)


def _of_own_token(_asked: Asked) -> Ruling | None:
    """The controller compares the client with owner and renewers."""
    return None


def _describe_tokens(asked: Asked) -> Ruling | None:
    """Owner, requester and renewers see a token, others with DESCRIBE on it, or DESCRIBE_TOKENS on its owner."""
    rights = asked.rights

    def is_seen(token: token_apis.DescribedDelegationToken) -> bool:
        owner = f"{token.principal_type}:{token.principal_name}"
        requester = f"{token.token_requester_principal_type}:{token.token_requester_principal_name}"
        if rights.principal in (owner, requester, *(f"{each.principal_type}:{each.principal_name}" for each in token.renewers)):
            return True
        if rights.would_allow(DESCRIBE, AclResource.DELEGATION_TOKEN, token.token_id):
            return True
        return rights.would_allow(AclOperation.DESCRIBE_TOKENS, AclResource.USER, owner)

    return Ruling(asked.request, lambda response: response._replace(tokens=tuple(filter(is_seen, response.tokens))))


# --- groups


def _member(asked: Asked) -> Ruling | None:
    """JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""
    return None if asked.rights.allows(READ, GROUP, asked.request.group_id) else asked.refused(GROUP_DENIED)


def _consumer_heartbeat(asked: Asked) -> Ruling | None:
    """As Kafka 4: each topic in the subscription needs DESCRIBE. Topics of an expression are filtered by the coordinator."""
    rights, request = asked.rights, asked.request
    if not rights.allows(READ, GROUP, request.group_id):
        return asked.refused(GROUP_DENIED)
    if not all(rights.allows(DESCRIBE, TOPIC, name) for name in request.subscribed_topic_names or ()):
        return asked.refused(TOPIC_DENIED)
    return None


def _streams_heartbeat(asked: Asked) -> Ruling | None:
    """As Kafka 4: each topic of the topology needs DESCRIBE. Whether the member may create those that are missing is the coordinator's question."""
    rights, request = asked.rights, asked.request
    if not rights.allows(READ, GROUP, request.group_id):
        return asked.refused(GROUP_DENIED)
    names = _streams_topics(request.topology.subtopologies) if request.topology is not None else set()
    if not all(rights.allows(DESCRIBE, TOPIC, name) for name in names):
        return asked.refused(TOPIC_DENIED)
    return None


def _streams_topics(subtopologies: Iterable[Any]) -> set[str]:
    """Return the topics that subtopologies name, in a request or a description."""
    named = {name for each in subtopologies for name in (*each.source_topics, *each.repartition_sink_topics)}
    return named | {info.name for each in subtopologies for info in (*each.changelog_topics, *each.repartition_source_topics)}


def _streams_group_describe(asked: Asked) -> Ruling | None:
    rights, request = asked.rights, asked.request
    allowed, denied = _split(request.group_ids, lambda group: rights.allows(DESCRIBE, GROUP, group))
    refused = tuple(streams_apis.DescribedStreamsGroup(GROUP_DENIED, group_id=group) for group in denied)

    def seen(group: streams_apis.DescribedStreamsGroup) -> Any:
        subtopologies = group.topology.subtopologies or () if group.topology is not None else ()
        if not all(rights.would_allow(DESCRIBE, TOPIC, topic) for topic in _streams_topics(subtopologies)):
            text = "The group has described topic(s) that the client is not authorized to describe."
            return streams_apis.DescribedStreamsGroup(TOPIC_DENIED, text, group.group_id)
        return _with_operations(asked, group)

    if not allowed and denied:
        return Ruling(response=streams_apis.StreamsGroupDescribeResponse(0, refused))
    return Ruling(request._replace(group_ids=allowed), lambda response: response._replace(groups=tuple(map(seen, response.groups)) + refused))


def _consumer_group_describe(asked: Asked) -> Ruling | None:
    rights, request = asked.rights, asked.request
    allowed, denied = _split(request.group_ids, lambda group: rights.allows(DESCRIBE, GROUP, group))
    refused = tuple(consumer_group_apis.DescribedConsumerGroup(GROUP_DENIED, group_id=group) for group in denied)

    def seen(group: consumer_group_apis.DescribedConsumerGroup) -> consumer_group_apis.DescribedConsumerGroup:
        topics = {topic for member in group.members for topic in (*member.subscribed_topic_names, *(each.topic for each in member.assignment.topic_partitions))}
        topics |= {each.topic for member in group.members for each in member.target_assignment.topic_partitions}
        if not all(rights.would_allow(DESCRIBE, TOPIC, topic) for topic in topics):
            text = "The group has described topic(s) that the client is not authorized to describe."
            return consumer_group_apis.DescribedConsumerGroup(TOPIC_DENIED, text, group.group_id)
        described: consumer_group_apis.DescribedConsumerGroup = _with_operations(asked, group)
        return described

    def complete(response: consumer_group_apis.ConsumerGroupDescribeResponse) -> Any:
        return response._replace(groups=tuple(map(seen, response.groups)) + refused)

    if not allowed and denied:
        return Ruling(response=consumer_group_apis.ConsumerGroupDescribeResponse(0, refused))
    return Ruling(request._replace(group_ids=allowed), complete)


def _share_group_describe(asked: Asked) -> Ruling | None:
    rights, request = asked.rights, asked.request
    allowed, denied = _split(request.group_ids, lambda group: rights.allows(DESCRIBE, GROUP, group))
    refused = tuple(share_apis.DescribedShareGroup(GROUP_DENIED, group_id=group) for group in denied)

    def seen(group: share_apis.DescribedShareGroup) -> Any:
        topics = {topic for member in group.members for topic in (*member.subscribed_topic_names, *(each.topic for each in member.assignment.topic_partitions))}
        if not all(rights.would_allow(DESCRIBE, TOPIC, topic) for topic in topics):
            text = "The group has described topic(s) that the client is not authorized to describe."
            return share_apis.DescribedShareGroup(TOPIC_DENIED, text, group.group_id)
        return _with_operations(asked, group)

    if not allowed and denied:
        return Ruling(response=share_apis.ShareGroupDescribeResponse(0, refused))
    return Ruling(request._replace(group_ids=allowed), lambda response: response._replace(groups=tuple(map(seen, response.groups)) + refused))


def _share_fetch(asked: Asked) -> Ruling | None:
    """Each topic needs READ. A topic of the session that is denied now is refused whole: a session does not say which topics it has."""
    rights, request, image = asked.rights, asked.request, asked.image
    if not rights.allows(READ, GROUP, request.group_id or ""):
        return asked.refused(GROUP_DENIED)

    def may_read(topic: share_apis.ShareTopicRequest) -> bool:
        known = image.topics_by_id.get(topic.topic_id)
        return known is None or rights.allows(READ, TOPIC, known.name)

    allowed, denied = _split(request.topics, may_read)
    is_fetch = isinstance(request, share_apis.ShareFetchRequest)

    def refusal(topic: share_apis.ShareTopicRequest) -> Any:
        if is_fetch:
            parts = tuple(share_apis.SharePartitionResponse(each.partition, TOPIC_DENIED, None, TOPIC_DENIED) for each in topic.partitions)
            return share_apis.ShareTopicResponse(topic.topic_id, parts)
        return share_apis.AcknowledgedTopic(topic.topic_id, tuple(share_apis.AcknowledgedPartition(each.partition, TOPIC_DENIED) for each in topic.partitions))

    refused = tuple(map(refusal, denied))

    def complete(response: Any) -> Any:
        readable = tuple(map(seen, response.topics)) if is_fetch else response.topics
        return response if response.error_code else response._replace(topics=readable + refused)

    def seen(topic: share_apis.ShareTopicResponse) -> share_apis.ShareTopicResponse:
        known = image.topics_by_id.get(topic.topic_id)
        if known is not None and rights.allows(READ, TOPIC, known.name):
            return topic
        return topic._replace(partitions=tuple(share_apis.SharePartitionResponse(each.partition, TOPIC_DENIED) for each in topic.partitions))

    return Ruling(request._replace(topics=allowed), complete) if denied or is_fetch else None


def _describe_share_offsets(asked: Asked) -> Ruling | None:
    rights, request = asked.rights, asked.request
    allowed, denied = _split(request.groups, lambda group: rights.allows(DESCRIBE, GROUP, group.group_id))
    refused = tuple(share_apis.DescribedShareOffsets(group.group_id, (), GROUP_DENIED) for group in denied)

    def seen(group: share_apis.DescribedShareOffsets) -> share_apis.DescribedShareOffsets:
        return group._replace(topics=tuple(topic for topic in group.topics if rights.allows(DESCRIBE, TOPIC, topic.topic)))

    if not allowed and denied:
        return Ruling(response=share_apis.DescribeShareGroupOffsetsResponse(0, refused))
    return Ruling(request._replace(groups=allowed), lambda response: response._replace(groups=tuple(map(seen, response.groups)) + refused))


def _change_share_offsets(operation: AclOperation) -> Rule:
    """As Kafka 4: the operation on the group, and READ on each topic."""

    def rule(asked: Asked) -> Ruling | None:
        rights, request = asked.rights, asked.request
        if not rights.allows(operation, GROUP, request.group_id):
            return asked.refused(GROUP_DENIED)
        allowed, denied = _split(request.topics, lambda topic: rights.allows(READ, TOPIC, topic.topic))
        if not denied:
            return None
        if operation is DELETE:
            refused: tuple[Any, ...] = tuple(share_apis.DeletedShareOffsets(each.topic, NO_TOPIC_ID, TOPIC_DENIED) for each in denied)
        else:
            refused = tuple(
                share_apis.AlteredShareOffsets(
                    each.topic, NO_TOPIC_ID, tuple(share_apis.AlteredShareOffset(one.partition, TOPIC_DENIED) for one in each.partitions)
                )
                for each in denied
            )
        return Ruling(request._replace(topics=allowed), lambda response: response._replace(topics=response.topics + refused))

    return rule


def _describe_groups(asked: Asked) -> Ruling | None:
    rights, request = asked.rights, asked.request
    allowed, denied = _split(request.group_ids, lambda group: rights.allows(DESCRIBE, GROUP, group))
    refused = tuple(group_apis.DescribedGroup(GROUP_DENIED, group_id=group) for group in denied)
    if not allowed and denied:
        return Ruling(response=group_apis.DescribeGroupsResponse(0, refused))
    return Ruling(
        request._replace(group_ids=allowed),
        lambda response: response._replace(groups=tuple(_with_operations(asked, group) for group in response.groups) + refused),
    )


def _with_operations(asked: Asked, group: Any) -> Any:
    if group.error_code or not asked.request.include_authorized_operations:
        return group
    return group._replace(authorized_operations=asked.rights.operations(GROUP, group.group_id))


def _list_groups(asked: Asked) -> Ruling | None:
    rights = asked.rights
    if rights.would_allow_on_cluster(DESCRIBE):
        return None

    def complete(response: group_apis.ListGroupsResponse) -> group_apis.ListGroupsResponse:
        return response._replace(groups=tuple(each for each in response.groups if rights.would_allow(DESCRIBE, GROUP, each.group_id)))

    return Ruling(asked.request, complete)


def _delete_groups(asked: Asked) -> Ruling | None:
    allowed, denied = _split(asked.request.group_ids, lambda group: asked.rights.allows(DELETE, GROUP, group))
    if not denied:
        return None
    refused = tuple(group_apis.DeletedGroup(group, GROUP_DENIED) for group in dict.fromkeys(denied))
    if not allowed:
        return Ruling(response=group_apis.DeleteGroupsResponse(0, refused))
    return Ruling(asked.request._replace(group_ids=allowed), lambda response: response._replace(groups=response.groups + refused))


# --- offsets


def _topics_apart(asked: Asked, make: Callable[[tuple[TopicResult, ...]], Any] | None) -> Ruling | None:
    """Each topic of a commit or deletion needs READ. `make` makes the response if all are denied; None: the owner is asked even then, because the
    group may have an error."""
    allowed, denied = _split(asked.request.topics, lambda topic: asked.rights.allows(READ, TOPIC, topic.topic))
    if not denied:
        return None
    refused = same_result(denied, TOPIC_DENIED)
    if not allowed and make is not None:
        return Ruling(response=make(refused))

    def complete(response: Any) -> Any:
        return response if getattr(response, "error_code", 0) else response._replace(topics=response.topics + refused)

    return Ruling(asked.request._replace(topics=allowed), complete)


def _offset_commit(asked: Asked) -> Ruling | None:
    if not asked.rights.allows(READ, GROUP, asked.request.group_id):
        return asked.refused(GROUP_DENIED)
    return _topics_apart(asked, lambda topics: group_offset_apis.OffsetCommitResponse(0, topics))


def _offset_delete(asked: Asked) -> Ruling | None:
    if not asked.rights.allows(DELETE, GROUP, asked.request.group_id):
        return asked.refused(GROUP_DENIED)
    return _topics_apart(asked, None)


def _offset_fetch(asked: Asked) -> Ruling | None:
    """Named topics that are denied have an error; a request for all topics does not show them."""
    rights, request = asked.rights, asked.request
    groups, denied_groups = _split(request.groups, lambda group: rights.allows(DESCRIBE, GROUP, group.group_id))
    refused = tuple(group_offset_apis.failed_group(asked.version, group, GROUP_DENIED) for group in denied_groups)
    denied: dict[str, tuple[Any, ...]] = {}
    asked_all = {group.group_id for group in groups if group.topics is None}
    left = []
    for group in groups:
        if group.topics is not None:
            allowed, taken = _split(group.topics, lambda topic: rights.allows(DESCRIBE, TOPIC, topic.topic))
            if taken:
                denied[group.group_id] = tuple(
                    group_offset_apis.OffsetFetchTopicResult(
                        topic, tuple(group_offset_apis.OffsetFetchPartitionResult(number, error_code=TOPIC_DENIED) for number in numbers)
                    )
                    for topic, numbers in taken
                )
                group = group._replace(topics=allowed)
        left.append(group)

    single = groups[0].group_id if len(request.groups) == 1 and groups else None
    """Older responses do not name their group."""

    def whole(result: group_offset_apis.OffsetFetchGroupResult) -> group_offset_apis.OffsetFetchGroupResult:
        group_id = result.group_id or single or ""
        topics = result.topics
        if group_id in asked_all:
            topics = tuple(topic for topic in topics if rights.would_allow(DESCRIBE, TOPIC, topic.topic))
        return result if result.error_code else result._replace(topics=topics + denied.get(group_id, ()))

    def complete(response: group_offset_apis.OffsetFetchResponse) -> group_offset_apis.OffsetFetchResponse:
        return response._replace(groups=tuple(map(whole, response.groups)) + refused)

    if not groups and denied_groups:
        return Ruling(response=group_offset_apis.OffsetFetchResponse(0, refused))
    if not (denied or refused or asked_all):
        return None
    return Ruling(request._replace(groups=tuple(left)), complete)


# --- transactions


def _init_producer_id(asked: Asked) -> Ruling | None:
    rights, transactional_id = asked.rights, asked.request.transactional_id
    if transactional_id is not None:
        return None if rights.allows(WRITE, TRANSACTIONAL_ID, transactional_id) else asked.refused(TRANSACTIONAL_ID_DENIED)
    is_allowed = rights.allows_any(WRITE, TOPIC) or rights.allows_on_cluster(AclOperation.IDEMPOTENT_WRITE)
    return None if is_allowed else asked.refused(CLUSTER_DENIED)


def _add_partitions(asked: Asked) -> Ruling | None:
    """One denied topic fails the whole transaction: its other partitions are not attempted."""
    rights = asked.rights
    if asked.version >= BATCHED_BY_BROKERS_SINCE:
        if rights.allows_on_cluster(AclOperation.CLUSTER_ACTION):
            return None
        return Ruling(response=transaction_apis.AddPartitionsToTxnResponse(error_code=CLUSTER_DENIED))
    (transaction,) = asked.request.transactions
    if not rights.allows(WRITE, TRANSACTIONAL_ID, transaction.transactional_id):
        return asked.refused(TRANSACTIONAL_ID_DENIED)
    allowed, denied = _split(transaction.topics, lambda topic: rights.allows(WRITE, TOPIC, topic.topic))
    if not denied:
        return None
    topics = same_result(denied, TOPIC_DENIED) + same_result(allowed, ErrorCode.OPERATION_NOT_ATTEMPTED)
    return Ruling(response=transaction_apis.AddPartitionsToTxnResponse(transactions=(transaction_apis.ExtendedTransaction("", topics),)))


def _transaction(asked: Asked) -> Ruling | None:
    """EndTxn, AddOffsetsToTxn and TxnOffsetCommit: the id, then the group if there is one."""
    request = asked.request
    if not asked.rights.allows(WRITE, TRANSACTIONAL_ID, request.transactional_id):
        return asked.refused(TRANSACTIONAL_ID_DENIED)
    if asked.api_key != ApiKey.END_TXN and not asked.rights.allows(READ, GROUP, request.group_id):
        return asked.refused(GROUP_DENIED)
    if asked.api_key == ApiKey.TXN_OFFSET_COMMIT:
        return _topics_apart(asked, lambda topics: transaction_apis.TxnOffsetCommitResponse(0, topics))
    return None


def _describe_transactions(asked: Asked) -> Ruling | None:
    rights = asked.rights
    allowed, denied = _split(asked.request.transactional_ids, lambda each: rights.allows(DESCRIBE, TRANSACTIONAL_ID, each))
    refused = tuple(transaction_apis.DescribedTransaction(TRANSACTIONAL_ID_DENIED, each) for each in denied)

    def seen(transaction: transaction_apis.DescribedTransaction) -> transaction_apis.DescribedTransaction:
        return transaction._replace(topics=tuple(each for each in transaction.topics if rights.would_allow(DESCRIBE, TOPIC, each.topic)))

    if not allowed and denied:
        return Ruling(response=transaction_apis.DescribeTransactionsResponse(0, refused))
    return Ruling(
        asked.request._replace(transactional_ids=allowed),
        lambda response: response._replace(transactions=tuple(map(seen, response.transactions)) + refused),
    )


def _list_transactions(asked: Asked) -> Ruling | None:
    rights = asked.rights

    def complete(response: transaction_apis.ListTransactionsResponse) -> transaction_apis.ListTransactionsResponse:
        seen = (each for each in response.transactions if rights.would_allow(DESCRIBE, TRANSACTIONAL_ID, each.transactional_id))
        return response._replace(transactions=tuple(seen))

    return Ruling(asked.request, complete)


RULES: Final[dict[ApiKey, Rule]] = {
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DESCRIBE_CONFIGS: _configs(AclOperation.DESCRIBE_CONFIGS, True),
    ApiKey.ALTER_CONFIGS: _configs(AclOperation.ALTER_CONFIGS, False),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs(AclOperation.ALTER_CONFIGS, False),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _on_cluster(ALTER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _on_cluster(ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _on_cluster(DESCRIBE),
    ApiKey.ELECT_LEADERS: _on_cluster(ALTER),
    ApiKey.UNREGISTER_BROKER: _on_cluster(ALTER),
    ApiKey.DESCRIBE_ACLS: _on_cluster(DESCRIBE),
    ApiKey.CREATE_ACLS: _on_cluster(ALTER),
    ApiKey.DELETE_ACLS: _on_cluster(ALTER),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _on_cluster(AclOperation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CLIENT_QUOTAS: _on_cluster(AclOperation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _on_cluster(DESCRIBE),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _on_cluster(ALTER),
    ApiKey.CREATE_DELEGATION_TOKEN: _create_token,
    ApiKey.RENEW_DELEGATION_TOKEN: _of_own_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: _of_own_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _describe_tokens,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.OFFSET_DELETE: _offset_delete,
    ApiKey.JOIN_GROUP: _member,
    ApiKey.HEARTBEAT: _member,
    ApiKey.LEAVE_GROUP: _member,
    ApiKey.SYNC_GROUP: _member,
    ApiKey.DESCRIBE_GROUPS: _describe_groups,
    ApiKey.LIST_GROUPS: _list_groups,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _consumer_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _consumer_group_describe,
    ApiKey.STREAMS_GROUP_HEARTBEAT: _streams_heartbeat,
    ApiKey.STREAMS_GROUP_DESCRIBE: _streams_group_describe,
    ApiKey.SHARE_GROUP_HEARTBEAT: _consumer_heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: _share_group_describe,
    ApiKey.SHARE_FETCH: _share_fetch,
    ApiKey.SHARE_ACKNOWLEDGE: _share_fetch,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _describe_share_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _change_share_offsets(READ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _change_share_offsets(DELETE),
    **dict.fromkeys(SHARE_STATE_KEYS, _on_cluster(AclOperation.CLUSTER_ACTION)),
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: _transaction,
    ApiKey.END_TXN: _transaction,
    ApiKey.TXN_OFFSET_COMMIT: _transaction,
    ApiKey.DESCRIBE_TRANSACTIONS: _describe_transactions,
    ApiKey.LIST_TRANSACTIONS: _list_transactions,
}
"""All forwarded APIs; a test compares them with `forwarded_apis`."""


class Judged(NamedTuple):
    """`body` None: `answer` is the body of the response. Otherwise `body` is forwarded, and `complete` applied to the body of its response."""

    body: bytes | None
    answer: bytes = b""
    complete: Callable[[bytes], bytes] | None = None


class RequestJudge:
    """Applies the rules to bodies of requests and responses."""

    def __init__(self, view: MetadataCache) -> None:
        self._view = view

    def judge(self, rights: Rights, api_key: int, version: int, body: bytes) -> Judged:
        """Judge a request. Raises ProtocolViolation for a body that cannot be decoded."""
        if rights.is_super_user:
            return Judged(body)
        api = COORDINATED_APIS.get(api_key) or CONTROLLER_APIS[api_key]
        request, response = api[0], api[1]
        ruling = RULES[ApiKey(api_key)](Asked(api_key, version, request.decode(body, 0, len(body), version), rights, self._view.image))
        if ruling is None:
            return Judged(body)
        if ruling.request is None:
            return Judged(None, response.encode(version, ruling.response))
        change = ruling.complete

        def complete(answer: bytes) -> bytes:
            decoded = response.decode(answer, 0, len(answer), version, len(answer), len(answer))
            return response.encode(version, change(decoded) if change is not None else decoded)

        return Judged(request.encode(version, ruling.request), complete=complete)
