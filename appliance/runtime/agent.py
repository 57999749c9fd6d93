"""What every process is made of: an `Agent` with a duty cycle, and the `ServiceContext` it is given.

The agent owns the process's state; the runner (`appliance.runtime.runner`) owns its time. Nothing here waits. Weak spot: an agent whose
turn is long delays its heartbeat, and the supervisor kills it after `watchdog.timeout.ms`; long work belongs into slices.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.base.settings import Box
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters

PARK_MS_MAX = 100
"""Backstop of every wait: a lost wake-up costs at most this."""


class Agent(Protocol):
    """One process kind's work, in turns."""

    def do_work(self) -> int:
        """One short, bounded turn that never waits; returns how much it did."""

    def may_park(self) -> bool:
        """Publish the sleeping word, fence, look again. False: there is work after all, and the word is cleared."""

    def unpark(self) -> None:
        """Clear the sleeping word after a wait."""

    def park_ms(self) -> int:
        """How long the next wait may be, at most `PARK_MS_MAX`."""

    def begin_stop(self) -> None:
        """Take nothing new; finish what is under way in the following turns."""

    def stopped(self) -> bool:
        """Whether everything under way is finished, after `begin_stop`."""

    def close(self) -> None:
        """Let go of everything, in order; called once."""

    def status_line(self) -> str:
        """One line for people about what it does now."""


class Notifier(Protocol):
    """Tells who started the process how it is doing; the same words reach the counters' state."""

    def ready(self) -> None:
        """It serves. Every agent says so exactly once a life, when its users can be served."""

    def status(self, text: str) -> None: ...


class ServiceContext:
    """What a process has before its agent exists. Made by `service_main`, or by a test."""

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
