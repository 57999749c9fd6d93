"""Checks everything before a box starts, reports all problems at once, and prepares the box if
there are none.

`prepare_box` returns a `PreparedBox` (locks, sockets, directories, box.json), or raises
ConfigurationProblems with one line per problem and leaves nothing behind. Children check the
directories with a deadline: a disk that hangs or fails is a warning, and its log-writer retries.
Weak: checks that need large libraries (`ExternalCheck`) run in a short-lived child, whose crash is
reported without detail.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from appliance.base.box_registry import register_box, registry_directory
from appliance.base.clock import Clock
from appliance.base.errors import ConfigurationProblems
from appliance.base.layout import BOX_FILE, CONSOLE_STATE, INGEST_STATE, NETWORK_DIRECTORY, TABLES_STATE, BoxLayout, Disk, box_name, name_disks, preferred_roots
from appliance.base.settings import Box
from appliance.base.trusted_files import box_group, directory_problem, open_directory, shared_mode
from appliance.base.zookeeper_access import access_problems, tls_file_problems, zookeeper_access
from appliance.base.zookeeper_member import connect_string
from appliance.runtime.directories import DirectoryChecks, ask_each, make_directory, make_runtime_directory, shape_problems, writable_problem
from appliance.runtime.disk_orders import with_kept_disks
from appliance.runtime.ensemble_checks import member_problems
from appliance.runtime.identity import DEFAULT_BROKER_ID, Identity, choose_zookeeper_port, lock_state, plan_identity, write_identity
from appliance.runtime.listening import ListenSockets, open_listen_sockets
from appliance.runtime.run_options import ReadSenders, ResolvedOptions, RunOptions, SenderTable, no_senders, resolve_options
from appliance.runtime.shared_memory import SharedMemoryNeed, held_bytes, shared_memory_need
from appliance.runtime.unit_process import MILLRACE_RUN, SYSTEMD
from appliance.security.listeners import is_encrypted
from appliance.shm.mapping import sealed_bytes_max, taken_problems

SUPPORTED_MACHINE = "x86_64"
ZONE_DIRECTORY = "/usr/share/zoneinfo"
SOCKET_PATH_BYTES_MAX = 107
ZOOKEEPER_CHECK_FAILED = "the check for the embedded ZooKeeper failed (see above); install again with ./install.sh, or name a server with --zookeeper HOST:PORT"
CERTIFICATE_CHECK_FAILED = "the check of the certificates failed (see above); install again with ./install.sh, or remove the listeners with TLS"
_NEW_BOX_FILE = f"{BOX_FILE}.new"
_WRITES_MAX = 3
_SOCKET_NAME_SPARE_BYTES = 32  # "/log-writer@.sock" and the pid of the temporary name

ExternalCheck = Callable[[], list[str]]
"""Called only if the embedded ZooKeeper is used; returns problems."""


class PreparedBox(NamedTuple):
    """What the supervisor starts with. It owns the lock descriptor and the sockets."""

    box: Box
    layout: BoxLayout
    listening: ListenSockets
    state_lock: int
    given: list[str]
    """The log directories of options and settings, before disk orders."""
    unanswered: dict[str, int]
    """Directories whose disk did not answer, and the pid of the child that still waits."""
    left_out: dict[str, str]
    """Directories that the box starts without, and why; only under systemd."""


def prepare_box(
    options: RunOptions, clock: Clock, zookeeper_check: ExternalCheck, unit_runtime: str = "", read_senders: ReadSenders = no_senders
) -> PreparedBox:
    """Check everything, then take what the box needs. Raises ConfigurationProblems.

    `unit_runtime`: the runtime directory that systemd gives to the units; systemd then holds the
    sockets. In that case a directory that cannot be used (its disk is not mounted, for example) is
    left out as long as there is another one: a box that starts unattended should serve.
    """
    given, problems = resolve_options(options, os.cpu_count() or 1)
    resolved, ordered = with_kept_disks(given)
    problems += machine_problems(resolved)
    deadline_ms = int(resolved.settings["log.disk.deadline.ms"])
    looks = ask_each([(resolved.state, "--state"), *((path, "--data") for path in resolved.data)], False, deadline_ms, clock)
    left_out = _left_out(resolved, looks) if unit_runtime else {}
    problems += _directory_problems(resolved, looks, deadline_ms, left_out)
    identity = Identity(DEFAULT_BROKER_ID)
    if resolved.state in looks.answers:
        owners = {path: look.owner for path, look in looks.answers.items() if path in resolved.data and look.owner is not None}
        identity, identity_problems = plan_identity(resolved.state, owners, resolved.broker_id, resolved.is_alone)
        problems += identity_problems
        problems += access_problems(_access_shape(resolved, identity.broker_id))
    runtime_directory, runtime_problems = (unit_runtime, _unit_problems(resolved, unit_runtime)) if unit_runtime else plan_runtime_directory(resolved)
    problems += runtime_problems
    if resolved.runs_zookeeper:
        problems += _ask_in_a_child(zookeeper_check, ZOOKEEPER_CHECK_FAILED)
    if resolved.own_member is not None and not unit_runtime:  # the unit of ZooKeeper asks; the supervisor's has no network
        problems += member_problems(resolved.own_member)
    senders = read_senders(resolved)
    problems += senders.problems
    if senders.certificate_check is not None:
        problems += _ask_in_a_child(senders.certificate_check, CERTIFICATE_CHECK_FAILED)
    if any(is_encrypted(listener.protocol) for listener in resolved.listeners) or resolved.settings["zookeeper.ssl.truststore.location"]:
        problems += _ask_in_a_child(lambda: _tls_problems(resolved), CERTIFICATE_CHECK_FAILED)
    listening, listen_problems = _no_sockets(resolved, senders) if unit_runtime else _own_sockets(resolved, senders)
    problems += listen_problems
    try:
        if problems:
            raise ConfigurationProblems(problems)
        managed_by = SYSTEMD if unit_runtime else MILLRACE_RUN
        return _take(resolved, ordered, given.data, identity, runtime_directory, listening, senders.tables, clock, looks, left_out, managed_by)
    except BaseException:
        listening.close()
        raise


def _tls_problems(options: ResolvedOptions) -> list[str]:
    from appliance.security.tls_contexts import file_problems  # OpenSSL takes 4 MB

    return [*file_problems(options.listeners, options.settings), *tls_file_problems(options.settings)]


def _own_sockets(options: ResolvedOptions, senders: SenderTable) -> tuple[ListenSockets, list[str]]:
    return open_listen_sockets(
        options.listen, options.kafka_port, options.syslog_port, options.http_port, options.ingest_port, senders.sockets, options.listeners
    )


def _no_sockets(options: ResolvedOptions, senders: SenderTable) -> tuple[ListenSockets, list[str]]:
    """Return no sockets: systemd holds them."""
    ports = options.kafka_port, options.syslog_port, options.http_port, options.ingest_port
    return ListenSockets({}, *ports, senders.sockets, tuple(options.listeners)), []


def _left_out(options: ResolvedOptions, looks: DirectoryChecks) -> dict[str, str]:
    """Return the directories that cannot be used now, unless all of them cannot."""
    reasons = {path: look.problem or look.user for path in options.data if (look := looks.answers.get(path)) is not None and (look.problem or look.user)}
    return {path: reason or "" for path, reason in reasons.items()} if len(reasons) < len(set(options.data)) else {}


def _unit_problems(options: ResolvedOptions, runtime_directory: str) -> list[str]:
    """Return a problem if the units were written for a box with another state directory."""
    if os.path.basename(runtime_directory) == box_name(options.state):
        return []
    return [f"the units were written for another state directory than {options.state}: run `millrace units apply`, then start again"]


def _access_shape(options: ResolvedOptions, broker_id: int) -> Box:
    """Return a box with the fields that its ZooKeeper credentials depend on."""
    members = [member.text for member in options.zookeeper_members]
    embedded = options.runs_zookeeper
    shape = Box("", broker_id, [], options.state, "", "", 0, 0, 0, embedded_zookeeper=embedded, zookeeper_members=members)
    return shape._replace(settings=options.settings)


def machine_problems(options: ResolvedOptions) -> list[str]:
    """Return what this machine lacks."""
    problems = []
    machine = os.uname().machine
    if machine != SUPPORTED_MACHINE:
        problems.append(f"this machine is {machine}; shared memory is used in a way that is proven on {SUPPORTED_MACHINE} only, run it there")
    zone = str(options.settings["ingest.syslog.time.zone"])
    if zone != "UTC" and not os.path.isfile(f"{ZONE_DIRECTORY}/{zone}"):
        problems.append(f"ingest.syslog.time.zone is {zone!r}, which this machine does not know; use a name below {ZONE_DIRECTORY}, or UTC")
    prefix = f"/millrace.{box_name(options.state)}."
    problem = shared_memory_problem(need_of(options), _free_shared_memory() + held_bytes(prefix), sealed_bytes_max())
    return [*problems, *taken_problems(prefix), *([] if problem is None else [problem])]


def need_of(options: ResolvedOptions) -> SharedMemoryNeed:
    """Return what a box with these options needs of /dev/shm."""
    disks = name_disks(list(dict.fromkeys(options.data)))
    embedded = options.runs_zookeeper
    shape = Box("", 0, disks, "", "", "", 0, 0, 0, options.acceptors, options.ingests, embedded_zookeeper=embedded, settings=options.settings)
    return shared_memory_need(shape)


def _free_shared_memory() -> int:
    space = os.statvfs("/dev/shm")
    return space.f_bavail * space.f_frsize


def shared_memory_problem(need: SharedMemoryNeed, free_bytes: int, sealed_max: int) -> str | None:
    """Return why the box does not fit into the free space of /dev/shm, or into the memory that its
    arenas and rings may have, or None."""
    if sealed_max < need.sealed:
        return (
            f"arenas and rings need {_mib(need.sealed)} MiB, more than half of the memory of this machine or container ({sealed_max >> 20} MiB);"
            " set acceptor.arena.bytes and ingest.arena.bytes lower"
        )
    if free_bytes >= need.total:
        return None
    return (
        f"/dev/shm has {free_bytes >> 20} MiB free, this box needs {_mib(need.total)} MiB ({_mib(need.cold_reads)} for cold reads, {_mib(need.restart)} for"
        f" a process that restarts, {_mib(need.others)} for tables and counters); make it larger (mount -o remount,size=2g /dev/shm;"
        " in Docker --shm-size=2g), or set log.reader.arena.bytes lower"
    )


def _mib(size_bytes: int) -> int:
    return -(-size_bytes >> 20)


def _directory_problems(options: ResolvedOptions, looks: DirectoryChecks, deadline_ms: int, left_out: dict[str, str]) -> list[str]:
    problems = shape_problems(options.data, options.state, looks.real_path)
    away = {path for path in options.data if path in left_out or path in looks.unanswered or looks.answers[path].is_troubled}
    if len(away) == len(set(options.data)):
        away.clear()  # without any disk the box serves no partition: report the problems
    for option, path in [("--state", options.state), *(("--data", path) for path in dict.fromkeys(options.data))]:
        look = looks.answers.get(path)
        if look is not None:
            problem = (None if path in away else look.problem) or (None if path in left_out else look.user)
        elif path in away:
            problem = None
        else:
            problem = f"{option} {path}: its disk does not answer within {deadline_ms / 1000:g} s; look at the kernel's log (dmesg), or choose another"
        if problem is not None:
            problems.append(problem)
    return problems


def plan_runtime_directory(options: ResolvedOptions) -> tuple[str, list[str]]:
    """Choose the directory of sockets and box.json: the first that no other user can write to and
    whose socket names are short enough."""
    name = box_name(options.state)
    longest = max(len(disk.name) for disk in name_disks(options.data))
    reasons = []
    for root in preferred_roots(options.state):
        directory = f"{root}/{name}"
        if len(os.fsencode(directory)) + longest + _SOCKET_NAME_SPARE_BYTES > SOCKET_PATH_BYTES_MAX:
            reasons.append(f"{root}: socket names in it would be longer than {SOCKET_PATH_BYTES_MAX} bytes")
            continue
        problem = root_problem(root) or writable_problem(directory, "runtime directory")
        if problem is None:
            return directory, []
        reasons.append(problem)
    advice = "; set XDG_RUNTIME_DIR to a directory of your own with a short name (mkdir -m 700), or leave it unset and give a shorter --state"
    return "", ["there is no usable runtime directory: " + "; ".join(reasons) + advice]


def root_problem(root: str) -> str | None:
    """Return why another user could replace runtime directories in `root`, or `root` itself; None
    if none can."""
    return directory_problem(os.path.dirname(root)) or directory_problem(root)


def _ask_in_a_child(check: ExternalCheck, failed: str) -> list[str]:
    """Run `check` in a child, because its imports must not stay in the supervisor. `failed` is the
    problem if the child dies."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with open(writing, "wb") as file:
                file.write("\0".join(check()).encode())
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as answer:
        text = answer.read().decode()
    _, status = os.waitpid(pid, 0)
    if status:
        return [failed]
    return [problem for problem in text.split("\0") if problem]


