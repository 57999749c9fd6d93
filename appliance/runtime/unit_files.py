"""Plans the systemd units of a box and their drop-ins `UNIT.d/20-settings.conf`, which follow from
its settings. Pure.

The units themselves (`systemd/`) are the same on each box. systemd does not read our settings, so
`millrace units apply` writes what follows from them: addresses, disks with their mounts, numbers of
processes. Rejected: a generator, which systemd runs before /var and /opt are mounted. Weak: after a
change of the settings, `millrace units apply` has to be run; the supervisor warns until then.
"""

from __future__ import annotations

import json
import os
import re
import socket
import zlib
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from appliance.base.errors import ConfigurationProblems
from appliance.base.layout import CONSOLE_STATE, INGEST_STATE, SYSTEM_ROOT, TABLES_STATE, Disk
from appliance.base.networks import is_network, split_networks
from appliance.base.settings import Box, KafkaListener, SenderSocket
from appliance.base.zookeeper_access import secret_path
from appliance.runtime.disk_orders import disk_processes
from appliance.runtime.listening import KAFKA_BACKLOG, KAFKA_SOCKET, kafka_socket_names
from appliance.runtime.run_options import ResolvedOptions, SenderTable
from appliance.security.listeners import PLAINTEXT, TokenSettings

DROP_IN = "20-settings.conf"
COMMON_DROP_IN = "millrace-.service.d/10-box.conf"
"""Prefix for drop-ins that apply to all our services. The name is unique: of drop-ins with the same
name, systemd uses only that of the longest prefix."""
TARGET = "millrace.target"
SETTINGS_MARK_VARIABLE = "MILLRACE_UNITS_FOR"
"""The settings that the units were written for, as `settings_mark` encodes them."""
SOCKET_UNITS = (
    "millrace-kafka.socket",
    "millrace-administration.socket",
    "millrace-http.socket",
    "millrace-syslog-tcp.socket",
    "millrace-syslog-udp.socket",
    "millrace-ingest-http.socket",
)
INGEST_BACKLOG = 1024
JVM_OVERHEAD_MIB = 256
"""Largest memory of a JVM beside its heap, including the Python process that watches it."""
_FITS_UNIT_NAME = re.compile(r"[A-Za-z0-9_.:][A-Za-z0-9_.:\-]*\Z")
UNIT_NAME_BYTES_MAX = 255
_WILDCARDS = ("0.0.0.0", "::")
_SERVER = re.compile(r"://|--(bootstrap|master)\b")
"""In load.conf: a load connects to a database, a box or a Spark cluster that it names."""


class UnitPlan(NamedTuple):
    """`drop_ins`: content by path below /etc/systemd/system, with the socket units of the listeners
    for senders. `units`: all services of this box."""

    drop_ins: dict[str, str]
    units: list[str]


def unit_name(process_name: str) -> str:
    """Return `millrace-log-writer@d0.service` for `log-writer@d0`."""
    return f"millrace-{process_name}.service"


