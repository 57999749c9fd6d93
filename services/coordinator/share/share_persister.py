"""The way to the share coordinators, for the coordinators of groups and the leaders of partitions: of this box or of another one.

A request goes to the box that leads the key's partition of `__share_group_state`, and again after an error that passes, for a bounded time; the
share coordinator's answers to a repeated request are the same (`share_states`). Owned by the coordinator. Weak spot: without an answer from another
box it is unknown whether it has carried out a change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from appliance.base.errors import ErrorCode, known_error
from appliance.base.model import TopicId
from appliance.client.peers import OnAnswer
from appliance.protocol import share_state_apis as apis
from appliance.protocol.schema import Message
from appliance.runtime.timers import Timers
from services.coordinator.share.share_states import Place, ShareKey, ShareStates, state_partition_of

TIMEOUT_MS: Final = 5_000
"""Of all attempts together: a client's request waits for it, for which the acceptor waits no more than `ANSWER_TIMEOUT_MS`."""
RETRY_MS: Final = 50
WRITES_CHANNEL: Final = 8
OTHERS_CHANNEL: Final = 9
_PASSES: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,  # that box does not know the address of this one yet
    }
)


class StateRequester(Protocol):
    """`client.peers.Peers`, as far as it is needed."""

    def ask(self, broker_id: int, question: Message[Any], reply: Message[Any], body: Any, on_answer: OnAnswer, timeout_ms: int, *, channel: int) -> None: ...


class StatePartitions(Protocol):
    """The leaders of `__share_group_state`."""

    @property
    def broker_id(self) -> int: ...

    def state_leaders(self) -> tuple[int, ...]:
        """Return the leader of each partition (-1: none); empty: there is no such topic."""


class _Api(NamedTuple):
    """One of the APIs, and the rule that answers it in this box."""

    question: Message[Any]
    reply: Message[Any]
    request: type[Any]
    topic: type[Any]
    result: type[Any]
    rule: Callable[[ShareStates, Any, Callable[[Any], None]], None]
    channel: int = OTHERS_CHANNEL


_INITIALIZE: Final = _Api(
    apis.INITIALIZE_SHARE_GROUP_STATE_REQUEST,
    apis.INITIALIZE_SHARE_GROUP_STATE_RESPONSE,
    apis.InitializeShareGroupStateRequest,
    apis.TopicInitializedStates,
    apis.StateResult,
    ShareStates.initialize,
)
_READ: Final = _Api(
    apis.READ_SHARE_GROUP_STATE_REQUEST,
    apis.READ_SHARE_GROUP_STATE_RESPONSE,
    apis.ReadShareGroupStateRequest,
    apis.TopicReadStates,
    apis.ReadStateResult,
    ShareStates.read,
)
_WRITE: Final = _Api(
    apis.WRITE_SHARE_GROUP_STATE_REQUEST,
    apis.WRITE_SHARE_GROUP_STATE_RESPONSE,
    apis.WriteShareGroupStateRequest,
    apis.TopicWrittenStates,
    apis.StateResult,
    ShareStates.write,
    WRITES_CHANNEL,
)
_DELETE: Final = _Api(
    apis.DELETE_SHARE_GROUP_STATE_REQUEST,
    apis.DELETE_SHARE_GROUP_STATE_RESPONSE,
    apis.DeleteShareGroupStateRequest,
    apis.TopicDeletedStates,
    apis.StateResult,
    ShareStates.delete,
)
_SUMMARIZE: Final = _Api(
    apis.READ_SHARE_GROUP_STATE_SUMMARY_REQUEST,
    apis.READ_SHARE_GROUP_STATE_SUMMARY_RESPONSE,
    apis.ReadShareGroupStateRequest,
    apis.TopicReadStates,
    apis.StateSummary,
    ShareStates.summarize,
)


class _Asking:
    """Share partitions of one group that are asked about, until each has its result."""

    def __init__(self, api: _Api, group_id: str, parts: Mapping[Place, Any], deadline_ms: int, on_done: Callable[[dict[Place, Any]], None]) -> None:
        self.api = api
        self.group_id = group_id
        self.waiting = dict(parts)
        self.results: dict[Place, Any] = {}
        self.deadline_ms = deadline_ms
        self.on_done = on_done


