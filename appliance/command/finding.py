"""Finding the box that a command is about: `--data`, else MILLRACE_DATA, else the settings file, else ./var.

Paths are compared as text with what the runtime directories on tmpfs say, so a hung log disk cannot hang a command.
Weak spot: the settings file itself may lie on any disk; it is read only when nothing nearer was given.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, NamedTuple

from appliance.base.layout import DATA_VARIABLE, SYSTEM_ROOT, BoxLayout
from appliance.client.address import Address, parse_addresses
from appliance.command.failures import UsageProblem

SYSTEM_SETTINGS_FILE = "/etc/millrace/millrace.toml"
INSTALLED_TARGETS = ("/etc/systemd/system/millrace.target", "/usr/lib/systemd/system/millrace.target")
"""By install.sh, and by the Debian package."""
DEFAULT_DATA_DIRECTORY = "./var"


def is_installed() -> bool:
    """Return whether systemd runs the box of this machine."""
    return any(map(os.path.exists, INSTALLED_TARGETS))


class FoundBox(NamedTuple):
    """A box and what its box.json says (see `appliance.base.settings.Box`)."""

    layout: BoxLayout
    box: dict[str, Any]

    @property
    def is_encrypted(self) -> bool:
        """Whether its inter-broker listener has TLS."""
        listeners = self.box.get("listeners") or []
        return any(each["protocol"] != "PLAINTEXT" for each in listeners[:1])

    @property
    def kafka_address(self) -> Address:
        """Where it listens, as this machine reaches it: as `Box.local_kafka`, also for boxes of other releases."""
        listeners = self.box.get("listeners") or []
        if self.is_encrypted:
            return Address(listeners[0]["advertised_host"], int(listeners[0]["advertised_port"] or listeners[0]["port"]))
        listen = str(listeners[0]["address"] if listeners else self.box["listen"])
        anywhere = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
        return Address(anywhere.get(listen, listen), int(self.box["kafka_port"]))


def find_running_box(data: str | None, config: str | None) -> FoundBox:
    """The box; UsageProblem says where was looked and what to do."""
    from appliance.runtime.running_boxes import find_box  # shared memory, which `--help` need not wait for

    named = _named(data, config)
    layout = _box_of_state(named.state) or next(filter(None, map(find_box, named.directories)), None)
    if layout is None:
        raise UsageProblem(f"no running box has the data directory {os.path.abspath(named.directories[0])} ({named.by}){_what_to_do()}")
    return FoundBox(layout, layout.read_box())


def administration_addresses(bootstrap: str | None, data: str | None, config: str | None) -> list[Address]:
    """As `bootstrap_addresses`; a box that was found is asked through its Unix socket, where root and the user of the box need no password."""
    if bootstrap is None:
        found = find_running_box(data, config)
        from appliance.runtime.unit_process import SYSTEMD

        path = found.layout.administration_socket(found.box.get("managed_by") == SYSTEMD)
        if os.path.exists(path):  # not in a box of an older release
            return [Address(path, 0)]
        return [found.kafka_address]
    return bootstrap_addresses(bootstrap, data, config)


def bootstrap_addresses(bootstrap: str | None, data: str | None, config: str | None) -> list[Address]:
    """Where to speak Kafka: what was given, else the box."""
    if bootstrap is None:
        return [find_running_box(data, config).kafka_address]
    try:
        return parse_addresses(bootstrap)
    except ValueError as error:
        raise UsageProblem(f"--bootstrap: {error}") from error


def state_directory(state: str | None, config: str | None) -> str:
    """Where the box keeps its state, by the options that `millrace run` has."""
    from appliance.runtime.run_options import RunOptions, resolve_options

    if config is None and os.path.exists(SYSTEM_SETTINGS_FILE):
        config = SYSTEM_SETTINGS_FILE
    options = RunOptions(config=None if state else config, state=state)
    return resolve_options(options, 1)[0].state


class _Named(NamedTuple):
    """How a box is found, and by which option. The state directory never changes; a data directory may be removed by an order about its disk."""

    directories: list[str]
    by: str
    state: str = ""


def _named(data: str | None, config: str | None) -> _Named:
    if data:
        return _Named([data], "--data")
    if from_environment := os.environ.get(DATA_VARIABLE):
        return _Named([from_environment], f"from {DATA_VARIABLE}")
    settings_file = config or (SYSTEM_SETTINGS_FILE if os.path.exists(SYSTEM_SETTINGS_FILE) else None)
    return (_named_in(settings_file) if settings_file else None) or _Named([DEFAULT_DATA_DIRECTORY], "the default")


def _named_in(settings_file: str) -> _Named | None:
    """What a settings file says of its box; None if it names no data directory."""
    from appliance.base.settings import read_settings_file

    read = read_settings_file(settings_file)
    if read.problems:
        raise UsageProblem("\n".join(read.problems))
    directories = read.box.get("data")
    paths = [str(path) for path in directories] if isinstance(directories, list) else [directories] if isinstance(directories, str) else []
    return _Named(paths, f"from {settings_file}", str(read.box.get("state") or "")) if paths else None


def _box_of_state(state: str) -> BoxLayout | None:
    """The box that was started with this state directory."""
    from appliance.runtime.directories import boxes_of_state

    return next(iter(boxes_of_state(state)), None) if state else None


def _what_to_do() -> str:
    from appliance.runtime.running_boxes import boxes_with

    running = [directory for box in boxes_with(None) for directory in box.data_directories[:1]]
    if not running and (owner := _owner_of_another_box()) is not None:
        return f"; a box of user {owner} is on this machine, which only that user and root may look at: run the command with sudo"
    if not running and is_installed():
        return "; no box runs on this machine: systemctl start millrace.target. Where that does not help, journalctl -u millrace-supervisor -n 30 says why"
    if not running:
        return "; no box runs on this machine: start one with `millrace run` (or ./install.sh run)"
    return "; name one of these with --data DIR: " + ", ".join(running)


def _owner_of_another_box() -> str | None:
    """The user of a box that was started as a service and that we may not look at."""
    if os.geteuid() == 0:
        return None
    try:
        places = [entry.path for entry in os.scandir(SYSTEM_ROOT) if entry.is_dir(follow_symlinks=False)]
    except PermissionError:
        places = [SYSTEM_ROOT]
    except OSError:
        return None
    for place in places:
        with suppress(OSError):
            owner = os.lstat(place).st_uid
            if owner != os.geteuid():
                return _name_of(owner)
    return None


def _name_of(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
