"""The connection to the controller, for acceptors, ingests and the coordinator: forwarded requests,
and notifications of a new metadata image.

If a dead incarnation of the controller had already executed an operation, it answers as for a
repetition (TOPIC_ALREADY_EXISTS), which Kafka's clients expect after a time-out. So a request may
be sent to two incarnations.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.ipc.controller_frames import GENERATION, IMAGE_CHANGED
from appliance.ipc.frames import Frame
from appliance.ipc.registry import Registry
from appliance.ipc.request_link import RequestLink

CONTROLLER_INCARNATIONS_MAX = 2
"""Incarnations that may receive a request: a death may have any cause, and must not lose the
requests beside it."""


class ControllerLink(RequestLink):
    """The connection of one process to the controller."""

    def __init__(self, layout: BoxLayout, registry: Registry, clock: Clock, on_image_changed: Callable[[int], None]) -> None:
        def on_news(frame: Frame) -> None:
            if frame.kind == IMAGE_CHANGED:
                on_image_changed(GENERATION.unpack(frame.payload)[0])

        super().__init__(layout.controller_socket, registry, clock, CONTROLLER_INCARNATIONS_MAX, on_news)
