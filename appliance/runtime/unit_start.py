"""The first steps of a process under systemd: check that the box is prepared, and wait longer after
each failed start.

systemd restarts units after a fixed time and without a limit, because a disk must not be given up
after some attempts. So the process itself waits if previous incarnations never served. `millrace
run` does both itself. Weak: a process that dies before this point (a damaged installation) is
restarted several times a second.
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
    """There is no box.json: the supervisor has not prepared the box yet."""


def require_box() -> None:
    """Raise BoxNotPrepared if there is no box.json. The supervisor creates it before the first unit
    starts."""
    if is_unit() and not os.path.exists(BoxLayout.from_environment().box_file):
        raise BoxNotPrepared("the box is not prepared; see `systemctl status millrace-supervisor`")


def await_turn_to_start(context: ServiceContext, stops: Callable[[], bool]) -> None:
    """Wait 0.1 s, 0.2 s, … up to 5 s after incarnations that never served. Raises LayoutMismatch
    for a process that the box does not have."""
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