def _take(
    options: ResolvedOptions,
    ordered: list[Disk] | None,
    given: list[str],
    identity: Identity,
    runtime_directory: str,
    listening: ListenSockets,
    sender_tables: dict[str, Any],
    clock: Clock,
    looks: DirectoryChecks,
    left_out: dict[str, str],
    managed_by: str,
) -> PreparedBox:
    """Create what the box needs: directories, lock, identity, box.json. Called when no check has
    failed."""
    deadline_ms = int(options.settings["log.disk.deadline.ms"])
    made = ask_each([(path, "--data") for path in options.data if path in looks.answers and path not in left_out], True, deadline_ms, clock)
    problems = [look.problem for look in made.answers.values() if look.problem is not None]
    own = [make_directory(options.state, "--state"), make_runtime_directory(runtime_directory, "runtime directory")]
    if managed_by == MILLRACE_RUN:
        own += [root_problem(os.path.dirname(runtime_directory)), _registry_problem(options.state, runtime_directory)]
    problems += [problem for problem in own if problem is not None]
    if problems:
        raise ConfigurationProblems(problems)
    state_lock = lock_state(options.state)
    if options.is_alone:
        identity = identity._replace(zookeeper_port=choose_zookeeper_port(identity.zookeeper_port))
    write_identity(options.state, identity)
    for part in (INGEST_STATE, CONSOLE_STATE):  # units of ingest and console may write nowhere else in the state directory
        make_network_directory(f"{options.state}/{part}")
        open_to_group(f"{options.state}/{part}")
    if options.settings.get("tables.locations"):
        os.makedirs(f"{options.state}/{TABLES_STATE}", 0o750, exist_ok=True)  # the only part that a unit of the tabler may write to
    layout = BoxLayout(runtime_directory)
    box = Box(
        box=layout.box,
        broker_id=identity.broker_id,
        disks=name_disks(options.data) if ordered is None else ordered,
        state_directory=options.state,
        listen=options.listen,
        advertise=options.advertise,
        kafka_port=listening.kafka_port,
        syslog_port=listening.syslog_port,
        http_port=listening.http_port,
        ingest_port=listening.ingest_port,
        sender_tables=sender_tables,
        sender_sockets=list(listening.senders),
        listeners=list(listening.listeners),
        acceptors=options.acceptors,
        ingests=options.ingests,
        zookeeper=_connect_string(options, identity),
        embedded_zookeeper=options.runs_zookeeper,
        zookeeper_members=[member.text for member in options.zookeeper_members],
        cluster_id=identity.cluster_id,
        pid=os.getpid(),
        started_wall_ms=clock.wall_ms(),
        managed_by=managed_by,
        settings=options.settings,
    )
    zookeeper_access(box)  # creates the secret of a single box before a process needs it
    write_box(layout, box)
    return PreparedBox(box, layout, listening, state_lock, given, {**looks.unanswered, **made.unanswered}, left_out)


