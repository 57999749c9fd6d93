"""What `millrace run` prints when the box serves: one line for programs, and three commands to
paste.

The format of the ready line is fixed. Apart from the search for kcat and for the `millrace`
command, the functions are pure.
"""

from __future__ import annotations

import os
import sys

from appliance.base.settings import Box
from appliance.runtime.ensemble_checks import is_loopback
from appliance.runtime.run_options import AUTO_CREATE
from appliance.security.listeners import PLAINTEXT

WILDCARDS = ("0.0.0.0", "::")


def ready_line(box: Box) -> str:
    """Return `millrace ready kafka=HOST:PORT syslog=HOST:PORT http=HOST:PORT ingest=HOST:PORT`."""
    host = _bracketed(reachable_host(box))
    kafka = f"{_bracketed(_kafka_host(box))}:{box.kafka_port}"
    return f"millrace ready kafka={kafka} syslog={host}:{box.syslog_port} http={host}:{box.http_port} ingest={host}:{box.ingest_port}"


def ready_message(box: Box) -> str:
    """Return the ready line, three commands with the addresses of this box, and a note if it creates no topics automatically."""
    host = reachable_host(box)
    bootstrap = f"{_bracketed(_kafka_host(box))}:{box.kafka_port}"
    topic = box.text("ingest.syslog.topic")
    millrace = _own_command()
    of_box = ""
    if any(os.path.dirname(disk.path) != os.path.abspath("var") for disk in box.disks):
        of_box = f" --data {_quoted(box.disks[0].path)}"
    if box.sender_tables:
        read = f"{millrace} ingest status{of_box}"  # its routes decide where the line goes
    elif box.kafka_listeners[0].protocol != PLAINTEXT:
        read = f"{millrace} topic tail {topic} --from-beginning{of_box}"  # by the Unix socket, without TLS or login
    elif _is_installed("kcat"):
        read = f"kcat -b {bootstrap} -t {topic} -C -o beginning -e"
    else:
        read = f"{millrace} topic tail {topic} --from-beginning --bootstrap {bootstrap}"
    commands = [f'logger -n {host} -P {box.syslog_port} -d --rfc5424 "disk d3 is warm"', read, f"{millrace} status{of_box}"]
    note = ""
    if not box.flag(AUTO_CREATE) and not is_loopback(box.listen):
        note = f"  clients cannot create topics by naming them: the box listens on {box.listen} and {AUTO_CREATE} is false\n"
    return ready_line(box) + "\n" + "".join(f"  {command}\n" for command in commands) + note


def reachable_host(box: Box) -> str:
    return box.advertise if box.listen in WILDCARDS else box.listen


def _kafka_host(box: Box) -> str:
    return box.local_kafka[0] if box.listeners else reachable_host(box)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _quoted(path: str) -> str:
    return path if all(character.isalnum() or character in "/._-@" for character in path) else "'" + path.replace("'", "'\\''") + "'"


def _own_command() -> str:
    path = f"{os.path.dirname(sys.executable)}/millrace"
    found = next((place for place in _places("millrace") if os.access(place, os.X_OK)), path)
    if not os.path.exists(path) or (found != path and os.path.realpath(found) == os.path.realpath(path)):
        return "millrace"  # a package has linked it
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _is_installed(command: str) -> bool:
    return any(os.access(place, os.X_OK) for place in _places(command))


def _places(command: str) -> list[str]:
    return [f"{directory}/{command}" for directory in os.environ.get("PATH", "").split(":") if directory]
