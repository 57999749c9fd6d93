"""The line from an acceptor to the coordinator of the box.

A request goes to one life only: a second one would add the same member twice. What a life had when it died is answered as lost, so that the client looks for
its coordinator and asks again; what comes while there is none waits a little for the next one.
"""

from __future__ import annotations

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.ipc.registry import Registry
from appliance.ipc.request_link import RequestLink

LIVES_MAX = 1


class CoordinatorLink(RequestLink):
    """One acceptor's connection to the coordinator."""

    def __init__(self, layout: BoxLayout, registry: Registry, clock: Clock) -> None:
        super().__init__(layout.coordinator_socket, registry, clock, LIVES_MAX, lambda _frame: None)
