"""The line to the controller, for acceptors, ingests and the coordinator: requests handed on, and news of the metadata image.

An operation that a dead life of the controller had already carried out answers as done twice would (TOPIC_ALREADY_EXISTS), which is what
Kafka's clients expect after a time-out; so a request may go to two lives.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.ipc.controller_frames import GENERATION, IMAGE_CHANGED
from appliance.ipc.frames import Frame
from appliance.ipc.registry import Registry
from appliance.ipc.request_link import RequestLink

LIVES_MAX = 2
"""One death may have any reason, and what waits beside a deadly request shall not be lost with it."""


class ControllerLink(RequestLink):
    """One process's connection to the controller."""

    def __init__(self, layout: BoxLayout, registry: Registry, clock: Clock, on_image_changed: Callable[[int], None]) -> None:
        def on_news(frame: Frame) -> None:
            if frame.kind == IMAGE_CHANGED:
                on_image_changed(GENERATION.unpack(frame.payload)[0])

        super().__init__(layout.controller_socket, registry, clock, LIVES_MAX, on_news)
