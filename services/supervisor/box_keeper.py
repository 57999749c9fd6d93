"""The supervisor of a box whose processes are systemd units: prepares the box, reports its state
and applies disk orders.

It starts no process. It may end and restart while the units run: if a new incarnation finds running
processes and a box.json, it adopts both unchanged. Changed settings take effect after the whole box
has stopped. When it has stopped, the supervisor removes what is left, like `millrace run`. It must
stay small, because it runs as long as the box.

Weak: it sees processes only through their counters, once a second. Failed units are known to
systemd; the commands ask it.

Counts the processes that systemd's watchdog killed, for the alarm: systemd reports them only in
the journal.

A kill is inferred from heartbeats: the incarnation ended after its heartbeat was nearly as old as
the watchdog allows. Owned by the supervisor under systemd, which checks once a second. Weak: a
hanging process that an operator kills before systemd does is counted, too.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import Any, NamedTuple

from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import ConfigurationProblems, RequestRefused
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger, logger_from_environment
from appliance.base.settings import Box, load_box
from appliance.runtime.directories import running_supervisor
from appliance.runtime.disk_orders import with_kept_disks
from appliance.runtime.ensemble_checks import access_warning, peer_warnings
from appliance.runtime.identity import lock_state
from appliance.runtime.leftovers import clear_box, clear_dead_life, clear_vanished_boxes, living_pid, living_processes
from appliance.runtime.listening import ListenSockets
from appliance.runtime.poller import READABLE, Poller
from appliance.runtime.preflight import ExternalCheck, PreparedBox, prepare_box, write_box
from appliance.runtime.process_cost import CostReport
from appliance.runtime.request_server import StatusServer
from appliance.runtime.run_options import ReadSenders, RunOptions, resolve_options
from appliance.runtime.service_main import EXIT_OTHER_RELEASE, EXIT_USAGE, install_excepthooks, name_process
from appliance.runtime.settings_watch import LOG_SEVERITY
from appliance.runtime.systemd import notify
from appliance.runtime.unit_files import SETTINGS_MARK_VARIABLE, planned_box, settings_mark
from appliance.runtime.unit_process import SYSTEMD
from appliance.shm.counters import CounterReader, Counters, CounterSnapshot
from appliance.shm.mapping import LayoutMismatch
from services.supervisor.disk_changes import DiskChanges, LogWriterSample
from services.supervisor.ready_message import ready_line
from services.supervisor.settings_reload import RELOAD, SettingsReload
from services.supervisor.supervisor import NAME, SERVING_STATES

DEADLY_SHARE = 0.75
"""Part of the watchdog timeout. systemd counts from the last message, up to a quarter of the
timeout before the last heartbeat."""
SEEN_SHARE = 0.2
"""Part of the watchdog timeout during which the old heartbeat must have been observed. A supervisor
that was itself suspended has observed nothing."""


def is_root(user: int) -> bool:
    return user == 0


class _Incarnation(NamedTuple):
    pid: int
    beat_ns: int
    silent_ns: int


class WatchdogKills:
    """Detects watchdog kills; call `look` once a second for each process."""

    def __init__(self, watchdog_ms: int) -> None:
        self._watchdog_ns = watchdog_ms * 1_000_000
        self._incarnations: dict[str, _Incarnation] = {}

    def look(self, process: str, pid: int, beat_ns: int, now_ns: int) -> float:
        """Return for how many seconds the heartbeat had stopped if the last incarnation was killed
        for it, otherwise 0.

        `pid` is 0 if the process does not run; `beat_ns` is its last heartbeat, 0 before the first.
        """
        before = self._incarnations.pop(process, None)
        if pid and beat_ns:
            self._incarnations[process] = _Incarnation(pid, beat_ns, now_ns - beat_ns)
        if before is None or before.pid == pid or before.silent_ns < SEEN_SHARE * self._watchdog_ns:
            return 0
        silent_ns = now_ns - before.beat_ns
        return silent_ns / 1e9 if silent_ns >= DEADLY_SHARE * self._watchdog_ns else 0


TURN_MS = 1_000
TURN_MS_WHILE_STARTING = 250
RETRY_MS = 10_000
WAITING_SHOWN = 4


class BoxKeeper:
    """One incarnation of the supervisor under systemd."""

    def __init__(self, prepared: PreparedBox, clock: Clock, log: Logger, reload: SettingsReload | None = None) -> None:
        self._reload = reload
        log.use_severity(prepared.box.text(LOG_SEVERITY))
        self.box = prepared.box
        self.layout = prepared.layout
        self.log = log
        self._state_lock = prepared.state_lock
        self._clock = clock
        self._poller = Poller()
        self._counters = Counters.create_or_adopt(self.layout, NAME, clock.monotonic_ns(), clock.wall_ms())
        self._cost = CostReport(self._counters)
        self._started_wall_ms = clock.wall_ms()
        self._status = StatusServer(self.layout.supervisor_socket, self._poller, self.describe, self.on_disk_order, is_root)
        self._readers: dict[str, CounterReader] = {}
        self._watchdog_kills = WatchdogKills(self.box.integer("watchdog.timeout.ms"))
        self._disk_changes = DiskChanges(self.layout, clock, prepared.given, self._look_at_log_writer)
        self._signal_pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poller.register(self._signal_pipe[0], READABLE, self._on_signal_byte)
        self._is_stopping = False
        self._all_served = False
        self._reported = ""

    def run(self) -> int:
        """Run until SIGTERM; returns the exit code."""
        signal.set_wakeup_fd(self._signal_pipe[1], warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_stop_signal)
        watchdog_us = self.box.integer("watchdog.timeout.ms") * 1000
        notify(f"READY=1\nWATCHDOG=1\nWATCHDOG_USEC={watchdog_us}\nSTATUS=the box is prepared")
        self._counters.set_state("serving")
        try:
            while not self._is_stopping:
                self.turn()
                self._poller.poll(TURN_MS if self._all_served else TURN_MS_WHILE_STARTING)
        finally:
            self.close()
        return 0

    def turn(self) -> None:
        """Send the heartbeat, read the state of each process and report changes."""
        if self._counters.is_deleted:
            self._create_counters_again()
        self._counters.beat(self._clock.monotonic_ns())
        self._cost.turn(self._clock.monotonic_ns())
        waiting = []
        names = self.box.process_names()
        for name in names:
            snapshot, pid = self._read(name), living_pid(self.layout, name)
            if snapshot is None or snapshot.state not in SERVING_STATES or not pid:
                waiting.append(f"{name} {self._state_of(name, snapshot)}")
            self._count_watchdog_kill(name, pid, 0 if snapshot is None else snapshot.heartbeat_ns)
            if snapshot is not None:
                self._counters.counter(f'supervisor.restarts{{process="{name}"}}').set(_restarts(snapshot))
        for gone in self._readers.keys() - set(names):
            self._readers.pop(gone).close()
        self._report(len(names), waiting)

    def _create_counters_again(self) -> None:
        name = self._counters.shared.name
        self.log.error(f"another program deleted {name} in /dev/shm, it was made again; keep other programs away from it", reason="shared-memory")
        self._counters.close()
        self._counters = Counters.create_or_adopt(self.layout, NAME, self._clock.monotonic_ns(), self._started_wall_ms)
        self._cost = CostReport(self._counters)
        self._counters.set_state("serving")

    def _report(self, count: int, waiting: list[str]) -> None:
        summary = f"{count - len(waiting)} of {count} processes serve"
        if waiting:
            summary += ": " + ", ".join(waiting[:WAITING_SHOWN]) + (f" and {len(waiting) - WAITING_SHOWN} more" if len(waiting) > WAITING_SHOWN else "")
        notify("WATCHDOG=1" + (f"\nSTATUS={summary}" if summary != self._reported else ""))
        self._reported = summary
        if not waiting and not self._all_served:
            self.log.info(f"all {count} processes serve")
            self.log.info(ready_line(self.box))
        elif waiting and self._all_served:
            self.log.warning(summary)
        self._all_served = not waiting

    def _count_watchdog_kill(self, name: str, pid: int, beat_ns: int) -> None:
        # exported as 0 before the first kill
        kills = self._counters.counter(f'supervisor.watchdog_kills{{process="{name}"}}')
        silent_s = self._watchdog_kills.look(name, pid, beat_ns, self._clock.monotonic_ns())
        if silent_s:
            kills.add()
            self.log.warning(f"{name} had sent no heartbeat for {silent_s:.0f} s and was killed by systemd; its stack is in its own log", peer=name)

    def _read(self, name: str) -> CounterSnapshot | None:
        return self._readers.setdefault(name, CounterReader(self.layout, name)).read()

    def _state_of(self, name: str, snapshot: CounterSnapshot | None) -> str:
        if snapshot is None:
            return "not started"
        return (snapshot.state or "starting") if living_pid(self.layout, name) else "down"

    # --- status and disk orders ---

    def describe(self) -> dict[str, Any]:
        """Return the answer to a status request on supervisor.sock."""
        own = {"name": NAME, "pid": os.getpid(), "state": "stopping" if self._is_stopping else "serving", "since": self._started_wall_ms, "restarts": None}
        return {"processes": [own, *(self._describe_process(name) for name in self.box.process_names())]}

    def _describe_process(self, name: str) -> dict[str, Any]:
        snapshot = self._read(name)
        described = {"name": name, "pid": living_pid(self.layout, name) or None, "state": self._state_of(name, snapshot)}
        if snapshot is None:
            return described | {"since": None, "restarts": 0}
        return described | {"since": snapshot.started_wall_ms, "restarts": _restarts(snapshot)}

    def on_disk_order(self, order: dict[str, str]) -> dict[str, str]:
        """Apply a disk order or a reload. The command starts and stops the units afterwards, which
        requires root."""
        if order.get("verb") == RELOAD and self._reload is not None:
            self.box, answer = self._reload.answer(self.box, order, self.log)
            return answer
        try:
            self.box, disk = self._disk_changes.carry_out(self.box, order, lambda _disk, _is_lost: None)
        except RequestRefused as refusal:
            return {"error": refusal.message}
        except OSError as error:
            return {"error": f"could not write {error.filename or self.box.state_directory}: {error.strerror}"}
        self.log.info(f"disk {disk.name} ({disk.path}): {order['verb']}, as ordered", disk=disk.name)
        return {"disk": disk.name, "path": disk.path}

    def _look_at_log_writer(self, disk: str) -> LogWriterSample:
        name = f"log-writer@{disk}"
        snapshot, pid = self._read(name), living_pid(self.layout, name)
        return LogWriterSample(pid, 0 if snapshot is None else snapshot.heartbeat_ns // 1_000_000, is_stopped=not pid)

    # --- stop ---

    def _on_stop_signal(self, _number: int, _frame: object) -> None:
        self._is_stopping = True

    def _on_signal_byte(self, _events: int) -> None:
        try:
            os.read(self._signal_pipe[0], 4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Remove the runtime files if the whole box has stopped; keep them while other processes
        run."""
        notify("STOPPING=1\nSTATUS=")
        signal.set_wakeup_fd(-1)
        is_end = os.path.exists(self.layout.stopping_file) or not [pid for pid in living_processes(self.layout) if pid != os.getpid()]
        self._status.close()
        for reader in self._readers.values():
            reader.close()
        self._counters.close()
        self._poller.close()
        if is_end:
            clear_box(self.layout)
            self.log.info("the box has stopped")
        os.close(self._state_lock)


