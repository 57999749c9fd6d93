"""APIs of committed offsets: messages as data.

OffsetCommit 0-9 (kio: 2-9), OffsetFetch 0-9 (kio: 1-9) and OffsetDelete 0 (KIP-496).
"""

from typing import Annotated, Final, NamedTuple

from appliance.base.invariants import check
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT16, INT32, INT64, STRING, ArrayOf, Field, Message, OlderShape
from appliance.protocol.topic_partitions import TopicPartitions, TopicResult, same_result

# -- OffsetCommit: store the next offsets that a group reads.
#
# `generation_id` is a member epoch for groups of the newer protocol (KIP-848). Version 0 has neither
# member nor generation; version 1 has a time for each partition; versions 2 to 4 have a retention time.

NO_GENERATION: Final = -1
DEFAULT_RETENTION: Final = -1
NOW: Final = -1


class OffsetCommitPartition(NamedTuple):
    """The next offset to read; `commit_timestamp_ms` −1 means now."""

    partition: Annotated[int, Field(INT32)]
    offset: Annotated[int, Field(INT64)]
    leader_epoch: Annotated[int, Field(INT32, since=6)] = -1
    commit_timestamp_ms: Annotated[int, Field(INT64, since=1, until=1)] = NOW
    metadata: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class OffsetCommitTopic(NamedTuple):
    """Partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[OffsetCommitPartition, ...], Field(ArrayOf(OffsetCommitPartition))] = ()


class OffsetCommitRequest(NamedTuple):
    """A group, its member and offsets; `retention_time_ms` −1: the broker's setting."""

    group_id: Annotated[str, Field(STRING)] = ""
    generation_id: Annotated[int, Field(INT32, since=1)] = NO_GENERATION
    member_id: Annotated[str, Field(STRING, since=1)] = ""
    group_instance_id: Annotated[str | None, Field(STRING, since=7, nullable_since=7)] = None
    retention_time_ms: Annotated[int, Field(INT64, since=2, until=4)] = DEFAULT_RETENTION
    topics: Annotated[tuple[OffsetCommitTopic, ...], Field(ArrayOf(OffsetCommitTopic))] = ()


class OffsetCommitResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32, since=3)] = 0
    topics: Annotated[tuple[TopicResult, ...], Field(ArrayOf(TopicResult))] = ()


OFFSET_COMMIT_REQUEST: Final = Message(ApiKey.OFFSET_COMMIT, "OffsetCommit request", OffsetCommitRequest)
OFFSET_COMMIT_RESPONSE: Final = Message(
    ApiKey.OFFSET_COMMIT,
    "OffsetCommit response",
    OffsetCommitResponse,
    error=lambda _version, request, code, _text: OffsetCommitResponse(0, same_result(request.topics, code)),
)


# -- OffsetFetch: read the committed offsets of groups.
#
# Up to version 7 request and response have one group, from version 8 several; here they are always
# lists. An older response does not name its group, so decoding one leaves the id empty. Versions 0 and 1
# have no error code for the group: it stands in each partition (`failed_group`).

NO_OFFSET: Final = -1
_SINGLE_UNTIL: Final = 7
_GROUP_ERROR_SINCE: Final = 2


class OffsetFetchGroup(NamedTuple):
    """One group; `topics` None: all committed offsets. Member id and epoch are of KIP-848."""

    group_id: Annotated[str, Field(STRING)] = ""
    member_id: Annotated[str | None, Field(STRING, since=9, nullable_since=9)] = None
    member_epoch: Annotated[int, Field(INT32, since=9)] = -1
    topics: Annotated[tuple[TopicPartitions, ...] | None, Field(ArrayOf(TopicPartitions), nullable_since=0)] = None


class OffsetFetchRequest(NamedTuple):
    """`require_stable`: refuse partitions whose offsets an open transaction may still change."""

    groups: Annotated[tuple[OffsetFetchGroup, ...], Field(ArrayOf(OffsetFetchGroup))] = ()
    require_stable: Annotated[bool, Field(BOOL, since=7)] = False


class OffsetFetchPartitionResult(NamedTuple):
    """The last committed offset; −1 and an empty string if there is none."""

    partition: Annotated[int, Field(INT32)]
    offset: Annotated[int, Field(INT64)] = NO_OFFSET
    leader_epoch: Annotated[int, Field(INT32, since=5)] = -1
    metadata: Annotated[str | None, Field(STRING, nullable_since=0)] = ""
    error_code: Annotated[int, Field(INT16)] = 0


