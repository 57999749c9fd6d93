"""Starts a child of `millrace run` with its program, environment and listening sockets.

Weak: the systemd unit files repeat the same settings.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping

from appliance.base.layout import RUNTIME_VARIABLE
from appliance.runtime.children import Child, listen_names
from appliance.runtime.run_options import python_arguments
from appliance.runtime.spawning import spawn

TRIM_BYTES = 16 << 20


def start_child(child: Child, runtime_directory: str, notify_path: str, listening: Mapping[str, socket.socket]) -> int:
    """Start the process of `child`; returns its pid. Raises OSError if the fork fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LISTEN_")}
    environment[RUNTIME_VARIABLE] = runtime_directory
    environment["NOTIFY_SOCKET"] = notify_path
    environment.setdefault("MALLOC_ARENA_MAX", "2")  # otherwise glibc allocates an arena per thread
    if child.kind == "ingest":
        # Otherwise glibc returns the memory of each request to the kernel, and the next request
        # pays for its page faults (10 % of the time of OTLP).
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
