"""Operations: what the controller does in several steps, written as generators that read from top
to bottom.

An operation yields a `Step` (a ZooKeeper request, a command to a disk's log-writer, `Publish`,
`Pause`, or several `Together`) and is resumed with its result, or with its `ZooKeeperFailed`. It
never blocks: the runner resumes it from the duty cycle when the reply has come.

An operation may be dropped at any step, without notice, because the process may be killed at any
step. Whatever it has written until then must be nothing at all, or something that the next
controller recognises and completes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from appliance.base.errors import RequestRefused
from appliance.cluster.znodes import CONTROLLER_EPOCH
from appliance.ipc.descriptors import DescriptorKind
from appliance.runtime.timers import Timers
from services.controller.zookeeper.requests import Check, Multi, MultiFailed, Request, Write, ZooKeeperFailed

T = TypeVar("T")


class DiskCommand(NamedTuple):
    """A command to the log-writer of `disk`; the result is its Kafka error code.

    KAFKA_STORAGE_ERROR if the log-writer is away or dies first. With `wants_completion` the result
    is the whole `Completion`.
    """

    disk: str
    kind: DescriptorKind
    payload: dict[str, Any]
    wants_completion: bool = False


class Publish(NamedTuple):
    """Publish the metadata image if it differs from the last one. Several requests within 20 ms are
    one.
    """


class Pause(NamedTuple):
    """Let other operations run for so long."""

    duration_ms: int


class Together(NamedTuple):
    """Steps without an order; the result is a list. It contains each `ZooKeeperFailed` instead of
    raising it.
    """

    steps: tuple[Request | DiskCommand, ...]


Step: TypeAlias = Request | DiskCommand | Publish | Pause | Together
Operation: TypeAlias = Generator[Step, Any, T]

WRITES_MAX = 400
"""Writes in one transaction: ZooKeeper refuses packets over 1 MiB, and a partition state with its
path is below 400 bytes.
"""

STEPS_MAX = 500
"""Steps in one `Together`: bounds the memory of the replies."""


class OperationOutcome(NamedTuple):
    """The end of an operation: `failure` is None if `value` is its result."""

    value: Any
    failure: Exception | None


class ControllerMoved(ZooKeeperFailed):
    """Another broker has become controller: the epoch that fences our writes is outdated."""


class Fence(NamedTuple):
    """The right to write as controller: the epoch and the version of `/controller_epoch`. All its
    writes go through `guard`.
    """

    controller_epoch: int
    version: int

    def guard(self, writes: tuple[Write, ...]) -> Operation[tuple[Any, ...]]:
        """Carry out `writes` as one transaction while this box is controller; return their results.

        Raises `ControllerMoved` if it is not. `MultiFailed.index` counts in `writes`.
        """
        try:
            results = yield Multi((Check(CONTROLLER_EPOCH, self.version), *writes))
        except MultiFailed as refused:
            if refused.index == 0:
                raise ControllerMoved(f"controller epoch {self.controller_epoch} is over") from refused
            raise MultiFailed(refused.index - 1, refused.write, refused.cause) from refused
        return tuple(results[1:])


class OwnWrites(NamedTuple):
    """The guard of what a box writes for itself: its placements, its record, states of its own
    replicas under their versions.

    No controller epoch guards these writes. The session that writes them also holds the box's
    registration, so they fail with it.
    """

    def guard(self, writes: tuple[Write, ...]) -> Operation[tuple[Any, ...]]:
        """Carry out `writes` as one transaction; return their results."""
        results = yield Multi(writes)
        return tuple(results)


Guard: TypeAlias = Fence | OwnWrites


def all_of(steps: list[Request | DiskCommand]) -> Operation[list[Any]]:
    """Run any number of steps without an order, `STEPS_MAX` at a time; return their results as
    `Together` does.
    """
    results: list[Any] = []
    for start in range(0, len(steps), STEPS_MAX):
        results += yield Together(tuple(steps[start : start + STEPS_MAX]))
    return results


class AskZooKeeper(Protocol):
    def __call__(self, request: Request, on_reply: Callable[[Any], None], /) -> None: ...


class CommandDisk(Protocol):
    def __call__(self, command: DiskCommand, on_done: Callable[[Any], None], /) -> None: ...


class PublishImage(Protocol):
    def __call__(self, on_done: Callable[[None], None], /) -> None: ...


class PauseFor(Protocol):
    def __call__(self, duration_ms: int, on_done: Callable[[None], None], /) -> None: ...


class _Run(Generic[T]):
    """One operation under way."""

    __slots__ = ("_runner", "name", "on_end", "operation")

    def __init__(self, runner: OperationRunner, name: str, operation: Operation[T], on_end: Callable[[OperationOutcome], None]) -> None:
        self._runner = runner
        self.name = name
        self.operation: Operation[T] | None = operation
        self.on_end = on_end

    def resume(self, value: Any, failure: ZooKeeperFailed | None = None) -> None:
        operation = self.operation
        if operation is None:
            return  # dropped meanwhile
        try:
            step = operation.send(value) if failure is None else operation.throw(failure)
        except StopIteration as finished:
            self._end(OperationOutcome(finished.value, None))
            return
        except (ZooKeeperFailed, RequestRefused) as failed:
            self._end(OperationOutcome(None, failed))
            return
        if isinstance(step, Together):
            _Gathering(self, len(step.steps)).start(self._runner, step)
        elif isinstance(step, DiskCommand):
            self._runner.command(step, self.resume)
        elif isinstance(step, Publish):
            self._runner.publish(self.resume)
        elif isinstance(step, Pause):
            self._runner.pause(step.duration_ms, self.resume)
        else:
            self._runner.ask(step, lambda reply: self.resume(reply.value, reply.failure))

    def _end(self, outcome: OperationOutcome) -> None:
        self.operation = None
        self._runner.forget(self)
        self.on_end(outcome)


class _Gathering:
    """Collects the results of one `Together`."""

    __slots__ = ("_missing", "_results", "_run", "_started")

    def __init__(self, run: _Run[Any], count: int) -> None:
        self._run = run
        self._results: list[Any] = [None] * count
        self._missing = count
        self._started = False

    def start(self, runner: OperationRunner, together: Together) -> None:
        for index, step in enumerate(together.steps):
            if isinstance(step, DiskCommand):
                runner.command(step, lambda code, index=index: self._arrived(index, code))  # type: ignore[misc]
            else:
                runner.ask(step, lambda reply, index=index: self._arrived(index, reply.value if reply.failure is None else reply.failure))  # type: ignore[misc]
        self._started = True
        self._maybe_resume()

    def _arrived(self, index: int, result: Any) -> None:
        self._results[index] = result
        self._missing -= 1
        self._maybe_resume()

    def _maybe_resume(self) -> None:
        if self._started and not self._missing:
            self._started = False
            self._run.resume(self._results)


class OperationRunner:
    """Run operations, at most one of each name.

    An exception other than `ZooKeeperFailed` and `RequestRefused` propagates through the duty
    cycle.
    """

    def __init__(self, ask: AskZooKeeper, command: CommandDisk, publish: PublishImage, pause: PauseFor) -> None:
        self.ask = ask
        self.command = command
        self.publish = publish
        self.pause = pause
        self._runs: dict[str, _Run[Any]] = {}

    def start(self, name: str, operation: Operation[T], on_end: Callable[[OperationOutcome], None]) -> bool:
        """Start the operation unless one of that name is running. `on_end` is called once, unless
        the operation is dropped.
        """
        if name in self._runs:
            operation.close()
            return False
        run = _Run(self, name, operation, on_end)
        self._runs[name] = run
        run.resume(None)
        return True

    def is_running(self, name: str) -> bool:
        return name in self._runs

    def forget(self, run: _Run[Any]) -> None:
        del self._runs[run.name]

    def drop(self, name: str) -> None:
        """Drop a running operation: requests that it has sent are carried out, their results are
        discarded.
        """
        run = self._runs.pop(name, None)
        if run is not None:
            operation, run.operation = run.operation, None
            if operation is not None:
                operation.close()

    def drop_all(self) -> None:
        """Drop all operations, as if the process had been killed and restarted."""
        runs, self._runs = self._runs, {}
        for run in runs.values():
            operation, run.operation = run.operation, None
            if operation is not None:
                operation.close()

    def __len__(self) -> int:
        return len(self._runs)


RESUMED_A_TURN = 100


class Pauses:
    """The pauses of operations: resume each in the turn in which its time is over. `now_ms()`: the
    clock that measures them.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._timers = Timers()

    def pause(self, duration_ms: int, on_done: Callable[[None], None]) -> None:
        self._timers.schedule(self._now_ms() + duration_ms, lambda _now_ms: on_done(None))

    def do_work(self, now_ms: int) -> int:
        """End due pauses; return how many."""
        return self._timers.fire_due(now_ms, RESUMED_A_TURN)

    def park_ms(self, now_ms: int, most_ms: int) -> int:
        """Return how long no pause ends, at most `most_ms`."""
        deadline_ms = self._timers.next_deadline_ms()
        return most_ms if deadline_ms is None else max(0, min(most_ms, deadline_ms - now_ms))
