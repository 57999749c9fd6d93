"""The turns of a consumer group or a streams group: several requests are decided together, appended as one batch, and answered when it is in the log.

While a batch is being appended, requests of the group wait for the next one. So memory is never ahead of
the log, one target assignment serves all members that joined meanwhile, and a refused batch has no
effect. After a refusal it is unknown whether the batch is in the log: the next one contains everything
that differs from any state that the log may have. Owned by the group coordinator. Weak spot: one batch
must hold a group's new target, so `message.max.bytes` limits the size of a group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, Protocol, TypeVar

from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import StateRecord
from services.coordinator.groups.group_log import GroupLog, consumer_group_error

OPERATIONS_A_BATCH: Final = 64


class TurnState(Protocol):
    """The state of a group; what is in the log is not changed, only a copy of it."""

    def copy(self: State) -> State: ...


State = TypeVar("State", bound=TurnState)
AnyState = TypeVar("AnyState", contravariant=True)


class Refusal(Exception):
    """Why a request cannot be; its operation has changed nothing."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(code.name, message)
        self.code = code
        self.message = message


class Operation(Protocol[AnyState]):
    """The change of a group by a request or an expired deadline."""

    def change(self, group: AnyState, now_ms: int) -> None:
        """Say what it wants; or `Refusal`."""

    def conclude(self, group: AnyState, now_ms: int) -> None:
        """The target is made; settle on the answer."""

    def answer(self, error: ErrorCode, now_ms: int) -> None:
        """It is in the log, or why not."""

    def refuse(self, refusal: Refusal) -> None: ...

    def again(self, now_ms: int) -> None:
        """The group changed its protocol meanwhile: handle the request again from the start."""


class Farewell(Protocol):
    """The end of a consumer group: it is one of the classic protocol from now on."""

    @property
    def record(self) -> StateRecord:
        """What the log is to say of that group."""

    @property
    def tombstone(self) -> StateRecord:
        """What takes it back."""

    def on_appended(self, now_ms: int) -> None: ...


class GroupRules(Protocol[State]):
    """What the members of the group want, put together, and what the log says of a state."""

    def no_state(self) -> State:
        """What the log says before the first batch."""

    def changed_records(self, before: State, after: State) -> list[StateRecord]:
        """What changes the log from `before` to `after`."""

    def all_tombstones(self, states: Sequence[State]) -> list[StateRecord]:
        """What takes the group out of a log that is in one of `states`."""

    def settle_target(self, group: State, now_ms: int) -> None:
        """Make a target, if the one there is is for an older group epoch."""

    def on_refused(self, code: ErrorCode) -> None:
        """A request was refused."""

    def on_committed(self, before: State, now_ms: int) -> None:
        """Another state than `before` is in the log."""

    def farewell(self, group: State) -> Farewell | None:
        """What the group becomes, if it is not to be a consumer group any more."""


class GroupTurns(Generic[State]):
    """`committed` is what the log surely says, or would if it had been asked."""

    def __init__(self, group_id: str, partition: int, committed: State, log: GroupLog, rules: GroupRules[State]) -> None:
        self.group_id = group_id
        self.partition = partition
        self.committed = committed
        self.is_over = False
        """It went elsewhere, is deleted, or speaks the classic protocol."""
        self._log = log
        self._rules = rules
        self._possible = [committed]
        self._with_next: list[StateRecord] = []
        self._waiting: deque[Operation[State]] = deque()
        self._under_way: list[Operation[State]] | None = None

    @property
    def is_busy(self) -> bool:
        """Something is on its way that may change the group."""
        return self._under_way is not None or bool(self._waiting)

    @property
    def is_in_doubt(self) -> bool:
        """Whether the log may say something else than `committed`."""
        return len(self._possible) > 1 or self._possible[0] is not self.committed

    def begin_as(self, with_next: list[StateRecord]) -> None:
        """The log says nothing of `committed` yet; `with_next` is to be appended with the first batch."""
        self._possible = [self._rules.no_state()]
        self._with_next = with_next

    def tombstones(self) -> list[StateRecord]:
        """Return the tombstones for the caller to append; after that the log may have no records of the group."""
        records = self._rules.all_tombstones(self._possible) + self._with_next
        self._possible.append(self._rules.no_state())
        return records

    def submit(self, operation: Operation[State], now_ms: int) -> None:
        self._waiting.append(operation)
        self._turn(now_ms)

    def _turn(self, now_ms: int) -> None:
        while self._waiting and self._under_way is None and not self.is_over:
            group = self.committed.copy()
            admitted: list[Operation[State]] = []
            while self._waiting and len(admitted) < OPERATIONS_A_BATCH:
                operation = self._waiting.popleft()
                try:
                    operation.change(group, now_ms)
                except Refusal as refusal:
                    self._rules.on_refused(refusal.code)
                    operation.refuse(refusal)
                else:
                    admitted.append(operation)
            self._rules.settle_target(group, now_ms)
            for operation in admitted:
                operation.conclude(group, now_ms)
            self._append(group, admitted, now_ms)

    def _append(self, group: State, admitted: list[Operation[State]], now_ms: int) -> None:
        farewell = self._rules.farewell(group)
        if farewell is not None:
            records = [*self._rules.all_tombstones([*self._possible, group]), *self._with_next, farewell.record]
        else:
            records = self._difference(group)
        if not records:
            for operation in admitted:
                operation.answer(ErrorCode.NONE, now_ms)
            return

        def on_done(error: ErrorCode, position: int, now_ms: int) -> None:
            self._under_way = None
            if self.is_over:
                return
            if error is not ErrorCode.NONE:
                self._possible.append(group if farewell is None else self._rules.no_state())
                self._with_next = self._with_next if farewell is None else [farewell.tombstone]
            elif farewell is not None:
                self.is_over = True
            else:
                before, self.committed = self.committed, group
                self._possible = [group]
                self._with_next = []
                self._rules.on_committed(before, now_ms)
            for operation in admitted:
                operation.answer(consumer_group_error(error), now_ms)
            if error is ErrorCode.NONE and farewell is not None:
                farewell.on_appended(now_ms)
                for operation in self._waiting:
                    operation.again(now_ms)
                self._waiting.clear()
            self._turn(now_ms)

        self._under_way = admitted
        self._log.append(self.partition, records, on_done)

    def _difference(self, group: State) -> list[StateRecord]:
        """Nothing, if the operations have changed nothing and the log is not in doubt."""
        if len(self._possible) == 1:
            records = self._rules.changed_records(self._possible[0], group)
        else:
            if not self._rules.changed_records(self.committed, group):
                return []
            by_key = {record.key: record for state in self._possible for record in self._rules.changed_records(state, group)}
            records = list(by_key.values())
        return [*self._with_next, *records] if records else []

    def end(self, error: ErrorCode) -> None:
        """The group has another coordinator, or none."""
        self.is_over = True
        under_way, self._under_way = self._under_way or [], None
        for operation in under_way:
            operation.answer(error, 0)
        for operation in self._waiting:
            operation.refuse(Refusal(error))
        self._waiting.clear()