def _restarts(snapshot: CounterSnapshot) -> int:
    return max(0, snapshot.values.get("runtime.starts", 1) - 1)


def adopt_box(options: RunOptions, layout: BoxLayout) -> PreparedBox | None:
    """Return the box as the previous incarnation left it; None if no process of it runs.

    Raises LayoutMismatch if the processes are of another release, and ConfigurationProblems if
    another supervisor has the state directory.
    """
    if not os.path.exists(layout.box_file) or not living_processes(layout):
        return None
    try:
        box = load_box(layout)
    except (OSError, ValueError, TypeError) as error:
        raise LayoutMismatch(f"processes of another release are running ({error})") from error
    lock = lock_state(box.state_directory)
    box = box._replace(pid=os.getpid())
    write_box(layout, box)
    given = resolve_options(options, os.cpu_count() or 1)[0].data
    sockets = ListenSockets({}, box.kafka_port, box.syslog_port, box.http_port, box.ingest_port, tuple(box.sender_sockets), tuple(box.listeners))
    return PreparedBox(box, layout, sockets, lock, given, {}, {})


def settings_changed(options: RunOptions, box: Box, read_senders: ReadSenders) -> str | None:
    """Return why the running box differs from the settings file, and what to do; None if it does
    not."""
    resolved, problems = resolve_options(options, os.cpu_count() or 1)
    if problems:
        return f"{options.config} has errors since the box was started; run `millrace config check {options.config}`"
    resolved, ordered = with_kept_disks(resolved)
    senders = read_senders(resolved)
    if senders.problems:
        return f"the tables of senders of {options.config} have mistakes since the box was started: millrace config check {options.config}"
    wanted = planned_box(resolved, box.box, ordered if ordered is not None else box.disks, senders)
    if settings_mark(wanted) != os.environ.get(SETTINGS_MARK_VARIABLE, settings_mark(wanted)):
        return "the units were written for other settings; run `millrace units apply`, then `systemctl restart millrace.target`"
    return None