def _connect_string(options: ResolvedOptions, identity: Identity) -> str:
    if options.is_alone:
        return f"127.0.0.1:{identity.zookeeper_port}"
    return options.zookeeper or connect_string(options.zookeeper_members, identity.broker_id)


def _registry_problem(state: str, runtime_directory: str) -> str | None:
    """Register the runtime directory if it is in the state directory; returns why that failed, or
    None."""
    root, box = os.path.split(runtime_directory)
    if root != f"{state}/run":
        return None
    try:
        register_box(box, root)
    except OSError as error:
        return f"cannot note in {registry_directory()} where this box is: {error.strerror}; set XDG_STATE_HOME (or XDG_RUNTIME_DIR) to a directory of your own"
    return None


def write_box(layout: BoxLayout, box: Box) -> None:
    """Write box.json for the processes of the box alone: it contains the tokens of senders.

    The runtime directory is made again if it is gone: another box that starts removes what this one
    left, if it found the state directory missing a moment ago.
    """
    for _ in range(_WRITES_MAX):
        try:
            return _write_box_once(layout, box)
        except FileNotFoundError:
            problem = make_runtime_directory(layout.runtime_directory, "runtime directory")
            if problem is not None:
                raise ConfigurationProblems([problem]) from None
    return _write_box_once(layout, box)


