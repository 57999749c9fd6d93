"""Whether systemd or `millrace run` manages this process, and the order in which units stop.

systemd orders starts and stops by the same dependencies. Here all processes start at once, so that
a slow disk delays no other, and stop one kind after the other. So systemd signals all units of a
stop at once, and each continues until the processes that need it have ended.
`millrace-stop-order.service` creates the file that marks a stop of the whole box. A process that
its disk blocks is waited for during `HELD_NS` only. Weak: one that hangs for another reason is
waited for during `GROUP_STOP_MS`.
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
"""A little more than TimeoutStopSec of the units in the previous group."""
LOOK_NS = 20_000_000
HELD_NS = 5_000_000_000
"""A process in an uninterruptible wait without a heartbeat for this long is blocked by its disk."""


def is_unit() -> bool:
    return os.environ.get(MANAGER_VARIABLE) == SYSTEMD


class StopTurn:
    """Decides when a process that received a stop request may stop."""

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
        """Return whether the process may stop now; cheap enough for each turn."""
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
    """Return whether a process may stop after a stop request; None for at once, as under `millrace
    run`, which orders the stops."""
    if not is_unit():
        return None
    return StopTurn(context.layout, context.process_name, context.box.process_names(), context.clock).has_come
