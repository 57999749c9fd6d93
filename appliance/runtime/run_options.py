"""The options of `millrace run`: the command line over the settings file over defaults.

The command parses the options with large libraries and then *becomes* the supervisor
(`exec_supervisor`), so that the process that runs for months holds none of them. Apart from names
of directories nothing of the machine is read; that is the task of `preflight`.

What the start of a box needs of the tables of senders: their sockets and their problems.

Plain values. The parser is above this package, so the entry points pass it as a function
(`ReadSenders`). Weak: whether certificates match their keys is checked in a short-lived child
(`certificate_check`), to keep OpenSSL out of the supervisor.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple, NoReturn

from appliance.base.setting_row import SettingValue
from appliance.base.settings import KafkaListener, SenderSocket, SettingsFile, read_settings_file, resolve_settings
from appliance.base.zookeeper_member import ZooKeeperMember, in_words, read_members
from appliance.runtime.ensemble_checks import is_loopback
from appliance.security.listeners import OVERRIDE_PREFIX, plan_listeners

DEFAULT_DATA = ("./var/d0", "./var/d1")
DEFAULT_STATE = "./var/state"
DEFAULT_KAFKA_PORT = 9092
DEFAULT_SYSLOG_PORT = 5514
DEFAULT_HTTP_PORT = 8080
DEFAULT_INGEST_PORT = 8081
CORES_PER_ACCEPTOR = 4

AUTO_CREATE = "auto.create.topics.enable"
WILDCARD_HOSTS = frozenset({"0.0.0.0", "::", "*", ""})
_CONNECT_STRING = re.compile(r"[A-Za-z0-9.\-_\[\]:]+:\d{1,5}(,[A-Za-z0-9.\-_\[\]:]+:\d{1,5})*(/\S*)?\Z")
_HOST = re.compile(r"[A-Za-z0-9.\-_:%]+\Z")


class RunOptions(NamedTuple):
    """Options as given; None means not given here. Port 0 means any free port."""

    data: list[str] | None = None
    state: str | None = None
    listen: str | None = None
    advertise: str | None = None
    kafka_port: int | None = None
    syslog_port: int | None = None
    http_port: int | None = None
    ingest_port: int | None = None
    acceptors: int | None = None
    ingests: int | None = None
    zookeeper: str | None = None
    zookeeper_members: list[str] | None = None
    broker_id: int | None = None
    rack: str | None = None
    config: str | None = None
    problems: list[str] | None = None
    """Errors of the command line, reported together with all other problems."""

    def to_json(self) -> str:
        return json.dumps({name: value for name, value in self._asdict().items() if value is not None})

    @classmethod
    def from_json(cls, text: str) -> RunOptions:
        return cls(**json.loads(text))


class ResolvedOptions(NamedTuple):
    """Each option with its value. Directories are absolute. `zookeeper` is None for an embedded
    server; `broker_id` is None for the one in the state directory, or 1. `zookeeper_members`: the
    ensemble that the boxes run together, if any."""

    data: list[str]
    state: str
    listen: str
    advertise: str
    kafka_port: int
    syslog_port: int
    http_port: int
    ingest_port: int
    acceptors: int
    ingests: int
    zookeeper: str | None
    broker_id: int | None
    settings: dict[str, SettingValue]
    zookeeper_members: list[ZooKeeperMember] = []  # noqa: RUF012  never changed
    listeners: list[KafkaListener] = []  # noqa: RUF012  never changed
    """As the setting `listeners` has them; empty if it is not set."""
    settings_file: str = ""
    sender_tables: dict[str, Any] = {}  # noqa: RUF012  never changed
    """The tables of senders in the settings file, unchecked."""
    old_table: str = ""
    """A file of release 0.1 with the tables of senders, if the settings file names one."""

    @property
    def own_member(self) -> ZooKeeperMember | None:
        """The member of the boxes' ensemble that this box runs; None without one."""
        return next((member for member in self.zookeeper_members if member.member_id == self.broker_id), None)

    @property
    def runs_zookeeper(self) -> bool:
        """Whether this box runs a ZooKeeper server: its own, or a member of the ensemble."""
        return self.zookeeper is None and (not self.zookeeper_members or self.own_member is not None)

    @property
    def is_alone(self) -> bool:
        """Whether no other box uses the ZooKeeper of this box."""
        return self.zookeeper is None and not self.zookeeper_members


