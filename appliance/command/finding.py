"""Finding the box that a command is about: `--data`, else MILLRACE_DATA, else the settings file, else ./var.

Paths are compared as text with what the runtime directories on tmpfs say, so a hung log disk cannot hang a command.
Weak spot: the settings file itself may lie on any disk; it is read only when nothing nearer was given.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from appliance.base.layout import DATA_VARIABLE, BoxLayout, find_box, runtime_roots
from appliance.client.address import Address, parse_addresses
from appliance.command.failures import UsageProblem

SYSTEM_SETTINGS_FILE = "/etc/millrace/millrace.toml"
DEFAULT_DATA_DIRECTORY = "./var"


class FoundBox(NamedTuple):
    """A box and what its box.json says (see `appliance.base.settings.Box`)."""

    layout: BoxLayout
    box: dict[str, Any]

    @property
    def kafka_address(self) -> Address:
        """Where it listens, as this machine reaches it."""
        listen = str(self.box["listen"])
        anywhere = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
        return Address(anywhere.get(listen, listen), int(self.box["kafka_port"]))


def find_running_box(data: str | None, config: str | None) -> FoundBox:
    """The box; UsageProblem says where was looked and what to do."""
    directory, said_by = _data_directory(data, config)
    layout = find_box(directory)
    if layout is None:
        raise UsageProblem(f"no running box has the data directory {os.path.abspath(directory)} ({said_by}){_what_to_do()}")
    return FoundBox(layout, layout.read_box())


def bootstrap_addresses(bootstrap: str | None, data: str | None, config: str | None) -> list[Address]:
    """Where to speak Kafka: what was given, else the box."""
    if bootstrap is None:
        return [find_running_box(data, config).kafka_address]
    try:
        return parse_addresses(bootstrap)
    except ValueError as error:
        raise UsageProblem(f"--bootstrap: {error}") from error


def _data_directory(data: str | None, config: str | None) -> tuple[str, str]:
    """The directory to look for, and who named it."""
    if data:
        return data, "--data"
    if from_environment := os.environ.get(DATA_VARIABLE):
        return from_environment, f"from {DATA_VARIABLE}"
    settings_file = config or (SYSTEM_SETTINGS_FILE if os.path.exists(SYSTEM_SETTINGS_FILE) else None)
    if settings_file and (named := _first_directory_in(settings_file)):
        return named, f"from {settings_file}"
    return DEFAULT_DATA_DIRECTORY, "the default"


def _first_directory_in(settings_file: str) -> str | None:
    from appliance.base.settings import read_settings_file

    read = read_settings_file(settings_file)
    if read.problems:
        raise UsageProblem("\n".join(read.problems))
    directories = read.box.get("data")
    if isinstance(directories, list) and directories:
        return str(directories[0])
    return directories if isinstance(directories, str) else None


def _what_to_do() -> str:
    running = running_boxes()
    if not running:
        return "; no box runs on this machine: start one with `millrace run` (or ./install.sh run)"
    return "; name one of these with --data DIR: " + ", ".join(running)


def running_boxes() -> list[str]:
    """The first data directory of each box that this user can see."""
    directories = []
    for root in runtime_roots():
        try:
            names = sorted(os.listdir(root))
        except OSError:
            continue
        for name in names:
            try:
                directories += [str(disk["path"]) for disk in BoxLayout(f"{root}/{name}").read_box()["disks"][:1]]
            except (OSError, ValueError, KeyError):
                continue
    return directories