def plan_units(box: Box, mount_points: Mapping[str, str], load: str = "") -> UnitPlan:
    """Plan all that follows from the settings of a box.

    `mount_points`: where the path of each disk and of the state directory is mounted ("/" for no
    mount of its own). `load`: the content of load.conf. Raises ConfigurationProblems for a value that would add a line or name
    another file, because systemd executes units as root.
    """
    listen = numeric_address(box.listen)
    names = [*(disk.name for disk in box.disks), *(sender.name for sender in box.sender_sockets), *kafka_socket_names(box.listeners), box.box]
    if problems := [problem for name in names if (problem := unit_name_problem(name)) is not None]:
        raise ConfigurationProblems(problems)
    kafka = dict(zip(kafka_socket_names(box.listeners), box.listeners, strict=True))
    first = box.kafka_listeners[0]
    further = {name: listener for name, listener in kafka.items() if name != KAFKA_SOCKET}
    units = [unit_name(name) for name in box.process_names()]
    wanted = [f"Wants={unit}" for unit in units]
    disks = [f"-{disk.path}" for disk in box.disks]
    state = box.state_directory
    hidden = f"InaccessiblePaths=-{state}/zookeeper -{secret_path(state)}"  # what exists when the unit starts
    own_network = [] if has_own_network(box) else ["PrivateNetwork=no"]
    chooses_port = own_network if is_alone(box) else []  # for ZooKeeper: nothing else of the supervisor needs a network
    others = [] if is_alone(box) else _cluster_addresses(box)
    drop_ins = {
        TARGET: _section("Unit", [*(f"Wants={unit}" for unit in [*SOCKET_UNITS, *map(kafka_unit, further), *map(sender_unit, box.sender_sockets)]), *wanted]),
        "millrace-kafka.socket": _listens("ListenStream", numeric_address(first.address), first.port),
        "millrace-http.socket": _listens("ListenStream", listen, box.http_port),
        "millrace-syslog-tcp.socket": _listens("ListenStream", listen, box.syslog_port),
        "millrace-syslog-udp.socket": _listens("ListenDatagram", listen, box.syslog_port),
        "millrace-ingest-http.socket": _listens("ListenStream", listen, box.ingest_port),
        "millrace-supervisor.service": _section("Unit", [f"RequiresMountsFor={state}", "ConditionPathExists=", *wanted])
        + _section("Service", [f"Environment={SETTINGS_MARK_VARIABLE}={settings_mark(box)}", "ReadOnlyPaths=", *_writes(state, *disks), *chooses_port]),
        "millrace-controller.service": _section("Service", [*_writes(state), *others, *own_network]),
        "millrace-console.service": _section("Service", [*_writes(f"-{state}/{CONSOLE_STATE}"), hidden, *_console_addresses(box, listen)]),
        # copies between clusters that may be elsewhere: it needs no box here
        "millrace-mirror@.service": _section("Unit", ["ConditionPathExists=", "ConditionPathExists=/etc/millrace/mirror/%i.toml"])
        + _section("Service", [f"{hidden} {' '.join([f'-{state}', *disks])}"]),
        "millrace-load.service": _section("Service", [hidden, *(ANY_ADDRESS if _SERVER.search(load) else _own_addresses(box, box.advertise))]),
    }
    network = [] if is_alone(box) else ["PrivateNetwork=no"]
    for unit in ("millrace-acceptor@.service", "millrace-coordinator.service", "millrace-replica-fetcher.service"):
        drop_ins[unit] = _section("Service", [hidden, *network, *others])
    if any(tokens.needs_network for listener in box.kafka_listeners if (tokens := TokenSettings.of(listener, box)) is not None):
        drop_ins["millrace-acceptor@.service"] += _lines(["PrivateNetwork=no", *ANY_ADDRESS])
    if further:
        drop_ins["millrace-acceptor@.service"] += _lines([f"Sockets={' '.join(map(kafka_unit, further))}"])
    if box.embedded_zookeeper:
        memory = f"MemoryMax={box.integer('zookeeper.heap.mb') + JVM_OVERHEAD_MIB}M"
        drop_ins["millrace-zookeeper.service"] = _section("Service", [memory, *_writes(state), *_zookeeper_addresses(box), *own_network])
    listens = [f"Sockets={' '.join(map(sender_unit, box.sender_sockets))}"] if box.sender_sockets else []
    drop_ins["millrace-ingest@.service"] = _section("Service", [*listens, *_writes(f"-{state}/{INGEST_STATE}"), hidden, *_own_addresses(box, box.advertise)])
    if box.table_locations:
        tables = (f"-{path}" for path in (f"{state}/{TABLES_STATE}", *(each for each in box.table_locations if "://" not in each)))
        drop_ins["millrace-tabler.service"] = _section(
            "Service", [*_writes(*tables), hidden, *(["PrivateNetwork=no", *TABLE_ADDRESS] if box.tables_need_network else [])]
        )
    for disk in box.disks:
        bound = _section("Unit", _mount_lines(disk.path, mount_points[disk.path]))
        drop_ins[unit_name(f"log-writer@{disk.name}")] = bound + _section("Service", [*_writes(disk.path, state), hidden])
        drop_ins[unit_name(f"log-reader@{disk.name}")] = bound + _section("Service", [hidden])
    for mount_point in sorted({mount_points[disk.path] for disk in box.disks} - {"/"}):
        processes = [process for disk in box.disks if mount_points[disk.path] == mount_point for process in disk_processes(disk.name)]
        drop_ins[f"{escaped_path(mount_point)}.mount"] = _section("Unit", [f"Wants={unit_name(process)}" for process in processes])
    files = {f"{unit}.d/{DROP_IN}": HEAD + text for unit, text in drop_ins.items()}
    runtime = f"{SYSTEM_ROOT}/{box.box}"
    files[COMMON_DROP_IN] = (
        HEAD
        + _section("Unit", [f"ConditionPathExists={runtime}/box.json"])
        # while it is mounted read-only, a process cannot put another file in its place either. Weak:
        # it could after the supervisor wrote a new one, or by moving the whole directory away
        + _section("Service", [f"Environment=MILLRACE_RUNTIME={runtime}", f"ReadOnlyPaths=-{runtime}/box.json"])
    )
    files |= {sender_unit(sender): HEAD + _sender_unit_text(sender, listen) for sender in box.sender_sockets}
    files |= {kafka_unit(name): HEAD + _kafka_unit_text(name, listener) for name, listener in further.items()}
    return UnitPlan(files, [unit_name("supervisor"), *units])


