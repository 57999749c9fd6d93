"""The queue of orders by key (`services/controller/admin/pending_orders.py`), over operations that are answered by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.logging import Logger
from appliance.shm.counters import Counters
from services.controller.admin.pending_orders import PendingOrders
from services.controller.admin.waiting_requests import NOT_CONTROLLER, Result
from services.controller.decisions.cluster import Cluster, ControllerContext
from services.controller.zookeeper.operation import Operation, OperationRunner
from services.controller.zookeeper.requests import Exists, ZooKeeperConnectionLost
from services.controller.zookeeper.session import ZooKeeperReply


class NamedOrder:
    """`refused` and `at once` end without a request, `again` is not done at its first end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers: list[Result] = []

    def answer(self, result: Result) -> None:
        self.answers.append(result)


class World:
    """A queue, the operations that it started, and the orders that ended."""

    def __init__(self) -> None:
        self.may_begin = True
        self.abandoned: set[str] = set()
        self.sent: list[tuple[str, Callable[[Any], None]]] = []
        self.ended: list[tuple[str, str, object]] = []
        self.added: list[NamedOrder] = []
        self.failures: list[Exception] = []
        self._seen: set[str] = set()
        self.runner = OperationRunner(self._ask, self._ask, lambda _done: None, lambda _ms, _done: None)
        context = ControllerContext(
            Cluster(1, {}, []), self.runner, ManualClock(), cast(Counters, None), cast(Logger, None), self.failures.append, lambda: True
        )
        self.orders: PendingOrders[str, NamedOrder] = PendingOrders(
            context, str, self._operation, self._on_end, lambda: self.may_begin, lambda order: order.name not in self.abandoned
        )

    def add(self, key: str, name: str) -> None:
        self.added.append(NamedOrder(name))
        self.orders.add(key, self.added[-1])

    def answers(self) -> list[tuple[str, Result]]:
        return [(order.name, result) for order in self.added for result in order.answers]

    def _ask(self, request: Any, on_reply: Callable[[Any], None]) -> None:
        self.sent.append((request.path, on_reply))

    def _operation(self, key: str, order: NamedOrder) -> Operation[str]:
        if order.name == "refused":
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "no")
        if order.name != "at once":
            yield Exists(f"/{key}/{order.name}")
        return order.name

    def _on_end(self, key: str, order: NamedOrder, value: str) -> bool:
        if order.name == "again" and order.name not in self._seen:
            self._seen.add(order.name)
            return False
        self.ended.append((key, order.name, value))
        return True

    def running(self) -> list[str]:
        return [path for path, _ in self.sent]

    def reply(self, failure: Exception | None = None) -> None:
        _, on_reply = self.sent.pop(0)
        on_reply(ZooKeeperReply(None, cast(Any, failure)))


def test_the_orders_of_a_key_are_carried_out_one_after_another_and_keys_do_not_wait_for_each_other() -> None:
    world = World()
    for key, order in (("a", "1"), ("a", "2"), ("b", "3")):
        world.add(key, order)
    assert world.running() == ["/a/1", "/b/3"]
    world.reply()
    assert world.running() == ["/b/3", "/a/2"] and world.ended == [("a", "1", "1")]
    world.reply()
    world.reply()
    assert not world.orders and [order for _, order, _ in world.ended] == ["1", "3", "2"]


def test_an_order_whose_operation_was_dropped_or_failed_starts_again() -> None:
    world = World()
    world.add("a", "1")
    world.reply(ZooKeeperConnectionLost("gone"))
    assert len(world.failures) == 1 and world.running() == [] and not world.ended
    world.orders.reconsider()
    assert world.running() == ["/a/1"]
    world.runner.drop_all()
    world.sent.clear()
    world.orders.reconsider()
    world.reply()
    assert world.ended == [("a", "1", "1")]


def test_orders_wait_until_they_may_begin_and_one_that_is_not_done_waits_for_the_next_look() -> None:
    world = World()
    world.may_begin = False
    world.add("a", "again")
    assert world.running() == []
    world.may_begin = True
    world.orders.reconsider()
    world.reply()
    assert world.running() == [] and world.ended == [] and len(world.orders) == 1
    world.orders.reconsider()
    world.reply()
    assert world.ended == [("a", "again", "again")]


def test_thousands_of_orders_that_end_at_once_need_no_stack() -> None:
    world = World()
    world.may_begin = False
    for _ in range(1_000):
        world.add("a", "refused")
        world.add("a", "at once")
    world.may_begin = True
    world.orders.reconsider()
    assert len(world.ended) == 1_000 and len(world.answers()) == 1_000 and not world.orders


def test_an_order_whose_operation_is_refused_is_answered_with_the_refusal_and_the_next_one_starts() -> None:
    world = World()
    for name in ("1", "refused", "2"):
        world.add("a", name)
    world.reply()
    assert world.answers() == [("refused", Result(ErrorCode.INVALID_REQUEST, "no"))] and world.running() == ["/a/2"]
    world.reply()
    assert world.ended == [("a", "1", "1"), ("a", "2", "2")] and not world.failures


def test_an_order_for_which_no_client_waits_any_more_is_dropped_before_it_starts() -> None:
    world = World()
    for order in ("1", "2", "3"):
        world.add("a", order)
    world.abandoned.add("2")
    world.reply()
    assert world.running() == ["/a/3"]


def test_another_controller_makes_all_orders_forgotten_but_those_that_are_being_written() -> None:
    world = World()
    world.add("a", "1")
    world.may_begin = False
    world.add("b", "2")
    world.orders.forget(NOT_CONTROLLER)
    assert world.answers() == [("2", NOT_CONTROLLER)]
    world.reply()
    assert [order for _, order, _ in world.ended] == ["1"] and not world.orders