class SharePersister:
    """Of one box."""

    def __init__(self, states: ShareStates, partitions: StatePartitions, peers: StateRequester, timers: Timers, now_ms: Callable[[], int]) -> None:
        self._states = states
        self._partitions = partitions
        self._peers = peers
        self._timers = timers
        self._now_ms = now_ms

    # ---- for coordinators of groups

    def initialize(self, group_id: str, parts: Iterable[tuple[Place, int, int]], on_done: Callable[[dict[Place, apis.StateResult]], None]) -> None:
        """`parts`: with state epochs and start offsets, as in `InitializedState`."""
        self._begin(_INITIALIZE, group_id, {place: apis.InitializedState(place[1], epoch, start_offset) for place, epoch, start_offset in parts}, on_done)

    def delete(self, group_id: str, places: Collection[Place], on_done: Callable[[dict[Place, apis.StateResult]], None]) -> None:
        self._begin(_DELETE, group_id, {place: apis.DeletedState(place[1]) for place in places}, on_done)

    def summarize(self, group_id: str, places: Collection[Place], on_done: Callable[[dict[Place, apis.StateSummary]], None]) -> None:
        """UNKNOWN_TOPIC_OR_PARTITION: there is no state."""
        self._begin(_SUMMARIZE, group_id, {place: apis.ReadState(place[1]) for place in places}, on_done)

    # ---- for leaders of partitions

    def read(self, key: ShareKey, leader_epoch: int, on_done: Callable[[apis.ReadStateResult], None], timeout_ms: int = TIMEOUT_MS) -> None:
        part = apis.ReadState(key.partition, leader_epoch)
        self._begin(_READ, key.group_id, {key[1:]: part}, lambda results: on_done(results[key[1:]]), timeout_ms)

    def write(self, key: ShareKey, part: apis.WrittenState, on_done: Callable[[ErrorCode], None]) -> None:
        self._begin(_WRITE, key.group_id, {key[1:]: part}, lambda results: on_done(known_error(results[key[1:]].error_code)))

    # ---- attempts

    def _begin(self, api: _Api, group_id: str, parts: Mapping[Place, Any], on_done: Callable[[dict[Place, Any]], None], timeout_ms: int = TIMEOUT_MS) -> None:
        asking = _Asking(api, group_id, parts, self._now_ms() + timeout_ms, on_done)
        if parts:
            self._attempt(asking)
        else:
            on_done({})

    def _attempt(self, asking: _Asking) -> None:
        leaders = self._partitions.state_leaders()
        by_box: dict[int, dict[Place, Any]] = {}
        for place, part in asking.waiting.items():
            leader = leaders[state_partition_of(ShareKey(asking.group_id, *place), len(leaders))] if leaders else -1
            by_box.setdefault(leader, {})[place] = part
        unanswered = len(by_box)

        def on_answer(parts: dict[Place, Any], response: Any) -> None:
            nonlocal unanswered
            unanswered -= 1
            self._take(asking, parts, response)
            if not unanswered:
                self._go_on(asking)

        for leader, parts in by_box.items():
            api, request = asking.api, _request(asking.api, asking.group_id, parts)
            if leader == self._partitions.broker_id:
                api.rule(self._states, request, partial(on_answer, parts))
            elif leader < 0:
                on_answer(parts, None)
            else:
                left_ms = max(1, asking.deadline_ms - self._now_ms())
                self._peers.ask(leader, api.question, api.reply, request, partial(on_answer, parts), left_ms, channel=api.channel)

    @staticmethod
    def _take(asking: _Asking, parts: Mapping[Place, Any], response: Any) -> None:
        """Keep the results that are final; None: there is no answer, and all may be asked again."""
        for topic in response.results if response is not None else ():
            for result in topic.partitions:
                place = (topic.topic_id, result.partition)
                if place in parts and result.error_code not in _PASSES and asking.waiting.pop(place, None) is not None:
                    asking.results[place] = result

    def _go_on(self, asking: _Asking) -> None:
        now_ms = self._now_ms()
        if asking.waiting and now_ms + RETRY_MS < asking.deadline_ms:
            self._timers.schedule(now_ms + RETRY_MS, lambda _now_ms: self._attempt(asking))
            return
        for place in asking.waiting:
            asking.results[place] = asking.api.result(place[1], ErrorCode.COORDINATOR_NOT_AVAILABLE)
        asking.on_done(asking.results)


def _request(api: _Api, group_id: str, parts: Mapping[Place, Any]) -> Any:
    topics: dict[TopicId, list[Any]] = {}
    for (topic_id, _), part in parts.items():
        topics.setdefault(topic_id, []).append(part)
    return api.request(group_id, tuple(api.topic(topic_id, tuple(rows)) for topic_id, rows in topics.items()))
