"""APIs with which brokers keep the state of share groups (KIP-932): messages as data.

The coordinator of a group initializes and deletes the state of a share partition and reads its summary; the leader
of the partition reads the state when it becomes leader, and writes it. The broker that leads the key's partition of
`__share_group_state` answers. kio knows every version.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple

from appliance.base.model import TopicId
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT8, INT16, INT32, INT64, STRING, UUID, ArrayOf, Field, Message

UNINITIALIZED: Final = -1
"""The start offset of a share partition whose leader has not chosen one."""


class KeptBatch(NamedTuple):
    """Offsets of one state (0 available, 2 acknowledged, 4 archived)."""

    first_offset: Annotated[int, Field(INT64)]
    last_offset: Annotated[int, Field(INT64)]
    delivery_state: Annotated[int, Field(INT8)]
    delivery_count: Annotated[int, Field(INT16)]


class StateResult(NamedTuple):
    """The result of a change of one share partition."""

    partition: Annotated[int, Field(INT32)]
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class TopicStateResults(NamedTuple):
    """Share partitions of one topic."""

    topic_id: Annotated[TopicId, Field(UUID)]
    partitions: Annotated[tuple[StateResult, ...], Field(ArrayOf(StateResult))] = ()


class StateResponse(NamedTuple):
    """Of the APIs that change something."""

    results: Annotated[tuple[TopicStateResults, ...], Field(ArrayOf(TopicStateResults))] = ()


class InitializedState(NamedTuple):
    """`state_epoch` 0: only if there is no state. `start_offset` -1: the leader of the partition is to choose it."""

    partition: Annotated[int, Field(INT32)]
    state_epoch: Annotated[int, Field(INT32)] = 0
    start_offset: Annotated[int, Field(INT64)] = UNINITIALIZED


class TopicInitializedStates(NamedTuple):
    """Share partitions of one topic."""

    topic_id: Annotated[TopicId, Field(UUID)]
    partitions: Annotated[tuple[InitializedState, ...], Field(ArrayOf(InitializedState))] = ()


class InitializeShareGroupStateRequest(NamedTuple):
    """Share partitions of one group."""

    group_id: Annotated[str, Field(STRING)]
    topics: Annotated[tuple[TopicInitializedStates, ...], Field(ArrayOf(TopicInitializedStates))] = ()


class ReadState(NamedTuple):
    """The share partition, and the leader epoch of the broker that asks."""

    partition: Annotated[int, Field(INT32)]
    leader_epoch: Annotated[int, Field(INT32)] = -1


class TopicReadStates(NamedTuple):
    """Share partitions of one topic."""

    topic_id: Annotated[TopicId, Field(UUID)]
    partitions: Annotated[tuple[ReadState, ...], Field(ArrayOf(ReadState))] = ()


class ReadShareGroupStateRequest(NamedTuple):
    """Share partitions of one group; of ReadShareGroupStateSummary, too."""

    group_id: Annotated[str, Field(STRING)]
    topics: Annotated[tuple[TopicReadStates, ...], Field(ArrayOf(TopicReadStates))] = ()


class ReadStateResult(NamedTuple):
    """The state of one share partition."""

    partition: Annotated[int, Field(INT32)]
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    state_epoch: Annotated[int, Field(INT32)] = 0
    start_offset: Annotated[int, Field(INT64)] = UNINITIALIZED
    state_batches: Annotated[tuple[KeptBatch, ...], Field(ArrayOf(KeptBatch))] = ()


class TopicReadResults(NamedTuple):
    """Share partitions of one topic."""

    topic_id: Annotated[TopicId, Field(UUID)]
    partitions: Annotated[tuple[ReadStateResult, ...], Field(ArrayOf(ReadStateResult))] = ()


class ReadShareGroupStateResponse(NamedTuple):
    """Results in the order of the request."""

    results: Annotated[tuple[TopicReadResults, ...], Field(ArrayOf(TopicReadResults))] = ()


class WrittenState(NamedTuple):
    """All that a leader knows of one share partition; `delivery_complete_count`: offsets of the batches that are done."""

    partition: Annotated[int, Field(INT32)]
    state_epoch: Annotated[int, Field(INT32)] = 0
    leader_epoch: Annotated[int, Field(INT32)] = 0
    start_offset: Annotated[int, Field(INT64)] = UNINITIALIZED
    delivery_complete_count: Annotated[int, Field(INT32, since=1)] = -1
    state_batches: Annotated[tuple[KeptBatch, ...], Field(ArrayOf(KeptBatch))] = ()


class TopicWrittenStates(NamedTuple):
    """Share partitions of one topic."""

    topic_id: Annotated[TopicId, Field(UUID)]
    partitions: Annotated[tuple[WrittenState, ...], Field(ArrayOf(WrittenState))] = ()


class WriteShareGroupStateRequest(NamedTuple):
    """Share partitions of one group."""

    group_id: Annotated[str, Field(STRING)]
    topics: Annotated[tuple[TopicWrittenStates, ...], Field(ArrayOf(TopicWrittenStates))] = ()


class DeletedState(NamedTuple):
    """A share partition whose state is to be forgotten."""

    partition: Annotated[int, Field(INT32)]


class TopicDeletedStates(NamedTuple):
    """Share partitions of one topic."""

    topic_id: Annotated[TopicId, Field(UUID)]
    partitions: Annotated[tuple[DeletedState, ...], Field(ArrayOf(DeletedState))] = ()


class DeleteShareGroupStateRequest(NamedTuple):
    """Share partitions of one group."""

    group_id: Annotated[str, Field(STRING)]
    topics: Annotated[tuple[TopicDeletedStates, ...], Field(ArrayOf(TopicDeletedStates))] = ()


class StateSummary(NamedTuple):
    """The state of one share partition without its batches."""

    partition: Annotated[int, Field(INT32)]
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    state_epoch: Annotated[int, Field(INT32)] = 0
    leader_epoch: Annotated[int, Field(INT32)] = 0
    start_offset: Annotated[int, Field(INT64)] = UNINITIALIZED
    delivery_complete_count: Annotated[int, Field(INT32, since=1)] = -1


class TopicStateSummaries(NamedTuple):
    """Share partitions of one topic."""

    topic_id: Annotated[TopicId, Field(UUID)]
    partitions: Annotated[tuple[StateSummary, ...], Field(ArrayOf(StateSummary))] = ()


class ReadShareGroupStateSummaryResponse(NamedTuple):
    """Results in the order of the request."""

    results: Annotated[tuple[TopicStateSummaries, ...], Field(ArrayOf(TopicStateSummaries))] = ()


def _each(response: type[Any], topic: type[Any], result: type[Any]) -> Callable[[int, Any, int, str | None], Any]:
    """Return what refuses a request: the same error for each share partition."""

    def error(_version: int, request: Any, code: int, text: str | None) -> Any:
        rows = tuple(topic(each.topic_id, tuple(result(part.partition, code, text) for part in each.partitions)) for each in request.topics)
        return response(rows)

    return error


_CHANGED: Final = _each(StateResponse, TopicStateResults, StateResult)

INITIALIZE_SHARE_GROUP_STATE_REQUEST: Final = Message(
    ApiKey.INITIALIZE_SHARE_GROUP_STATE, "InitializeShareGroupState request", InitializeShareGroupStateRequest
)
INITIALIZE_SHARE_GROUP_STATE_RESPONSE: Final = Message(ApiKey.INITIALIZE_SHARE_GROUP_STATE, "InitializeShareGroupState response", StateResponse, error=_CHANGED)
READ_SHARE_GROUP_STATE_REQUEST: Final = Message(ApiKey.READ_SHARE_GROUP_STATE, "ReadShareGroupState request", ReadShareGroupStateRequest)
READ_SHARE_GROUP_STATE_RESPONSE: Final = Message(
    ApiKey.READ_SHARE_GROUP_STATE,
    "ReadShareGroupState response",
    ReadShareGroupStateResponse,
    error=_each(ReadShareGroupStateResponse, TopicReadResults, ReadStateResult),
)
WRITE_SHARE_GROUP_STATE_REQUEST: Final = Message(ApiKey.WRITE_SHARE_GROUP_STATE, "WriteShareGroupState request", WriteShareGroupStateRequest)
WRITE_SHARE_GROUP_STATE_RESPONSE: Final = Message(ApiKey.WRITE_SHARE_GROUP_STATE, "WriteShareGroupState response", StateResponse, error=_CHANGED)
DELETE_SHARE_GROUP_STATE_REQUEST: Final = Message(ApiKey.DELETE_SHARE_GROUP_STATE, "DeleteShareGroupState request", DeleteShareGroupStateRequest)
DELETE_SHARE_GROUP_STATE_RESPONSE: Final = Message(ApiKey.DELETE_SHARE_GROUP_STATE, "DeleteShareGroupState response", StateResponse, error=_CHANGED)
READ_SHARE_GROUP_STATE_SUMMARY_REQUEST: Final = Message(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, "ReadShareGroupStateSummary request", ReadShareGroupStateRequest)
READ_SHARE_GROUP_STATE_SUMMARY_RESPONSE: Final = Message(
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    "ReadShareGroupStateSummary response",
    ReadShareGroupStateSummaryResponse,
    error=_each(ReadShareGroupStateSummaryResponse, TopicStateSummaries, StateSummary),
)
