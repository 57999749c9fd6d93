"""search: searches segments for the console, which starts it and owns the other end of descriptor 0."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported; nothing here computes with matrices

from appliance.base.layout import BoxLayout
from appliance.runtime.scheduling import take_idle_priority
from appliance.runtime.service_main import name_process
from appliance.runtime.spawning import bind_to_parent


def main() -> int:
    if not bind_to_parent():
        return 1
    name_process("search")
    with suppress(OSError):  # a unit may forbid the calls; its own priority is low, too
        take_idle_priority()
    from services.search.agent import run_search

    run_search(BoxLayout.from_environment(), socket.socket(fileno=0))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
