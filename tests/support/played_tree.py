"""ZooKeeper as a dictionary, and operations run on it to their end at once, or killed at any of their steps.

For unit tests of operations: nothing waits, nothing is lost, nobody else writes unless the test does between two steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from appliance.metadata.operation import DiskCommand, Operation, Publish, Together
from appliance.metadata.requests import (
    BadVersion,
    Check,
    Create,
    Delete,
    Exists,
    Get,
    GetChildren,
    Multi,
    MultiFailed,
    Node,
    NodeExists,
    NoNode,
    SetData,
    ZooKeeperFailed,
)

T = TypeVar("T")


class Killed(Exception):
    """The step at which the process was to die."""


class PlayedTree:
    """path → (data, version). `before_step(step)` is called before each step, so that a test can write in between."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {"": (b"", 0)}
        self.before_step: Callable[[Any], None] = lambda _step: None
        self._sequence = 0

    def put(self, path: str, data: bytes = b"") -> None:
        """A node and its parents, as they are; a version more for one that is there."""
        parent = path.rpartition("/")[0]
        if parent not in self.nodes:
            self.put(parent)
        version = self.nodes[path][1] + 1 if path in self.nodes else 0
        self.nodes[path] = data, version

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
        if isinstance(step, Multi):
            return self._multi(step)
        if isinstance(step, Publish):
            return None
        if isinstance(step, DiskCommand):
            return 0
        return self._one(step)

    def _multi(self, multi: Multi) -> tuple[Any, ...]:
        before = dict(self.nodes)
        results = []
        for index, write in enumerate(multi.writes):
            try:
                results.append(self._one(write))
            except ZooKeeperFailed as refused:
                self.nodes = before
                raise MultiFailed(index, write, refused) from refused
        return tuple(results)

    def _one(self, step: Any) -> Any:
        if isinstance(step, Create):
            return self._create(step)
        if isinstance(step, Exists) and step.path not in self.nodes:
            return None
        if step.path not in self.nodes:
            raise NoNode(step.path)
        data, version = self.nodes[step.path]
        if isinstance(step, Get | Exists):
            return Node(data, version, 1, 0)
        if isinstance(step, GetChildren):
            return tuple(sorted(path.rpartition("/")[2] for path in self.nodes if path and path.rpartition("/")[0] == step.path))
        assert isinstance(step, SetData | Delete | Check), step
        if step.version not in (-1, version):
            raise BadVersion(step.path)
        if isinstance(step, SetData):
            self.nodes[step.path] = step.data, version + 1
            return version + 1
        if isinstance(step, Delete):
            del self.nodes[step.path]
        return None

    def _create(self, step: Create) -> str:
        path = step.path
        if step.sequence:
            path = f"{path}{self._sequence:010}"
            self._sequence += 1
        if path in self.nodes:
            raise NodeExists(path)
        if path.rpartition("/")[0] not in self.nodes:
            raise NoNode(path)
        self.nodes[path] = step.data, 0
        return path
