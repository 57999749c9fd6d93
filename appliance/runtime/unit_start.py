"""What a process does first where systemd starts it: look whether there is a box for it, and wait longer each time its lives end early.

systemd starts again what ends, after a fixed time and for ever: a disk must not be given up because nobody looked for an hour. So the process itself takes
its time when the lives before this one never served. Under `millrace run`, which does both itself, nothing of this happens. Weak spot: what dies before it
gets here (an installation that is damaged) is started again several times a second.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from appliance.base.errors import MillraceError
from appliance.base.layout import BoxLayout
from appliance.runtime.agent import ServiceContext
from appliance.runtime.children import restart_delay_ms
from appliance.runtime.systemd import FAILED_STARTS
from appliance.runtime.unit_mode import is_unit
from appliance.shm.mapping import LayoutMismatch

LOOK_MS = 20


class BoxNotPrepared(MillraceError):
    """There is no box.json: the supervisor has not come so far."""


def require_box() -> None:
    """The supervisor prepares the box before any unit is started, and clears it after the last has stopped. Raises BoxNotPrepared."""
    if is_unit() and not os.path.exists(BoxLayout.from_environment().box_file):
        raise BoxNotPrepared("the box is not prepared, see `systemctl status millrace-supervisor`")


def await_turn_to_start(context: ServiceContext, stops: Callable[[], bool]) -> None:
    """0.1 s, 0.2 s, … up to 5 s after lives that never served, as `millrace run` does it. Raises LayoutMismatch for a process that the box has not got."""
    if not is_unit():
        return
    if context.process_name not in context.box.process_names():
        raise LayoutMismatch(f"this box has no {context.process_name} (any more); `millrace units apply` removes what is left of it")
    failed = context.counters.counter(FAILED_STARTS)
    delay_ms = restart_delay_ms(failed.value)
    failed.add()
    until_ms = context.clock.monotonic_ms() + delay_ms
    while context.clock.monotonic_ms() < until_ms and not stops():
        select.select([], [], [], LOOK_MS / 1000)
