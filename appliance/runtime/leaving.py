"""How long the stop of a box waits for its controlled shutdown.

The controller hands leaderships to other boxes before the processes stop. That takes seconds for
thousands of partitions, and does not progress without ZooKeeper; the wait continues while the
controller's counter rises. The supervisor waits; under systemd, each process does.

Weak: a slow controller is cut off; other boxes take the remaining leaderships when the session of
this box expires.
"""

from __future__ import annotations

import os
from typing import Final

from appliance.base.layout import BoxLayout
from appliance.shm.counters import read_counters

CONTROLLER: Final = "controller"
GIVEN_AWAY: Final = 'controller.elections{reason="stop"}'
"""The controller's counter of leaderships that it handed over because this box stops."""
STILL_NS: Final = 3_000_000_000
"""The wait ends if the controller hands over nothing for this long."""
LOOK_NS: Final = 100_000_000
LEAVE_NS_MAX: Final = 8_000_000_000
"""Longest wait: units are killed after 15 s, and connections have to be drained first."""


class ShutdownProgress:
    """Progress of a controlled shutdown, from the first call of `is_given_up` on."""

    def __init__(self, layout: BoxLayout) -> None:
        self._layout = layout
        self._given_away = -1
        self._still_until_ns = 0
        self._until_ns = 0
        self._look_ns = 0

    def has_left(self) -> bool:
        return os.path.exists(self._layout.left_file)

    def is_given_up(self, now_ns: int) -> bool:
        """Return whether waiting longer is useless."""
        self._until_ns = self._until_ns or now_ns + LEAVE_NS_MAX
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_NS
            snapshot = read_counters(self._layout, CONTROLLER)
            given_away = snapshot.values.get(GIVEN_AWAY, 0) if snapshot is not None else 0
            if given_away != self._given_away:
                self._given_away, self._still_until_ns = given_away, now_ns + STILL_NS
        return now_ns >= min(self._still_until_ns, self._until_ns)