def is_alone(box: Box) -> bool:
    """Return whether this box is a cluster of its own: no other box can reach its ZooKeeper."""
    return box.embedded_zookeeper and not box.zookeeper_members


def has_own_network(box: Box) -> bool:
    """Return whether ZooKeeper shares a network with its clients alone: no other process of this
    machine reaches it either. `zookeeper.allowed.addresses` names such processes."""
    return is_alone(box) and not box.text("zookeeper.allowed.addresses")


def _writes(*paths: str) -> list[str]:
    """Let a process write there, and execute nothing that it wrote."""
    return [f"{setting}={' '.join(paths)}" for setting in ("ReadWritePaths", "NoExecPaths")]


ANY_ADDRESS = ["IPAddressDeny=", "IPAddressAllow="]
TABLE_ADDRESS = ["RestrictAddressFamilies=AF_INET AF_INET6"]
"""Of catalogs; systemd adds them to those of the unit."""


def _zookeeper_addresses(box: Box) -> list[str]:
    """Return the addresses that may reach the ZooKeeper of this box. systemd accepts addresses only:
    if a member has a host name, nothing is refused."""
    if not box.zookeeper_members:
        return []
    hosts = [member.plain_host for member in box.ensemble]
    allowed = split_networks(box.text("zookeeper.allowed.addresses"))
    if not all(is_network(host) for host in hosts):
        hosts = split_networks(box.text("cluster.networks"))
    return [f"IPAddressAllow={' '.join([*hosts, *allowed])}"] if hosts else ANY_ADDRESS


def _own_addresses(box: Box, own: str) -> list[str]:
    """Return the addresses that a process may connect to which reaches the acceptors of its box at
    `own`, and in a cluster any box. systemd accepts addresses only: a host name may be any."""
    if own in (*_WILDCARDS, "localhost") and is_alone(box):
        return []
    return [f"IPAddressAllow={own}"] if is_alone(box) and is_network(own) else _cluster_addresses(box, own)


def _cluster_addresses(box: Box, own: str = "") -> list[str]:
    """Return the addresses that a process may connect to which reaches any box of the cluster, and the acceptors of its own at `own`."""
    networks = split_networks(box.text("cluster.networks"))
    if not networks or (own and not is_network(own)):
        return ANY_ADDRESS
    return ["IPAddressDeny=any", f"IPAddressAllow=localhost {' '.join([*networks, *([own] if own not in ('', *_WILDCARDS) else [])])}"]


