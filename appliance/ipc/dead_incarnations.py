"""What the dead lives of a source left in shared memory, swept by its next one: arenas always, rings unless somebody reads them first.

A life that was killed takes its maps with it, but not its names; counters excepted, nothing there is ever used again. Owned by the source while
it starts, when no other life of its name exists. Weak spot: what a source left that never starts again (an acceptor fewer after a
change of settings) stays until the box stops.
"""

from __future__ import annotations

from appliance.base.layout import BoxLayout
from appliance.shm.mapping import list_names, unlink


def sweep_arenas(layout: BoxLayout, source: str, incarnation: int) -> int:
    """Unlink the arenas of other lives of `source`; returns how many."""
    return _sweep(layout.shared_memory_name("arena", source) + ".", 1, incarnation)


def sweep_rings(layout: BoxLayout, source: str, incarnation: int) -> int:
    """Unlink the rings of other lives of `source`; returns how many."""
    return _sweep(layout.shared_memory_name("channel", source) + ".", 3, incarnation)


def _sweep(prefix: str, components_min: int, incarnation: int) -> int:
    """Names are PREFIX[disk.attempt.]incarnation. An arena's has one component: `d.1` is not another life of `d`."""
    swept = 0
    for name in list_names(prefix):
        components = name[len(prefix) :].split(".")
        if len(components) < components_min or (components_min == 1 and len(components) > 1) or components[-1] == f"{incarnation:x}":
            continue
        unlink(name)
        swept += 1
    return swept
