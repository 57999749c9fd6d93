"""Whether systemd manages this process (each one a unit) or `millrace run` does, and what all processes of a box know of a stop of the whole box.

systemd orders starts and stops by the same edges, reversed. Ours are not: all processes start at once, so that a disk that is slow to come keeps nobody
waiting, and stop one kind after the other. So when the whole box stops, systemd tells everybody at once, and each process goes on until those that still
need it are gone. `millrace-stop-order.service` leaves the mark that tells a stop of the whole box from that of one process. One that its disk
holds is waited for `HELD_NS`, not longer: it needs nobody any more. Weak spot: one that hangs for another reason is waited for `GROUP_STOP_MS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.runtime.agent import ServiceContext
from appliance.runtime.children import plan_stop
from appliance.runtime.detached_children import is_in_kernel
from appliance.runtime.leaving import CONTROLLER, ShutdownProgress
from appliance.runtime.leftovers import living_pid
from appliance.shm.counters import read_counters

MANAGER_VARIABLE = "MILLRACE_MANAGER"
SYSTEMD = "systemd"
MILLRACE_RUN = "millrace run"
GROUP_STOP_MS = 14_000
"""A little more than a unit of the group before has (TimeoutStopSec)."""
LOOK_NS = 20_000_000
HELD_NS = 5_000_000_000
"""Who is in the kernel, and has not turned for so long, waits for a disk."""


def is_unit() -> bool:
    return os.environ.get(MANAGER_VARIABLE) == SYSTEMD


class StopTurn:
    """Whether a process that was told to stop may do so now."""

    def __init__(self, layout: BoxLayout, process_name: str, process_names: list[str], clock: Clock) -> None:
        self._layout = layout
        self._clock = clock
        groups = plan_stop(process_names)
        place = next((place for place, group in enumerate(groups) if process_name in group), 0)
        self._before = [name for group in groups[:place] for name in group]
        self._patience_ns = place * GROUP_STOP_MS * 1_000_000
        self._leaving = ShutdownProgress(layout)
        self._until_ns = 0
        self._next_look_ns = 0
        self._next_held_look_ns = 0

    def has_come(self) -> bool:
        """Cheap to ask each turn."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._next_look_ns:
            return False
        self._next_look_ns = now_ns + LOOK_NS
        self._until_ns = self._until_ns or now_ns + self._patience_ns
        if (self._before and now_ns >= self._until_ns) or not os.path.exists(self._layout.stopping_file):
            return True
        if not self._leaving.has_left() and living_pid(self._layout, CONTROLLER) and not self._leaving.is_given_up(now_ns):
            return False
        self._before = [name for name in self._before if living_pid(self._layout, name)]
        self._next_held_look_ns = self._next_held_look_ns or now_ns + HELD_NS
        if now_ns >= self._next_held_look_ns:
            self._next_held_look_ns = now_ns + HELD_NS // 5
            self._before = [name for name in self._before if not self._is_held(name, now_ns)]
        return not self._before

    def _is_held(self, name: str, now_ns: int) -> bool:
        snapshot = read_counters(self._layout, name)
        return snapshot is not None and now_ns - snapshot.heartbeat_ns > HELD_NS and is_in_kernel(snapshot.pid)


def stop_turn_of(context: ServiceContext) -> Callable[[], bool] | None:
    """Whether a process may stop when it is told to; None: at once, as `millrace run` tells it when its turn has come."""
    if not is_unit():
        return None
    return StopTurn(context.layout, context.process_name, context.box.process_names(), context.clock).has_come