def _console_addresses(box: Box, listen: str) -> list[str]:
    """Return the addresses that the console may connect to: its acceptors, and the server of `alerts.url`."""
    own = _own_addresses(box, listen if box.kafka_listeners[0].protocol == PLAINTEXT else box.local_kafka[0])
    host = urlsplit(box.text("alerts.url")).hostname or "localhost"
    if host == "localhost" or own == ANY_ADDRESS:
        return own
    return [*own, f"IPAddressAllow={host}"] if is_network(host) else ANY_ADDRESS


HEAD = "# Written by `millrace units apply` from the settings; put changes of your own into another file beside this one.\n"


def kafka_unit(socket_name: str) -> str:
    """Return `millrace-kafka-clients.socket` for `kafka-clients`."""
    return f"millrace-{socket_name}.socket"


def _kafka_unit_text(name: str, listener: KafkaListener) -> str:
    unit = [f"Description=Millrace: Kafka clients of listener {listener.name}", "StopPropagatedFrom=millrace.target", "StartLimitIntervalSec=0"]
    given = [f"FileDescriptorName={name}", "Service=millrace-acceptor@0.service", f"Backlog={KAFKA_BACKLOG}"]
    return _section("Unit", unit) + _listens("ListenStream", numeric_address(listener.address), listener.port) + _lines(given)


def sender_unit(sender: SenderSocket) -> str:
    """Return `millrace-ingest-dmz.socket` for `ingest-dmz`."""
    return f"millrace-{sender.name}.socket"


def _sender_unit_text(sender: SenderSocket, listen: str) -> str:
    """Return a whole unit, because only the settings know the listeners."""
    name = sender.name.removeprefix("ingest-")
    unit = [f"Description=Millrace: senders to {name}", "StopPropagatedFrom=millrace.target", "StartLimitIntervalSec=0"]
    kind = "ListenDatagram" if sender.is_datagram else "ListenStream"
    address = numeric_address(sender.address) if sender.address else listen
    receive_buffer = "ReceiveBuffer=64M" if sender.is_datagram else f"Backlog={INGEST_BACKLOG}"
    given = [f"FileDescriptorName={sender.name}", "Service=millrace-ingest@0.service", receive_buffer]
    return _section("Unit", unit) + _listens(kind, address, sender.port) + _lines(given)


def _section(name: str, lines: list[str]) -> str:
    return f"[{name}]\n" + _lines(lines)


def _lines(lines: list[str]) -> str:
    for line in lines:
        if not line.isprintable():  # after a line end, systemd would read an order such as ExecStartPre=
            raise ConfigurationProblems([f"a unit file cannot have the line {line!r}: it has control characters; change the setting that it comes from"])
    return "".join(f"{line}\n" for line in lines)


def _listens(kind: str, host: str, port: int) -> str:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return _section("Socket", [f"{kind}=", f"{kind}={address}", "FreeBind=yes"])


def _mount_lines(path: str, mount_point: str) -> list[str]:
    """Bind the processes of a disk to its mount. If it is not mounted they do not run, and nothing
    is written below the mount point."""
    if mount_point == "/":
        return [f"RequiresMountsFor={path}"]
    mount = f"{escaped_path(mount_point)}.mount"
    return [f"RequiresMountsFor={path}", f"BindsTo={mount}", f"After={mount}", f"AssertPathIsMountPoint={mount_point}"]


def escaped_path(path: str) -> str:
    """Return what `systemd-escape --path` returns: /srv/log-1 → srv-log\x2d1."""
    escaped = ""
    for index, character in enumerate(path.strip("/")):
        if character == "/":
            escaped += "-"
        elif (character.isascii() and (character.isalnum() or character in ":_")) or (character == "." and index):
            escaped += character
        else:
            escaped += "".join(f"\\x{byte:02x}" for byte in character.encode())
    return escaped or "-"


