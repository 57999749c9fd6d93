"""OffsetFetch 0-9: how far groups have read.

Owned by nobody; messages as data. Up to version 7 request and response are about one group, from version 8 about several; here they
are always lists. Weak spots: an older response does not name its group, so decoding one leaves the id empty; versions 0 and 1 have no
error code for the whole group, so it has to stand in every partition (`failed_group`). kio begins at version 1.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.base.invariants import check
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT16, INT32, INT64, STRING, ArrayOf, Field, Message, OlderShape
from appliance.protocol.topic_partitions import TopicPartitions

NO_OFFSET: Final = -1
_SINGLE_UNTIL: Final = 7
_GROUP_ERROR_SINCE: Final = 2


class OffsetFetchGroup(NamedTuple):
    """What is asked of one group; `topics` is None for all that it has committed. Member id and epoch are of KIP-848."""

    group_id: Annotated[str, Field(STRING)] = ""
    member_id: Annotated[str | None, Field(STRING, since=9, nullable_since=9)] = None
    member_epoch: Annotated[int, Field(INT32, since=9)] = -1
    topics: Annotated[tuple[TopicPartitions, ...] | None, Field(ArrayOf(TopicPartitions), nullable_since=0)] = None


class OffsetFetchRequest(NamedTuple):
    """`require_stable`: not while a transaction may still change the offsets."""

    groups: Annotated[tuple[OffsetFetchGroup, ...], Field(ArrayOf(OffsetFetchGroup))] = ()
    require_stable: Annotated[bool, Field(BOOL, since=7)] = False


class OffsetFetchPartitionResult(NamedTuple):
    """What was committed last; −1 and an empty text if nothing was."""

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
    """One group's offsets, or why not."""

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


REQUEST: Final = Message(ApiKey.OFFSET_FETCH, "OffsetFetch request", OffsetFetchRequest, OlderShape(_SINGLE_UNTIL, _OneGroup, _widen_request, _narrow_request))
RESPONSE: Final = Message(
    ApiKey.OFFSET_FETCH, "OffsetFetch response", OffsetFetchResponse, OlderShape(_SINGLE_UNTIL, _OneGroupResult, _widen_response, _narrow_response)
)


def failed_group(version: int, group: OffsetFetchGroup, error_code: int) -> OffsetFetchGroupResult:
    """The answer for a group that cannot be asked, in the place where `version` shows it."""
    if version >= _GROUP_ERROR_SINCE:
        return OffsetFetchGroupResult(group.group_id, error_code=error_code)
    topics = tuple(
        OffsetFetchTopicResult(topic, tuple(OffsetFetchPartitionResult(partition, error_code=error_code) for partition in partitions))
        for topic, partitions in group.topics or ()
    )
    return OffsetFetchGroupResult(group.group_id, topics)
