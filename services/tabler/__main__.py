"""tabler: keeps topics as tables, at low priority; loads Arrow only while a topic is one."""

from __future__ import annotations

import gc
import os
from contextlib import suppress

NICENESS = 10
"""After every other process of the box, but not starved on a busy machine: retention does not wait for a table."""

if __name__ == "__main__":
    gc.disable()  # imports leave hardly any garbage; run_service enables it
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported; nothing here computes with matrices
    from appliance.runtime.scheduling import take_idle_priority
    from appliance.runtime.service_main import service_main
    from services.tabler.agent import TablerAgent

    with suppress(OSError):  # a unit may forbid the calls; its own priority is low, too
        take_idle_priority(NICENESS)
    raise SystemExit(service_main("tabler", TablerAgent))
