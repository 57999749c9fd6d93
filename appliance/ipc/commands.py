"""Commands to log-writers in flight: the arena slot of each, and the answer if the log-writer died."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.base.errors import ErrorCode
from appliance.ipc.descriptors import Completion
from appliance.shm.arena import Arena


class Command:
    """A command in flight: its arena slot and the caller's object, which is None once the caller
    stopped waiting."""

    __slots__ = ("arena", "context", "position")

    def __init__(self, arena: Arena, position: int, context: Any) -> None:
        self.arena = arena
        self.position = position
        self.context = context

    def finish(self) -> Any:
        """Free the arena slot; returns the caller's object."""
        self.arena.free(self.position)
        return self.context


def command_callbacks(
    on_completion: Callable[[Any, Completion], None],
) -> tuple[Callable[[Any, tuple[Any, ...]], None], Callable[[Any], None]]:
    """Return callbacks for a source that sends only commands (the controller). A command whose
    log-writer died ends with KAFKA_STORAGE_ERROR."""

    def completed(command: Command, entry: tuple[Any, ...]) -> None:
        on_completion(command.finish(), Completion(*entry))

    def lost(command: Command) -> None:
        error = Completion(0, 0, ErrorCode.KAFKA_STORAGE_ERROR, 0, 0, -1, -1, -1, -1, -1, 0, 0)
        on_completion(command.finish(), error)

    return completed, lost