_KINDS: dict[str, type] = {
    "data": list,
    "state": str,
    "listen": str,
    "advertise": str,
    "kafka_port": int,
    "syslog_port": int,
    "http_port": int,
    "ingest_port": int,
    "acceptors": int,
    "ingests": int,
    "zookeeper": str,
    "zookeeper_members": list,
    "broker_id": int,
}
_KIND_WORDS = {list: "a list of texts", str: "a text", int: "a whole number"}
_BOUNDS = {
    "kafka_port": (0, 65535),
    "syslog_port": (0, 65535),
    "http_port": (0, 65535),
    "ingest_port": (0, 65535),
    "acceptors": (1, 64),
    "ingests": (1, 64),
    "broker_id": (0, 2**31 - 1),
}


def resolve_options(options: RunOptions, cores: int) -> tuple[ResolvedOptions, list[str]]:
    """Return the resolved options and all problems with them. Where there are problems, values are
    defaults."""
    file = read_settings_file(options.config) if options.config else SettingsFile({}, {}, [])
    problems = [*(options.problems or []), *file.problems]
    chosen = _options_of_file(file.box, options.config or "", problems)
    chosen.update({name: value for name, value in options._asdict().items() if value is not None and name not in ("config", "problems", "rack")})
    for name, (low, high) in _BOUNDS.items():
        if name in chosen and not low <= chosen[name] <= high:
            problems.append(f"{option_name(name)} is {chosen[name]}; it must be from {low} to {high}")
            if name.endswith("_port"):
                chosen[name] = 0  # do not report a conflict with a default that the user did not choose
            else:
                del chosen[name]
    overrides = {name: value for name, value in file.settings.items() if name.startswith(OVERRIDE_PREFIX)}
    others = {name: value for name, value in file.settings.items() if name not in overrides}
    settings, setting_problems = resolve_settings(others, options.config or "settings")
    problems += setting_problems
    listen = chosen.get("listen", "127.0.0.1")
    default = KafkaListener("PLAINTEXT", "PLAINTEXT", listen, chosen.get("kafka_port", DEFAULT_KAFKA_PORT), "")
    default = default._replace(advertised_host=chosen.get("advertise", "127.0.0.1" if listen in WILDCARD_HOSTS else listen))
    is_alone = not chosen.get("zookeeper") and not chosen.get("zookeeper_members")
    listeners, listener_problems = plan_listeners(settings, overrides, default, is_alone)
    if settings["listeners"] and chosen.get("kafka_port"):
        listener_problems.append(f"listeners is set, so --kafka-port ({chosen['kafka_port']}) would have no effect; remove one of them")
    problems += [f"{options.config or 'settings'}: {problem}" for problem in listener_problems]
    if AUTO_CREATE not in file.settings:
        settings[AUTO_CREATE] = all(is_loopback(host) for host in (listen, *(listener.address for listener in listeners)))
    members, member_problems = read_members([part for text in chosen.get("zookeeper_members", []) for part in text.split(",")])
    problems += [f"--zookeeper-members {problem}" for problem in member_problems]
    if member_problems:
        members = []
    processes = max(1, cores // CORES_PER_ACCEPTOR)
    resolved = ResolvedOptions(
        data=[os.path.abspath(directory) for directory in chosen.get("data") or DEFAULT_DATA],
        state=os.path.abspath(chosen.get("state", DEFAULT_STATE)),
        listen="0.0.0.0" if listen in ("*", "") else listen,
        advertise=default.advertised_host,
        kafka_port=listeners[0].port if listeners else default.port,
        syslog_port=chosen.get("syslog_port", DEFAULT_SYSLOG_PORT),
        http_port=chosen.get("http_port", DEFAULT_HTTP_PORT),
        ingest_port=chosen.get("ingest_port", DEFAULT_INGEST_PORT),
        acceptors=chosen.get("acceptors", processes),
        ingests=chosen.get("ingests", processes),
        zookeeper=chosen.get("zookeeper"),
        broker_id=chosen.get("broker_id"),
        settings=settings if options.rack is None else {**settings, "broker.rack": options.rack},
        zookeeper_members=members,
        listeners=listeners if settings["listeners"] and not listener_problems else [],
        settings_file=options.config or "",
        sender_tables=file.senders,
        old_table=file.old_table,
    )
    return resolved, problems + _text_problems(resolved) + _ensemble_problems(resolved)


def _options_of_file(table: dict[str, object], path: str, problems: list[str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        kind = _KINDS.get(name)
        if kind is list and isinstance(value, str):
            value = [value]
        if kind is None:
            problems.append(f"{path}: [box] has no option {key}; it has {', '.join(other.replace('_', '-') for other in _KINDS)}")
        elif type(value) is not kind or (kind is list and not all(isinstance(item, str) for item in value)):  # type: ignore[attr-defined]
            problems.append(f"{path}: [box] {key} is {value!r}; it must be {_KIND_WORDS[kind]}")
        else:
            chosen[name] = value
    return chosen


def _text_problems(options: ResolvedOptions) -> list[str]:
    problems = []
    if options.zookeeper is not None and not _CONNECT_STRING.match(options.zookeeper):
        problems.append(f"--zookeeper is {options.zookeeper!r}; it must look like HOST:PORT,HOST:PORT (leave it out for the embedded one)")
    listens_well = _HOST.match(options.listen) is not None
    if not listens_well:
        problems.append(f"--listen is {options.listen!r}; it must be a host name or an address, without a port, or * for all addresses")
    if options.advertise in WILDCARD_HOSTS:
        problems.append(f"--advertise is {options.advertise!r}, which no client can connect to; name this machine as clients see it")
    # what follows from --listen was reported there
    elif not _HOST.match(options.advertise) and (listens_well or options.advertise != options.listen):
        problems.append(f"--advertise is {options.advertise!r}; it must be a host name or an address, without a port")
    own = [(option_name(field), options.listen, getattr(options, field)) for field in ("kafka_port", "http_port", "syslog_port", "ingest_port")]
    kafka = [(f"the listener {each.name} of listeners", each.address, each.port) for each in options.listeners]
    sockets = [*kafka, *own[1:]] if kafka else own
    for (name, address, port), (other, other_address, other_port) in combinations(sockets, 2):
        is_shared = address == other_address or not {address, other_address}.isdisjoint(("0.0.0.0", "::"))
        if port and port == other_port and is_shared and not (name.startswith("the ") and other.startswith("the ")):
            problems.append(f"{name} and {other} are both {port}; give each its own")
    return problems


def _ensemble_problems(options: ResolvedOptions) -> list[str]:
    """Return the problems of the options of the boxes' own ensemble."""
    members = options.zookeeper_members
    if not members:
        return []
    problems = []
    if options.zookeeper is not None:
        problems.append("--zookeeper names an ensemble elsewhere, and --zookeeper-members one of the boxes' own; give one of them")
    if options.broker_id is None:
        names = in_words([member.member_id for member in members])
        problems.append(f"--zookeeper-members names {names}, and --broker-id does not say which box this is; give it (a box of another number has no member)")
    return problems


def option_name(field: str) -> str:
    return "--" + field.replace("_", "-")


def exec_supervisor(options: RunOptions) -> NoReturn:
    """Replace this process by the supervisor, so that the command runs as long as the box."""
    environment = dict(os.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = [sys.executable, *python_arguments("services.supervisor", environment), options.to_json()]
    os.execve(sys.executable, arguments, environment)


def python_arguments(module: str, environment: dict[str, str]) -> list[str]:
    """Return arguments that run one of our modules with this interpreter.

    -P keeps the working directory from shadowing our packages. In a checkout, `environment` gets
    the path of the packages.
    """
    import appliance

    root = os.path.dirname(os.path.dirname(os.path.abspath(appliance.__file__)))
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if not root.endswith("-packages") and root not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([root, *paths])
    return ["-P", "-m", module]


class SenderTable(NamedTuple):
    """`problems` are FILE: TABLE: what happened; what to do."""

    tables: dict[str, Any] = {}  # noqa: RUF012  never changed
    sockets: tuple[SenderSocket, ...] = ()
    problems: tuple[str, ...] = ()
    certificate_check: Callable[[], list[str]] | None = None


ReadSenders = Callable[[ResolvedOptions], SenderTable]


def no_senders(_options: ResolvedOptions) -> SenderTable:
    """Return what a box without tables of senders has."""
    return SenderTable()
