"""Operations and their runner: order, failures, the fence, being dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from appliance.base.errors import ErrorCode
from appliance.ipc.descriptors import DescriptorKind
from services.controller.zookeeper.operation import (
    ControllerMoved,
    DiskCommand,
    Fence,
    Operation,
    OperationOutcome,
    OperationRunner,
    Pause,
    Publish,
    Together,
    all_of,
)
from services.controller.zookeeper.requests import (
    BadVersion,
    Check,
    Create,
    Get,
    GetChildren,
    Multi,
    MultiFailed,
    NodeExists,
    NoNode,
    Request,
    ZooKeeperConnectionLost,
)


class ZooKeeperReply(NamedTuple):
    value: Any
    failure: Any = None


class Desk:
    """Takes what a runner asks for; the test answers when it likes."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Callable[[Any], None]]] = []
        self.outcomes: list[OperationOutcome] = []
        self.runner = OperationRunner(self._ask, self._ask, lambda done: self.asked.append((Publish(), done)), self._pause)

    def _ask(self, step: Any, on_reply: Callable[[Any], None]) -> None:
        self.asked.append((step, on_reply))

    def _pause(self, duration_ms: int, on_done: Callable[[Any], None]) -> None:
        self.asked.append((Pause(duration_ms), on_done))

    def start(self, operation: Operation[Any], name: str = "one") -> bool:
        return self.runner.start(name, operation, self.outcomes.append)

    def answer(self, result: Any, index: int = 0) -> Any:
        step, on_reply = self.asked.pop(index)
        on_reply(result)
        return step


COMMAND = DiskCommand("d0", DescriptorKind.CREATE, {})


def test_steps_are_asked_one_after_another_and_the_value_comes_back() -> None:
    def operation() -> Operation[Any]:
        first = yield Get("/a")
        code = yield COMMAND
        yield Publish()
        yield Pause(7)
        return first, code

    desk = Desk()
    desk.start(operation())
    assert desk.answer(ZooKeeperReply("node")) == Get("/a")
    assert desk.answer(ErrorCode.NONE) == COMMAND
    assert desk.answer(None) == Publish()
    assert desk.answer(None) == Pause(7)
    assert desk.outcomes == [OperationOutcome(("node", 0), None)] and len(desk.runner) == 0


def test_a_failure_is_raised_inside_and_may_be_handled_there() -> None:
    def handled() -> Operation[str]:
        try:
            yield Get("/a")
        except NoNode:
            return "none"
        return "some"

    def unhandled() -> Operation[None]:
        yield Get("/a")

    desk = Desk()
    desk.start(handled(), "handled")
    desk.start(unhandled(), "unhandled")
    desk.answer(ZooKeeperReply(None, NoNode("a")))
    desk.answer(ZooKeeperReply(None, NoNode("a")))
    assert desk.outcomes[0] == OperationOutcome("none", None) and isinstance(desk.outcomes[1].failure, NoNode)


def test_steps_together_may_be_answered_in_any_order_and_keep_theirs() -> None:
    def operation() -> Operation[Any]:
        results = yield Together((Get("/a"), COMMAND, Get("/b")))
        return results

    desk = Desk()
    desk.start(operation())
    desk.answer(ZooKeeperReply(None, NoNode("b")), 2)
    desk.answer(ZooKeeperReply("a"), 0)
    assert desk.outcomes == []
    desk.answer(7)
    (outcome,) = desk.outcomes
    assert outcome.value[:2] == ["a", 7] and isinstance(outcome.value[2], NoNode)


def test_steps_that_are_answered_at_once_do_not_confuse_the_runner() -> None:
    outcomes: list[OperationOutcome] = []
    runner = OperationRunner(
        lambda request, done: done(ZooKeeperReply(request.path)),  # type: ignore[union-attr]
        lambda command, done: done(56),
        lambda done: done(None),
        lambda _ms, done: done(None),
    )

    def operation() -> Operation[Any]:
        collected = yield Together((Get("/a"), COMMAND))
        collected.append((yield COMMAND))
        yield Publish()
        collected.append((yield GetChildren("/c")))
        return collected

    runner.start("one", operation(), outcomes.append)
    assert outcomes == [OperationOutcome(["/a", 56, 56, "/c"], None)]


def test_no_steps_together_are_no_wait() -> None:
    desk = Desk()
    desk.start(all_of([]))
    assert desk.outcomes == [OperationOutcome([], None)]


def test_one_operation_of_a_name_runs_at_a_time() -> None:
    def operation() -> Operation[None]:
        yield Get("/a")

    desk = Desk()
    assert desk.start(operation()) and not desk.start(operation())
    desk.answer(ZooKeeperReply(None))
    assert desk.start(operation())


@pytest.mark.parametrize("step", [Get("/a"), Pause(7)])
def test_a_dropped_operation_hears_nothing_more(step: Get | Pause) -> None:
    went_on = []

    def operation() -> Operation[None]:
        yield step
        went_on.append(True)

    desk = Desk()
    desk.start(operation())
    desk.runner.drop_all()
    desk.answer(ZooKeeperReply("late"))
    assert went_on == [] and desk.outcomes == [] and not desk.runner.is_running("one")


def test_our_own_mistakes_go_up() -> None:
    def operation() -> Operation[None]:
        yield Get("/a")
        raise KeyError("a mistake")

    desk = Desk()
    desk.start(operation())
    with pytest.raises(KeyError):
        desk.answer(ZooKeeperReply(None))


def guarded(failure: Exception | None) -> tuple[Request, OperationOutcome]:
    desk = Desk()
    desk.start(Fence(7, 3).guard((Create("/a"), Create("/b"))))
    step = desk.answer(ZooKeeperReply((True, "/a", "/b"), failure))
    return step, desk.outcomes[0]


def test_every_write_of_a_controller_checks_its_epoch_first() -> None:
    step, outcome = guarded(None)
    assert step == Multi((Check("/controller_epoch", 3), Create("/a"), Create("/b")))
    assert outcome.value == ("/a", "/b")


def test_a_failed_check_means_that_another_is_controller() -> None:
    check = Check("/controller_epoch", 3)
    assert isinstance(guarded(MultiFailed(0, check, BadVersion("epoch")))[1].failure, ControllerMoved)


def test_a_failed_write_is_counted_from_the_first_write() -> None:
    failure = guarded(MultiFailed(2, Create("/b"), NodeExists("b")))[1].failure
    assert isinstance(failure, MultiFailed) and (failure.index, failure.write) == (1, Create("/b"))
    assert isinstance(guarded(ZooKeeperConnectionLost("gone"))[1].failure, ZooKeeperConnectionLost)