def wait_after_failure(failed_file: str, settings_file: str, clock: Clock) -> None:
    """Wait up to ten seconds after a failed start, because systemd restarts us at once. A changed
    settings file ends the wait."""
    try:
        failed_ns = os.stat(failed_file).st_mtime_ns
    except OSError:
        return
    until_ms = failed_ns // 1_000_000 + RETRY_MS
    with open(failed_file) as file:
        notify(f"STATUS={file.read().strip()}")
    while clock.wall_ms() < until_ms and clock.wall_ms() + RETRY_MS > failed_ns // 1_000_000:
        if _changed_ns(settings_file) > failed_ns:
            return
        select.select([], [], [], 0.1)


def _changed_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def note_failure(failed_file: str, summary: str) -> None:
    try:
        with open(failed_file, "w") as file:
            file.write(summary)
    except OSError:
        pass  # without the file, systemd retries more often


def forget_file(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def main(zookeeper_check: ExternalCheck, read_senders: ReadSenders) -> int:
    """Run the supervisor under systemd; `argv[1]` is the settings file.

    Exit codes: 0 stopped on request, 2 the box cannot be prepared (the reasons are logged), 78
    another release.
    """
    name_process("millrace")
    log = logger_from_environment(NAME)
    install_excepthooks(log)
    clock = SystemClock()
    options = RunOptions(config=sys.argv[1])
    layout = BoxLayout.from_environment()
    failed_file = f"{layout.runtime_directory}.failed"
    wait_after_failure(failed_file, sys.argv[1], clock)
    state = resolve_options(options, 1)[0].state
    try:
        adopted = adopt_box(options, layout)
        if adopted is None:
            clear_dead_life(state)
            clear_vanished_boxes()
        prepared = adopted or prepare_box(options, clock, zookeeper_check, layout.runtime_directory, read_senders)
    except LayoutMismatch as error:
        log.critical(f"{error}; run `systemctl restart millrace.target`")
        return EXIT_OTHER_RELEASE
    except ConfigurationProblems as error:
        for problem in error.problems:
            log.critical(f"cannot start: {problem}")
        summary = f"cannot start: {error.problems[0]}" + (f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else "")
        notify(f"STATUS={summary}")
        if not living_processes(layout) and running_supervisor(state) is None:
            clear_box(layout)  # so that no unit starts with the files of a previous box
        note_failure(failed_file, summary)
        return EXIT_USAGE
    forget_file(failed_file)
    for path, pid in prepared.unanswered.items():
        log.warning(f"{path} does not answer; the box starts without it and serves it when it answers (its check, pid {pid}, still runs)")
    for path, reason in prepared.left_out.items():
        log.error(f"{path} is left out: {reason}")
    forget_file(layout.stopping_file)
    forget_file(layout.left_file)
    old_table = resolve_options(options, 1)[0].old_table
    if old_table and prepared.box.sender_tables:
        log.warning(f"{old_table} is a table of release 0.1; `sudo millrace config convert {options.config}` moves it into the settings file")
    changed = settings_changed(options, prepared.box, read_senders)
    if changed is not None:
        log.warning(changed)
    for warning in peer_warnings(prepared.box.ensemble, prepared.box.broker_id, prepared.box.listen, prepared.box.advertise):
        log.warning(warning)
    if (access := access_warning(prepared.box)) is not None:
        log.warning(access)
    if adopted is None:
        log.info(f"box {prepared.box.box} is prepared for {len(prepared.box.process_names())} processes; {SYSTEMD} starts them")
    else:
        log.info(f"box {prepared.box.box} adopted; its processes keep running")
    reload = SettingsReload(options, layout, prepared.given, read_senders)
    return BoxKeeper(prepared, clock, log, reload).run()
