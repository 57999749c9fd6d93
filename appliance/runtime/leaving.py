"""How long a stop of the box waits for its controller, which gives away what other boxes can lead before anybody is told to stop.

As long as that goes on: a box that leads thousands of partitions needs seconds, one whose ZooKeeper does not answer gets nowhere. What it has given away
it counts, and counters are read without asking. Owned by whoever waits: the supervisor, under systemd each process. Weak spot: a controller that is slow
is cut off in the end, and others take the rest when ZooKeeper says that this box is gone.
"""

from __future__ import annotations

import os
from typing import Final

from appliance.base.layout import BoxLayout
from appliance.shm.counters import read_counters

CONTROLLER: Final = "controller"
GIVEN_AWAY: Final = 'controller.elections{reason="stop"}'
"""The controller's counter of partitions that it gave to other boxes because this one stops."""
STILL_NS: Final = 3_000_000_000
"""A controller that gives nothing away for so long is not waited for."""
LOOK_NS: Final = 100_000_000
LEAVE_NS_MAX: Final = 8_000_000_000
"""Nor is one that has had so long: units are killed after 15 s, and connections are to be drained first."""


class ShutdownProgress:
    """From the first question on."""

    def __init__(self, layout: BoxLayout) -> None:
        self._layout = layout
        self._given_away = -1
        self._still_until_ns = 0
        self._until_ns = 0
        self._look_ns = 0

    def has_left(self) -> bool:
        return os.path.exists(self._layout.left_file)

    def is_given_up(self, now_ns: int) -> bool:
        """Whether it is no use to wait any longer."""
        self._until_ns = self._until_ns or now_ns + LEAVE_NS_MAX
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_NS
            snapshot = read_counters(self._layout, CONTROLLER)
            given_away = snapshot.values.get(GIVEN_AWAY, 0) if snapshot is not None else 0
            if given_away != self._given_away:
                self._given_away, self._still_until_ns = given_away, now_ns + STILL_NS
        return now_ns >= min(self._still_until_ns, self._until_ns)
