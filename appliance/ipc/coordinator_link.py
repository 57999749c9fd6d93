"""The connection from an acceptor to the coordinator of the box.

A request goes to one incarnation only: a second one would add the same member twice. If the
coordinator dies, its requests are answered as lost, so that the client looks up its coordinator and
retries. New requests wait a little for the next incarnation.
"""

from __future__ import annotations

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.ipc.registry import Registry
from appliance.ipc.request_link import RequestLink

COORDINATOR_INCARNATIONS_MAX = 1


class CoordinatorLink(RequestLink):
    """The connection of one acceptor to the coordinator."""

    def __init__(self, layout: BoxLayout, registry: Registry, clock: Clock) -> None:
        super().__init__(layout.coordinator_socket, registry, clock, COORDINATOR_INCARNATIONS_MAX, lambda _frame: None)