def settings_mark(box: Box) -> str:
    """Return a checksum of the settings that the units contain."""
    told: list[object] = [box.listen, box.kafka_port, box.syslog_port, box.http_port, box.acceptors, box.ingests, box.embedded_zookeeper, box.state_directory]
    disks = sorted((disk.name, disk.path) for disk in box.disks)
    told += [box.advertise, box.ingest_port, [sender[:4] for sender in box.sender_sockets]]
    if box.listeners:
        told.append([listener[:4] for listener in box.listeners])
    if box.embedded_zookeeper:
        told += [box.zookeeper_members, box.text("zookeeper.allowed.addresses")]
    if box.table_locations:
        told.append(box.table_locations)
        told += ["network"] if box.tables_need_network else []
    if alerts := urlsplit(box.text("alerts.url")).hostname:
        told.append(alerts)
    if networks := box.text("cluster.networks"):
        told.append(networks)
    return f"{zlib.crc32(json.dumps([told, disks, box.integer('zookeeper.heap.mb')]).encode()):08x}"


def planned_box(options: ResolvedOptions, box_id: str, disks: list[Disk], senders: SenderTable) -> Box:
    """Return the box of these options as far as its units need it."""
    return Box(
        box=box_id,
        broker_id=0,
        disks=disks,
        state_directory=options.state,
        listen=options.listen,
        advertise=options.advertise,
        kafka_port=options.kafka_port,
        syslog_port=options.syslog_port,
        http_port=options.http_port,
        ingest_port=options.ingest_port,
        sender_tables=senders.tables,
        sender_sockets=list(senders.sockets),
        listeners=options.listeners,
        acceptors=options.acceptors,
        ingests=options.ingests,
        embedded_zookeeper=options.runs_zookeeper,
        zookeeper_members=[member.text for member in options.zookeeper_members],
        settings=options.settings,
    )


def numeric_address(host: str) -> str:
    """Return the numeric address that socket units require. An unknown name stays; `unit_problems`
    reports it."""
    try:
        return str(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4][0])
    except OSError:
        return host


def unit_problems(options: ResolvedOptions, named: Mapping[str, object], disks: list[Disk]) -> list[str]:
    """Return options that units need but `millrace run` has defaults for. `named` is the table
    [box] of the settings file."""
    problems = [f"[box] {key} is not set; a box that systemd runs must say where its {what} is" for key, what in _NEEDED.items() if key not in named]
    directories = named.get("data")
    for path in [*(directories if isinstance(directories, list) else [directories]), named.get("state")]:
        if isinstance(path, str) and not path.startswith("/"):
            problems.append(f"[box] {path}: a box that systemd runs has no working directory; give the whole path, from / on")
    problems += [
        f"listeners has {each.name} with port 0 (any free one); a box that systemd runs has fixed ports" for each in options.listeners if not each.port
    ]
    for key in (*(() if options.listeners else ("kafka_port",)), "syslog_port", "http_port", "ingest_port"):
        if not getattr(options, key):
            problems.append(f"[box] {key.replace('_', '-')} is 0 (any free one); a box that systemd runs has fixed ports")
    address = numeric_address(options.listen)
    if not re.fullmatch(r"[0-9a-fA-F:.%\w]*[0-9a-fA-F:]", address) or not (":" in address or address.replace(".", "").isdigit()):
        problems.append(f"[box] listen is {options.listen!r}, which is no address of this machine, nor a name of one")
    return problems + [problem for disk in disks for problem in disk_problems(disk.path, disk.name)]


def disk_problems(path: str, name: str) -> list[str]:
    """Return why the name of this disk or its path cannot be used in a unit."""
    problem = unit_name_problem(name)
    problems = [] if problem is None else [f"{path}: {problem}; use letters, digits, '.', '_' and '-' in the directory's last name"]
    if re.search(r"[\s%\"'\\]", path) or not path.isprintable():
        problems.append(f"{path}: a unit file cannot name a directory with blanks, quotes, control characters, \\ or %")
    elif os.path.normpath(path) != path or not path.startswith("/"):
        problems.append(f"{path}: a unit file needs the whole path, from / on, without .. in it")
    return problems


def unit_name_problem(name: str) -> str | None:
    """Return why `name` cannot be part of a unit name, or None."""
    fits = _FITS_UNIT_NAME.match(name) is not None and name.strip(".") != "" and len(name) <= UNIT_NAME_BYTES_MAX - len(unit_name("log-writer@"))
    return None if fits else f"{name!r} cannot be part of a unit name"


_NEEDED = {"data": "data", "state": "state directory"}