def make_network_directory(path: str, dir_fd: int | None = None) -> None:
    """Create a directory that the processes facing the network write to. One that belongs to their
    user stays as it is."""
    with suppress(FileExistsError):
        os.mkdir(path, 0o700, dir_fd=dir_fd)
    if os.stat(path, dir_fd=dir_fd).st_uid == os.geteuid():
        os.chmod(path, 0o700 if box_group() is None else 0o770, dir_fd=dir_fd)


def open_to_group(directory: str) -> None:
    """Let the group change what a release with one user left in the directory. Links are not
    followed, nor files changed that have a second name: another user may write here."""
    if box_group() is None:
        return
    for _, names, files, dir_fd in os.fwalk(directory):
        for name in (*names, *files):
            with suppress(OSError):
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
                try:
                    status = os.fstat(descriptor)
                    if status.st_uid == os.geteuid() and (stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1)):
                        os.fchmod(descriptor, 0o770 if stat.S_ISDIR(status.st_mode) else 0o660)
                finally:
                    os.close(descriptor)


def _write_box_once(layout: BoxLayout, box: Box) -> None:
    directory = open_directory(layout.runtime_directory)
    try:
        os.fchmod(directory, 0o700 if box_group() is None else 0o750)
        make_network_directory(NETWORK_DIRECTORY, directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(_NEW_BOX_FILE, flags, 0o600, dir_fd=directory)
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, shared_mode())  # an existing file keeps its mode otherwise
            file.write(box.to_json())
        os.rename(_NEW_BOX_FILE, BOX_FILE, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(directory)
