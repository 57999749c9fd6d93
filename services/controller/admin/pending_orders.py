"""Orders by key, each carried out by one operation: at most one operation per key runs at a time.

Owned by the controller process. An order stays until its operation has ended: if ZooKeeper is lost,
the operation is dropped, and starts again after the next arrival. Weak: pending orders are
forgotten with the process; their clients get no answer and retry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from appliance.base.errors import ErrorCode, RequestRefused
from services.controller.admin.waiting_requests import Result
from services.controller.decisions.cluster import ControllerContext
from services.controller.zookeeper.config_changes import remove_old_config_changes
from services.controller.zookeeper.operation import Operation, OperationOutcome

V = TypeVar("V")

CONFIG_CHANGES_MAX = 10_000
"""Notifications of changed configs, each a znode of some 700 bytes for 15 minutes."""
OWN_CHANGES_MAX = 8_000
"""Beyond these only users and quotas can be changed: those of a client that changes configs without end."""


def with_notification(context: ControllerContext, operation: Operation[V], changes_max: int = CONFIG_CHANGES_MAX) -> Operation[V]:
    """Carry out an operation that leaves a notification. Raises `RequestRefused` if there are too many: clients that change one config again and again
    would fill ZooKeeper's heap.
    """
    names = context.cluster.config_changes
    if len(names) >= changes_max:
        yield from remove_old_config_changes(names, context.clock.wall_ms())  # else only the next notification would
        if len(context.cluster.config_changes) >= changes_max:
            operation.close()
            context.counters.counter('controller.refused{bound="config_changes"}').add()
            raise RequestRefused(ErrorCode.POLICY_VIOLATION, f"Configs were changed {len(names)} times within 15 minutes; try again in some minutes.")
    return (yield from operation)


class PendingOrder(Protocol):
    """What waits for its operation."""

    def answer(self, result: Result) -> None:
        """Answer all parts of the order with `result`: it was refused, or is forgotten."""


K = TypeVar("K", bound=str | tuple[int, str])
O = TypeVar("O", bound=PendingOrder)  # noqa: E741


class PendingOrders(Generic[K, O]):
    """`operation(key, order)` carries out an order under the name `run_name(key)`.

    `on_end(key, order, value)` answers it with what the operation returned. If it returns False, the
    order stays and is tried again by `reconsider`. If the operation raises `RequestRefused`, the
    order itself is answered. Orders wait until `may_begin()`. An order that `is_awaited` denies is
    dropped before it starts.
    """

    def __init__(
        self,
        context: ControllerContext,
        run_name: Callable[[K], str],
        operation: Callable[[K, O], Operation[Any]],
        on_end: Callable[[K, O, Any], bool],
        may_begin: Callable[[], bool],
        is_awaited: Callable[[O], bool] = lambda _order: True,
    ) -> None:
        self._runner = context.runner
        self._on_failure = context.on_failure
        self._run_name = run_name
        self._operation = operation
        self._complete = on_end
        self._may_begin = may_begin
        self._is_awaited = is_awaited
        self._orders: dict[K, deque[O]] = {}
        self._advancing: set[K] = set()

    def __len__(self) -> int:
        return len(self._orders)

    def add(self, key: K, order: O) -> None:
        self._orders.setdefault(key, deque()).append(order)
        self.advance(key)

    def reconsider(self) -> None:
        """Start what is due and not running."""
        for key in sorted(self._orders, key=self._run_name):
            self.advance(key)

    def forget(self, result: Result) -> None:
        """Drop the orders of all keys without a running operation, and answer them with `result`:
        another box is, or was, the controller.
        """
        for key in [key for key in self._orders if not self._runner.is_running(self._run_name(key))]:
            for order in self._orders.pop(key):
                order.answer(result)

    def advance(self, key: K) -> None:
        """Start the first order of `key` unless an operation of that name runs."""
        if key in self._advancing:
            return  # an operation that ended without waiting: the loop below goes on
        self._advancing.add(key)
        name = self._run_name(key)
        while (orders := self._orders.get(key)) and self._may_begin() and not self._runner.is_running(name):
            order = orders[0]
            if not self._is_awaited(order):
                self._remove(key)
                continue
            self._runner.start(name, self._operation(key, order), partial(self._on_end, key, order))
            if (left := self._orders.get(key)) and left[0] is order:
                break  # running, or to be tried again later
        self._advancing.discard(key)

    def _on_end(self, key: K, order: O, outcome: OperationOutcome) -> None:
        refused = outcome.failure if isinstance(outcome.failure, RequestRefused) else None
        if outcome.failure is not None and refused is None:
            self._on_failure(outcome.failure)
            return
        self._remove(key)
        if refused is not None:
            order.answer(Result.of(refused))
            self.advance(key)
        elif self._complete(key, order, outcome.value):
            self.advance(key)
        else:
            self._orders.setdefault(key, deque()).appendleft(order)

    def _remove(self, key: K) -> None:
        orders = self._orders[key]
        orders.popleft()
        if not orders:
            del self._orders[key]