class OffsetFetchTopicResult(NamedTuple):
    """Partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[OffsetFetchPartitionResult, ...], Field(ArrayOf(OffsetFetchPartitionResult))] = ()


class OffsetFetchGroupResult(NamedTuple):
    """One group's offsets, or an error."""

    group_id: Annotated[str, Field(STRING)] = ""
    topics: Annotated[tuple[OffsetFetchTopicResult, ...], Field(ArrayOf(OffsetFetchTopicResult))] = ()
    error_code: Annotated[int, Field(INT16)] = 0


class OffsetFetchResponse(NamedTuple):
    """Groups in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32, since=3)] = 0
    groups: Annotated[tuple[OffsetFetchGroupResult, ...], Field(ArrayOf(OffsetFetchGroupResult))] = ()


class _OneGroup(NamedTuple):
    group_id: Annotated[str, Field(STRING)]
    topics: Annotated[tuple[TopicPartitions, ...] | None, Field(ArrayOf(TopicPartitions), nullable_since=2)]
    require_stable: Annotated[bool, Field(BOOL, since=7)] = False


class _OneGroupResult(NamedTuple):
    throttle_time_ms: Annotated[int, Field(INT32, since=3)] = 0
    topics: Annotated[tuple[OffsetFetchTopicResult, ...], Field(ArrayOf(OffsetFetchTopicResult))] = ()
    error_code: Annotated[int, Field(INT16, since=_GROUP_ERROR_SINCE)] = 0


def _widen_request(request: _OneGroup) -> OffsetFetchRequest:
    return OffsetFetchRequest((OffsetFetchGroup(request.group_id, topics=request.topics),), request.require_stable)


def _narrow_request(request: OffsetFetchRequest) -> _OneGroup:
    check(len(request.groups) == 1, f"{len(request.groups)} groups are asked for in a version that knows one")
    return _OneGroup(request.groups[0].group_id, request.groups[0].topics, request.require_stable)


def _widen_response(response: _OneGroupResult) -> OffsetFetchResponse:
    return OffsetFetchResponse(response.throttle_time_ms, (OffsetFetchGroupResult("", response.topics, response.error_code),))


def _narrow_response(response: OffsetFetchResponse) -> _OneGroupResult:
    check(len(response.groups) == 1, f"{len(response.groups)} groups are answered in a version that knows one")
    return _OneGroupResult(response.throttle_time_ms, response.groups[0].topics, response.groups[0].error_code)


OFFSET_FETCH_REQUEST: Final = Message(
    ApiKey.OFFSET_FETCH, "OffsetFetch request", OffsetFetchRequest, OlderShape(_SINGLE_UNTIL, _OneGroup, _widen_request, _narrow_request)
)
OFFSET_FETCH_RESPONSE: Final = Message(
    ApiKey.OFFSET_FETCH,
    "OffsetFetch response",
    OffsetFetchResponse,
    OlderShape(_SINGLE_UNTIL, _OneGroupResult, _widen_response, _narrow_response),
    error=lambda version, request, code, _text: OffsetFetchResponse(0, tuple(failed_group(version, group, code) for group in request.groups)),
)


def failed_group(version: int, group: OffsetFetchGroup, error_code: int) -> OffsetFetchGroupResult:
    """An error for a group, in the place where `version` has it."""
    if version >= _GROUP_ERROR_SINCE:
        return OffsetFetchGroupResult(group.group_id, error_code=error_code)
    topics = tuple(
        OffsetFetchTopicResult(topic, tuple(OffsetFetchPartitionResult(partition, error_code=error_code) for partition in partitions))
        for topic, partitions in group.topics or ()
    )
    return OffsetFetchGroupResult(group.group_id, topics)


# -- OffsetDelete: delete the committed offsets of some partitions.


class OffsetDeletePartition(NamedTuple):
    """One partition."""

    partition: Annotated[int, Field(INT32)]


class OffsetDeleteTopic(NamedTuple):
    """Partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[OffsetDeletePartition, ...], Field(ArrayOf(OffsetDeletePartition))] = ()


class OffsetDeleteRequest(NamedTuple):
    """A group and partitions."""

    group_id: Annotated[str, Field(STRING)] = ""
    topics: Annotated[tuple[OffsetDeleteTopic, ...], Field(ArrayOf(OffsetDeleteTopic))] = ()


class OffsetDeleteResponse(NamedTuple):
    """Results in the order of the request, or an error for all of them."""

    error_code: Annotated[int, Field(INT16)] = 0
    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    topics: Annotated[tuple[TopicResult, ...], Field(ArrayOf(TopicResult))] = ()


OFFSET_DELETE_REQUEST: Final = Message(ApiKey.OFFSET_DELETE, "OffsetDelete request", OffsetDeleteRequest)
OFFSET_DELETE_RESPONSE: Final = Message(ApiKey.OFFSET_DELETE, "OffsetDelete response", OffsetDeleteResponse)
