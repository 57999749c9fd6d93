"""The interface of a process's work (`Agent`, a duty cycle) and what it is given
(`ServiceContext`).

The agent owns the state of the process, the runner (`appliance.runtime.runner`) its time. Nothing
here waits. Weak: an agent with a long turn delays its heartbeat, and the supervisor kills it after
`watchdog.timeout.ms`; long work has to be sliced.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.base.settings import Box
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters

PARK_MS_MAX = 100
"""Longest wait in milliseconds: a lost wake-up costs at most this."""
QUIET_PARK_MS = 250
"""That of a process without rings, whose events all come through the poller: a quarter of the
shortest `watchdog.timeout.ms`."""


class Agent(Protocol):
    """The work of one kind of process, in turns."""

    def do_work(self) -> int:
        """Run one short, bounded turn that never waits; returns how much it did."""

    def may_park(self) -> bool:
        """Prepare a wait: set the sleeping flags, fence, and check for work again. If there is
        work, clear the flags and return False."""

    def unpark(self) -> None:
        """Clear the sleeping flags after a wait."""

    def park_ms(self) -> int:
        """Return how long the next wait may be, at most `PARK_MS_MAX`."""

    def begin_stop(self) -> None:
        """Accept no new work; finish what is in flight in the following turns."""

    def stopped(self) -> bool:
        """Return whether everything in flight is finished, after `begin_stop`."""

    def close(self) -> None:
        """Release all resources in order; called once."""

    def status_line(self) -> str:
        """Return one line for an operator about what the agent does now."""


@runtime_checkable
class Reloadable(Protocol):
    """An agent that must do something when settings were reloaded; `box.settings` has them."""

    def on_reloaded(self) -> None:
        """Use the new settings, in this turn or the next."""


class Notifier(Protocol):
    """Reports the state of the process to its parent. The same text is stored in the counters."""

    def ready(self) -> None:
        """Report that the process serves. Each agent calls it once per incarnation, when its
        clients can be served."""

    def status(self, text: str) -> None: ...


class ServiceContext:
    """What a process has before its agent exists; created by `service_main`, or by a test."""

    __slots__ = ("box", "clock", "counters", "incarnation", "instance", "layout", "listen_sockets", "log", "notifier", "poller", "process_name")

    def __init__(
        self,
        layout: BoxLayout,
        box: Box,
        clock: Clock,
        counters: Counters,
        poller: Poller,
        process_name: str,
        instance: str,
        incarnation: int,
        notifier: Notifier,
        log: Logger,
        listen_sockets: dict[str, socket.socket],
    ) -> None:
        self.layout = layout
        self.box = box
        self.clock = clock
        self.counters = counters
        self.poller = poller
        self.process_name = process_name
        self.instance = instance
        self.incarnation = incarnation
        self.notifier = notifier
        self.log = log
        self.listen_sockets = listen_sockets


AgentFactory = Callable[[ServiceContext], Agent]
