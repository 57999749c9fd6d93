"""ZooKeeper's tree in memory, and operations run on it to their end at once, or killed at any of their steps.

For unit tests of operations: nothing waits, nothing is lost, only the test writes between two steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from services.controller.zookeeper.operation import DiskCommand, Operation, Publish, Together
from services.controller.zookeeper.requests import ZooKeeperFailed
from tests.support.memory_tree import MemoryTree

T = TypeVar("T")


class Killed(Exception):
    """The step at which the process was to die."""


class PlayedTree:
    """`before_step(step)` is called before each step, so that a test can write in between."""

    def __init__(self) -> None:
        self._tree = MemoryTree()
        self.before_step: Callable[[Any], None] = lambda _step: None

    def __contains__(self, path: str) -> bool:
        return path in self._tree

    def paths(self) -> list[str]:
        return self._tree.paths()

    def data(self, path: str) -> bytes:
        return self._tree[path].data

    def version(self, path: str) -> int:
        return self._tree[path].version

    def put(self, path: str, data: bytes = b"") -> None:
        """A node and its parents, as they are; a version more for one that is there."""
        self._tree.put(path, data)

    def run(self, operation: Operation[T], kill_at: int | None = None, sent: bool = False) -> T:
        """The operation's result. `Killed` at the `kill_at`-th step, which with `sent` is still carried out."""
        value: Any = None
        failure: ZooKeeperFailed | None = None
        number = 0
        while True:
            try:
                step = operation.send(value) if failure is None else operation.throw(failure)
            except StopIteration as finished:
                result: T = finished.value
                return result
            self.before_step(step)
            if number == kill_at and not sent:
                raise Killed
            value, failure = None, None
            try:
                value = self._carry_out(step)
            except ZooKeeperFailed as refused:
                failure = refused
            if number == kill_at:
                raise Killed
            number += 1

    def _carry_out(self, step: Any) -> Any:
        if isinstance(step, Together):
            results: list[Any] = []
            for each in step.steps:
                try:
                    results.append(self._carry_out(each))
                except ZooKeeperFailed as refused:
                    results.append(refused)
            return results
        if isinstance(step, Publish):
            return None
        if isinstance(step, DiskCommand):
            return 0
        return self._tree.carry_out(step)
