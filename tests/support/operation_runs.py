"""Runs one operation to its end against a ZooKeeper in memory; disk commands succeed, images are written at once, pauses are over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from appliance.base.errors import ErrorCode
from services.controller.zookeeper.operation import DiskCommand, Operation, OperationOutcome, OperationRunner
from services.controller.zookeeper.requests import Request, ZooKeeperFailed
from services.controller.zookeeper.session import ZooKeeperReply
from tests.support.memory_zookeeper import MemoryZooKeeper

T = TypeVar("T")


def run(server: MemoryZooKeeper, operation: Operation[T], between: Callable[[Request], None] = lambda _request: None) -> T:
    """The operation's result; raises what it failed with. `between(request)` is called before each
    request, as a faster concurrent writer.
    """
    session = server.session("", 0, None, lambda _state: None, lambda _path: None)
    ended: list[OperationOutcome] = []

    def ask(request: Request, on_reply: Callable[[Any], None]) -> None:
        between(request)
        try:
            reply = ZooKeeperReply(server.carry_out(request, session), None)
        except ZooKeeperFailed as failure:
            reply = ZooKeeperReply(None, failure)
        on_reply(reply)

    def command(_command: DiskCommand, on_done: Callable[[Any], None]) -> None:
        on_done(ErrorCode.NONE)

    OperationRunner(ask, command, lambda on_done: on_done(None), lambda _ms, on_done: on_done(None)).start("operation", operation, ended.append)
    session.close()
    assert ended, "it waits for something"
    if ended[0].failure is not None:
        raise ended[0].failure
    value: T = ended[0].value
    return value
