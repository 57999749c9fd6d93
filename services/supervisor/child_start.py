"""What a child of `millrace run` is started with: its program, its environment, and the listening sockets that it is given.

Owned by the supervisor. Weak spot: under systemd the unit files say the same once more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from socket import socket

from appliance.base.layout import RUNTIME_VARIABLE
from appliance.runtime.children import Child, listen_names
from appliance.runtime.run_options import python_arguments
from appliance.runtime.spawning import spawn

TRIM_BYTES = 16 << 20


def start_child(child: Child, runtime_directory: str, notify_path: str, listening: Mapping[str, socket]) -> int:
    """Its pid. Raises OSError."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LISTEN_")}
    environment[RUNTIME_VARIABLE] = runtime_directory
    environment["NOTIFY_SOCKET"] = notify_path
    environment.setdefault("MALLOC_ARENA_MAX", "2")  # glibc gives every thread an arena of its own otherwise
    if child.kind == "ingest":
        # Else glibc gives the memory of each request back to the kernel, and the next one pays for its pages again (10 % of OTLP's time).
        environment.setdefault("MALLOC_TRIM_THRESHOLD_", str(TRIM_BYTES))
    names = listen_names(child.kind, listening)
    sockets = [listening[name] for name in names]
    if sockets:
        environment["LISTEN_FDS"] = str(len(sockets))
        environment["LISTEN_FDNAMES"] = ":".join(names)
    arguments = [sys.executable, *python_arguments(f"services.{child.kind.replace('-', '_')}", environment)]
    if child.instance:
        arguments.append(child.instance)
    return spawn(arguments, environment, [sock.fileno() for sock in sockets])
