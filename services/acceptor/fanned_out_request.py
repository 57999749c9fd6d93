"""Requests that log-writers or log-readers answer partition by partition.

Each partition is settled once: with a result, an error, or REQUEST_TIMED_OUT when the request takes too
long. The last one makes the response. A partition that cannot be served gets its own error and harms no
other. Owned by one acceptor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_LEADER_EPOCH, LeaderEpoch
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.ipc.log_reader_messages import Answer
from appliance.ipc.log_reader_proxy import QUESTIONS_AHEAD_MAX, LogReaderProxy
from appliance.protocol.framing import RequestHeader
from appliance.security.acl import AclOperation, AclResource
from appliance.shm.partition_table import Row, TornRow
from services.acceptor.connection import Connection, PendingReply
from services.acceptor.leadership import leadership_problem

Result = TypeVar("Result")


class InFlight(Protocol):
    """A descriptor that a log-writer was given and has not completed."""

    def on_completion(self, entry: tuple[Any, ...]) -> None:
        """The log-writer is done. Fields of `entry` as in `ipc.descriptors.Completion`."""

    def on_lost(self) -> None:
        """The log-writer died; whether it was done is not known."""

    def on_hung(self) -> None:
        """The disk hangs. Answer the client now; a completion or `on_lost` still follows."""


class RequestPart(Generic[Result]):
    """One partition of a request: `wanted` is its entry in the request."""

    __slots__ = ("index", "replica", "request", "row", "topic", "topic_index", "wanted")
    replica: LocalReplica
    row: Row

    def __init__(self, request: FannedOutRequest[Result], topic_index: int, index: int) -> None:
        topic = request.topics[topic_index]
        self.request = request
        self.topic_index = topic_index
        self.index = index
        self.topic: str = topic.topic
        self.wanted = topic.partitions[index]

    @property
    def partition(self) -> int:
        return self.wanted if isinstance(self.wanted, int) else int(self.wanted.partition)

    def find(self, view: MetadataCache, current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH, only_leader: bool = True) -> bool:
        """Read the partition's row. False: this broker does not serve it, and the part has its error."""
        replica = view.placement(self.topic, self.partition)
        problem: ErrorCode | None
        if replica is None:
            problem = view.why_absent(self.topic, self.partition)
        else:
            self.replica = replica
            try:
                self.row = row = replica.read_row()
                problem = leadership_problem(row, replica.row_generation, current_leader_epoch, only_leader)
            except TornRow:
                problem = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if problem is not None:
            self.refuse(problem)
        return problem is None

    def is_allowed(self, operation: AclOperation) -> bool:
        """False: the client may not do that to the topic, and the part has its error."""
        rights = self.request.reply.connection.rights
        if rights is None or rights.allows(operation, AclResource.TOPIC, self.topic):
            return True
        self.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return False

    def settle(self, result: Result) -> None:
        self.request.settle(self.topic_index, self.index, result)

    def refuse(self, code: int) -> None:
        self.settle(self.request.refusal(self.wanted, code))


class FannedOutRequest(Generic[Result]):
    """One request; `topics` have a name and partitions. With a deadline it ends by itself."""

    def __init__(
        self,
        on_reply: Callable[[Connection], None],
        reply: PendingReply,
        header: RequestHeader,
        topics: Sequence[Any],
        deadline_ns: int = 0,
    ) -> None:
        self._on_reply = on_reply
        self.reply = reply
        self.header = header
        self.topics = topics
        self.results: list[list[Result | None]] = [[None] * len(topic.partitions) for topic in topics]
        self.remaining = sum(map(len, self.results))
        self.deadline_ns = deadline_ns
        if deadline_ns:
            reply.awaited = self

    def refusal(self, wanted: Any, code: int) -> Result:
        """The result of a partition that has an error."""
        raise NotImplementedError

    def encode(self, results: list[tuple[Any, ...]]) -> bytes:
        """The response, with the results of each topic."""
        raise NotImplementedError

    def settle(self, topic_index: int, index: int, result: Result) -> None:
        """A partition has its result; a later one is ignored."""
        if self.results[topic_index][index] is None:
            self.results[topic_index][index] = result
            self.remaining -= 1
            if not self.remaining:
                self.finish()

    def on_too_late(self) -> None:
        """A log-writer took longer than the client waits."""
        for topic_index, topic in enumerate(self.topics):
            for index, wanted in enumerate(topic.partitions):
                self.settle(topic_index, index, self.refusal(wanted, ErrorCode.REQUEST_TIMED_OUT))

    def finish(self) -> None:
        reply = self.reply
        reply.awaited = None
        reply.pieces = [self.encode([tuple(results) for results in self.results])]
        reply.ready = True
        self._on_reply(reply.connection)


class LookUpRequest(FannedOutRequest[Result]):
    """A request whose partitions are looked up by log-readers, at most `QUESTIONS_AHEAD_MAX` at a time."""

    def __init__(
        self,
        on_reply: Callable[[Connection], None],
        reply: PendingReply,
        header: RequestHeader,
        topics: Sequence[Any],
        readers: dict[str, LogReaderProxy],
        look_up: Callable[[Any, RequestPart[Result]], None],
    ) -> None:
        """`look_up(request, part)` settles a part or asks its log-reader. It must not refer to the request:
        the request refers to it.
        """
        super().__init__(on_reply, reply, header, topics)
        self._readers = readers
        self._look_up = look_up
        self._questions = 0
        self._is_looking = False
        self._todo: Iterator[RequestPart[Result]] = (
            RequestPart(self, index, each) for index, results in enumerate(self.results) for each in range(len(results))
        )

    def go_on(self) -> None:
        """Look up more partitions while there are not too many questions under way."""
        if self.reply.connection.closed:
            self._todo = iter(())  # the generator refers to this request; the process frees no reference cycles
            return
        if self._is_looking:
            return  # called again from inside a question: an answer came, or its log-reader died
        if not self.results or not any(self.results):
            self.finish()
        self._is_looking = True
        for part in self._todo:
            self._look_up(self, part)
            if self._questions >= QUESTIONS_AHEAD_MAX:
                break
        self._is_looking = False

    def ask(
        self,
        part: RequestPart[Result],
        kind: int,
        value_a: int,
        value_b: int,
        then: Callable[[Answer], None],
        otherwise: Result | None = None,
    ) -> None:
        """Ask the log-reader of a part's disk; `then` gets its answer. An error, or `otherwise`, settles the part."""

        def fail(code: int) -> None:
            part.settle(part.request.refusal(part.wanted, code) if otherwise is None else otherwise)

        def on_answer(answer: Answer | None, _descriptor: int) -> None:
            self._questions -= 1
            if answer is None:
                fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif answer.error_code:
                fail(ErrorCode(answer.error_code))
            else:
                then(answer)
            self.go_on()

        reader, generation = self._readers[part.replica.disk], part.row.segment_list_generation
        if reader.ask(kind, part.topic, part.partition, generation, value_a, value_b, on_answer):
            self._questions += 1
        else:
            fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
