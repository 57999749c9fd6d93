"""The parent process of a box under `millrace run`: starts, watches, restarts and stops all others.

It holds the listening sockets and the lock of the state directory. No record passes through it. It
has one thread and one poller, and knows its children by pid. It must stay small (no rich, typer or
subprocess), because it runs as long as the box.

Weak: if it is killed, the kernel kills its children with it (parent-death signal), and the next
start removes what they leave.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import ConfigurationProblems, RequestRefused
from appliance.base.logging import DROPPED_COUNTER, logger_from_environment
from appliance.runtime.children import CONTROLLER, Child, ChildState, DetachedProcesses, ShutdownProgress, plan_stop
from appliance.runtime.disk_orders import REMOVE, disk_processes
from appliance.runtime.ensemble_checks import access_warning, peer_warnings
from appliance.runtime.leftovers import await_previous_life, clear_box, clear_dead_life, clear_vanished_boxes
from appliance.runtime.poller import READABLE, Poller
from appliance.runtime.preflight import ExternalCheck, PreparedBox, prepare_box
from appliance.runtime.process_cost import CostReport
from appliance.runtime.request_server import StatusServer
from appliance.runtime.run_options import ReadSenders, RunOptions, resolve_options
from appliance.runtime.service_main import EXIT_OTHER_RELEASE, EXIT_USAGE, name_process
from appliance.runtime.settings_watch import LOG_SEVERITY
from appliance.runtime.systemd import REFUSED, notify
from appliance.runtime.zookeeper_watch import NAME as ZOOKEEPER
from appliance.runtime.zookeeper_watch import ZooKeeperWatch
from appliance.shm.counters import DEAD, Counters, read_counters
from appliance.shm.mapping import lost_objects
from services.supervisor import first_start
from services.supervisor.child_start import NotifySocket, start_child, start_program
from services.supervisor.disk_changes import DiskChanges, LogWriterSample
from services.supervisor.first_start import AGENTS, FirstStart
from services.supervisor.ready_message import ready_message
from services.supervisor.settings_reload import RELOAD, SettingsReload

NAME = "supervisor"
TURN_MS_MAX = 1_000
GROUP_STOP_MS = 12_000
"""A process group that has not stopped by then is killed. The runner of each process gives up after
10 s."""
KILLED_MS = 3_000
"""A killed process that has not ended by then is blocked in the kernel by its disk. The stop
continues without it."""
NOTICE_MS = 10_000
LOOK_MS = 200
"""While a child starts, its counters are read this often: the kernel drops a READY that finds ten
messages (net.unix.max_dgram_qlen) in the queue of the notify socket."""
SERVING_STATES = frozenset({"serving", "offline"})
"""States in which the box counts a process as ready. An offline log-writer has done all that it
can."""
CANNOT_START = "millrace cannot start:\n"
STOP_SIGNALS = {ZOOKEEPER: signal.SIGKILL}
"""Stop signals other than SIGTERM. SIGKILL loses nothing in ZooKeeper, and avoids the 0.3 s that
Java waits for its listener threads."""
START_FACTOR = 10
"""While a process starts (it may recover logs), its heartbeat may be this many watchdog periods
old."""


class Supervisor:
    """The supervisor of one incarnation of a box."""

    def __init__(self, prepared: PreparedBox, clock: Clock, sync_zookeeper: Callable[[str], None], reload: SettingsReload | None = None) -> None:
        self._reload = reload
        self.box = prepared.box
        self.layout = prepared.layout
        self._prepared = prepared
        self._clock = clock
        self.log = logger_from_environment(NAME)
        self.log.keep_messages(self.layout)
        self.log.use_severity(self.box.text(LOG_SEVERITY))
        self._poller = Poller()
        self._counters = Counters.create_or_adopt(self.layout, NAME, clock.monotonic_ns(), clock.wall_ms())
        self.log.dropped_counter = self._counters.counter(DROPPED_COUNTER)
        self._cost = CostReport(self._counters)
        self._notify = NotifySocket(f"{self.layout.runtime_directory}/notify.sock")
        self._poller.register(self._notify.fileno(), READABLE, self._on_notification)
        self._status = StatusServer(self.layout.supervisor_socket, self._poller, self.describe, self._on_disk_order)
        self.children = {name: Child(name) for name in self.box.process_names()}
        self._zookeeper = ZooKeeperWatch(self.layout, self.box, self._poller, clock, sync_zookeeper) if self.box.embedded_zookeeper else None
        self._disk_changes = DiskChanges(self.layout, clock, prepared.given, self._look_at_log_writer)
        self._watchdog_ms = self.box.integer("watchdog.timeout.ms")
        self._signal_pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poller.register(self._signal_pipe[0], READABLE, self._on_signal_byte)
        self._stop_signals = 0
        for name in self.children:
            # exported as 0 before the first kill, so that Prometheus sees an increase
            self._counters.counter(f'supervisor.watchdog_kills{{process="{name}"}}')
        self._killed: set[int] = set()
        """Pids that the watchdog or the stop has killed and that have not ended yet."""
        self._lost: set[str] = set()
        """Names of deleted shared-memory objects that were logged."""
        self._uncounted: dict[int, int] = {}
        """Since when (ms) the counters of a pid are missing. Another program deleted them: the
        heartbeat is unknown, not old."""
        self._detached = DetachedProcesses()
        self._first_start: FirstStart | None = None
        for path, pid in prepared.unanswered.items():
            disk = next((disk.name for disk in self.box.disks if disk.path == path), "")
            self.log.warning(f"disk {disk} ({path}) does not answer; the box starts without it and serves it when it answers", disk=disk)
            self._detached.add(f"preflight of {path}", pid, clock.wall_ms(), clock.monotonic_ms())
        self._started_ms = clock.monotonic_ms()
        self._ready_said = False
        self._next_notice_ms = self._started_ms + NOTICE_MS
        self._next_watchdog_ms = self._started_ms
        self._next_ask_ms = self._started_ms
        self._next_look_ms = self._started_ms + LOOK_MS
        self.exit_code = 0

    # --- the duty cycle ---

    def run(self) -> int:
        """Run until a stop signal; returns the exit code."""
        self._install_signals()
        self.log.info(f"box {self.box.box} is starting {len(self.children)} processes")
        for warning in peer_warnings(self.box.ensemble, self.box.broker_id, self.box.listen, self.box.advertise):
            self.log.warning(warning)
        if (access := access_warning(self.box)) is not None:
            self.log.warning(access)
        try:
            self._begin_first_start()
            while not self._stop_signals and not self.exit_code:
                self._turn()
            self._stop()
        finally:
            self.close()
        return self.exit_code

    def _turn(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._counters.beat(self._clock.monotonic_ns())
        self.log.sweep(self._clock.monotonic_ns())
        for child in self.children.values():
            if child.is_due(now_ms):
                self._start(child, now_ms)
        self._ask_zookeeper(now_ms)
        if now_ms >= self._next_watchdog_ms:
            self._next_watchdog_ms = now_ms + max(250, self._watchdog_ms // 4)
            # a copy: a disk order may change the children meanwhile
            for child in list(self.children.values()):
                self._watch(child, now_ms)
            self._watch_own_objects()
            if self.log.message_file is not None:
                self.log.message_file.rotate()
        self._cost.turn(self._clock.monotonic_ns())
        if now_ms >= self._next_look_ms and self._is_any_starting():
            self._next_look_ms = now_ms + LOOK_MS
            self._look_for_ready()
        self._maybe_say_ready(now_ms)
        self._poller.poll(self._wait_ms(self._clock.monotonic_ms()))
        self._reap()

    def _wait_ms(self, now_ms: int) -> int:
        due = [self._next_watchdog_ms, now_ms + TURN_MS_MAX]
        due += [child.start_at_ms for child in self.children.values() if child.state is ChildState.WAITING]
        if self._zookeeper is not None:
            due.append(self._next_ask_ms)
        if self._is_any_starting():
            due.append(self._next_look_ms)
        return max(0, min(due) - now_ms)

    # --- children ---

    def _begin_first_start(self) -> None:
        """Have the fork server start what it can; the rest is started by exec in the first turn."""
        now_ms = self._clock.monotonic_ms()
        children = [child for child in self.children.values() if child.kind in AGENTS and child.is_due(now_ms)]
        if not children:
            return
        program = [first_start.__name__, *(child.name for child in children)]
        sockets = self._prepared.listening.sockets

        def begin(further: Mapping[str, socket.socket]) -> int:
            return start_program(program, self.layout.runtime_directory, self._notify.path, {**sockets, **further})

        try:
            self._first_start = FirstStart(children, begin, self._poller, self._on_forked)
        except OSError as error:
            self.log.warning(f"could not start the fork server: {error.strerror}; starting the processes one by one")

    def _watch_first_start(self) -> None:
        if self._first_start is None:
            return
        now_ms = self._clock.monotonic_ms()
        missing = [child for child in self._first_start.turn(now_ms - self._started_ms) if self.children.get(child.name) is child]
        if missing and not self._stop_signals:
            self.log.warning(f"the fork server has not started {', '.join(child.name for child in missing)}; starting by exec")
            for child in missing:
                self._start(child, now_ms)

    def _end_first_start(self) -> None:
        """Kill what the fork server has not delivered, and wait for its end."""
        if self._first_start is None:
            return
        self._first_start.close()
        deadline_ms = self._clock.monotonic_ms() + KILLED_MS
        while self._first_start.is_running and self._clock.monotonic_ms() < deadline_ms:
            self._poller.poll(10)
            self._reap()

    def _on_forked(self, child: Child, pid: int) -> None:
        """Watch a process that the fork server has started, since the fork server was started."""
        child.on_started(pid, self._started_ms, self.box.started_wall_ms)
        if self.children.get(child.name) is not child:  # its disk was removed meanwhile
            self._detach(child)

    def _start(self, child: Child, now_ms: int) -> None:
        try:
            pid = start_child(child, self.layout.runtime_directory, self._notify.path, self._prepared.listening.sockets)
        except OSError as error:
            self.log.error(f"could not start {child.name}: {error.strerror}; retrying", peer=child.name)
            child.since_ms = now_ms
            child.on_exit(1, now_ms)
            return
        child.on_started(pid, now_ms, self._clock.wall_ms())
        if self._zookeeper is not None and child.name == ZOOKEEPER:
            self._zookeeper.on_started(pid, now_ms)
            self._next_ask_ms = now_ms

    def _reap(self) -> None:
        """Handle the end of each child that has ended."""
        for child in list(self.children.values()):
            if not child.pid:
                continue
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                kill_group(child.pid)  # kill its process group before its pid can be reused
                self._on_exit(child, os.waitpid(child.pid, 0)[1])
        self._watch_first_start()
        for ended in self._detached.turn(self._clock.monotonic_ms()):
            self.log.info(f"detached process {ended.name} (pid {ended.pid}) has ended", peer=ended.name)

    def _on_exit(self, child: Child, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        now_ms = self._clock.monotonic_ms()
        self._killed.discard(child.pid)
        self._uncounted.pop(child.pid, None)
        is_ordered = child.is_restart_ordered
        self._mark_dead(child)
        if self._stop_signals or self.exit_code:
            child.pid = 0
            child.state = ChildState.STOPPED
            if code not in (0, -STOP_SIGNALS.get(child.name, 0)):
                self.log.warning(f"{child.name} ended {how} while the box stops", peer=child.name)
            return
        lived_ms = now_ms - child.since_ms
        child.on_exit(code, now_ms)
        if child.state is ChildState.FAILED:
            self.log.critical(
                f"{child.name} is of another release than what is running here; it is not started again. Stop the box and install again", peer=child.name
            )
            self.exit_code = 0 if self._ready_said else EXIT_OTHER_RELEASE
            return
        self._counters.counter(f'supervisor.restarts{{process="{child.name}"}}').add()
        if is_ordered and code in (0, -signal.SIGTERM):
            self.log.info(f"{child.name} ended {how} as ordered by `millrace config reload`; starting it again", peer=child.name)
            return
        delay_ms = max(0, child.start_at_ms - now_ms)
        when = f"in {delay_ms / 1000:.1f} s" if delay_ms else "now"
        self.log.warning(f"{child.name} ended {how} after {lived_ms / 1000:.1f} s; restarting {when}", peer=child.name)

    def _mark_dead(self, child: Child) -> None:
        if self._zookeeper is not None and child.name == ZOOKEEPER:
            self._zookeeper.serves = False
            self._zookeeper.set_state(DEAD)

    def _on_notification(self, _events: int) -> None:
        for pid, name, value in self._notify.receive():
            child = next((child for child in self.children.values() if child.pid and child.pid == pid), None)
            if child is None:
                continue
            if name == "READY" and value == "1":
                self._on_ready(child)
            elif name == "STATUS":
                child.status_text = value
            elif name == REFUSED:
                self._on_refused(value)

    def _on_refused(self, reason: str) -> None:
        """Stop the start if the cluster still refuses this box. A box that has served keeps
        waiting: it may have data that is needed."""
        if self._ready_said or self._stop_signals or self.exit_code:
            return
        sys.stderr.write(CANNOT_START + problem_lines([reason]))
        self.exit_code = EXIT_USAGE

    def _on_ready(self, child: Child) -> None:
        if child.state is not ChildState.STARTING:
            return
        now_ms = self._clock.monotonic_ms()
        child.on_ready(now_ms)
        serving = sum(other.state is ChildState.SERVING for other in self.children.values())
        took_ms = now_ms - child.since_ms
        self.log.info(f"{child.name} serves after {took_ms / 1000:.1f} s ({serving} of {len(self.children)})", peer=child.name)

    def _is_any_starting(self) -> bool:
        return any(child.pid and child.state is ChildState.STARTING and child.name != ZOOKEEPER for child in self.children.values())

    def _look_for_ready(self) -> None:
        """Find children that serve, but whose READY was dropped."""
        for child in self.children.values():
            if child.pid and child.state is ChildState.STARTING and child.name != ZOOKEEPER and self._serves(child):
                self._on_ready(child)

    def _serves(self, child: Child) -> bool:
        """Return whether the counters say so twice: a state that was read before the heartbeat may
        be of the previous incarnation."""
        for _ in range(2):
            snapshot = read_counters(self.layout, child.name)
            if snapshot is None or snapshot.pid != child.pid or snapshot.state not in SERVING_STATES:
                return False
            if snapshot.heartbeat_ns // 1_000_000 < child.since_ms:
                return False
        return True

    def _ask_zookeeper(self, now_ms: int) -> None:
        """Poll ZooKeeper, which sends no sd_notify messages, and restart it if it failed."""
        watch = self._zookeeper
        if watch is None:
            return
        child = self.children[ZOOKEEPER]
        if child.state is ChildState.STARTING and watch.is_ready:
            watch.set_state("serving")
            self._on_ready(child)
        if child.pid and child.pid not in self._killed and watch.sync_problem:
            self.log.error(
                f"restarting {ZOOKEEPER} (pid {child.pid}): could not sync its files in {self.box.state_directory}: {watch.sync_problem};"
                " check the disk of the state directory",
                peer=ZOOKEEPER,
            )
            self._killed.add(child.pid)
            kill_group(child.pid)
        if child.pid and child.status_text != watch.words:
            child.status_text = watch.words
            if watch.words:
                say = self.log.info if child.state is ChildState.STARTING else self.log.warning
                say(f"{ZOOKEEPER} {watch.words}", peer=ZOOKEEPER)
        if child.pid and child.pid not in self._killed and watch.is_left_behind(now_ms):
            self.log.warning(f"{ZOOKEEPER} (pid {child.pid}) cannot rejoin a quorum that is otherwise healthy; restarting it", peer=ZOOKEEPER)
            watch.on_left_behind()
            self._killed.add(child.pid)
            kill_group(child.pid)
        if child.pid and now_ms >= self._next_ask_ms:
            watch.ask(now_ms)
            self._next_ask_ms = watch.next_ask_ms(now_ms, self._watchdog_ms // 2)
        elif not child.pid:
            self._next_ask_ms = now_ms + TURN_MS_MAX

    def _watch(self, child: Child, now_ms: int) -> None:
        """Kill a child whose heartbeat is too old; `_reap` handles its end."""
        if not child.pid:
            return
        silent_ms = now_ms - max(child.since_ms, self._heard_ms(child))
        is_heard = child.state is ChildState.SERVING and child.pid not in self._uncounted
        if silent_ms <= self._watchdog_ms * (1 if is_heard else START_FACTOR) or child.pid in self._killed:
            return
        self.log.warning(f"{child.name} (pid {child.pid}) has sent no heartbeat for {silent_ms / 1000:.0f} s; killing it. Its stack:", peer=child.name)
        self._counters.counter(f'supervisor.watchdog_kills{{process="{child.name}"}}').add()
        if child.name != ZOOKEEPER:
            send_signal(child.pid, signal.SIGUSR1)  # prints its stack, if its interpreter still runs
            self._poller.poll(20)
        self._killed.add(child.pid)  # killed once: a process that its disk blocks dies when the disk answers
        kill_group(child.pid)

    def _heard_ms(self, child: Child) -> int:
        if self._zookeeper is not None and child.name == ZOOKEEPER:
            return self._zookeeper.heard_ms
        snapshot = read_counters(self.layout, child.name)
        if snapshot is None:
            return self._uncounted.setdefault(child.pid, self._clock.monotonic_ms())
        self._uncounted.pop(child.pid, None)
        return snapshot.heartbeat_ns // 1_000_000 if snapshot.pid == child.pid else 0

    def _watch_own_objects(self) -> None:
        """Create the supervisor's counters and ZooKeeper's again if another program deleted them,
        because neither process restarts."""
        lost = [name for name in lost_objects(self.layout.shared_memory_prefix) if name not in self._lost]
        if not lost:
            return
        self._lost.update(lost)
        self.log.error(
            f"another program deleted {', '.join(lost)} in /dev/shm; keep other programs away from it. Processes that lost objects restart one by one",
            reason="shared-memory",
        )
        if self.layout.shared_memory_name("counters", NAME) in lost:
            self._counters = Counters.create_or_adopt(self.layout, NAME, self._clock.monotonic_ns(), self._clock.wall_ms())
            self._counters.set_state("serving" if self._ready_said else "starting")
            self.log.dropped_counter = self._counters.counter(DROPPED_COUNTER)
            self._lost.discard(self.layout.shared_memory_name("counters", NAME))
        if self._zookeeper is not None:
            self._lost.discard(self._zookeeper.keep_counters())

    # --- readiness and status ---

    def _maybe_say_ready(self, now_ms: int) -> None:
        if self._ready_said:
            return
        waiting = [child.name for child in self.children.values() if child.state is not ChildState.SERVING]
        if not waiting:
            self._ready_said = True
            self._counters.set_state("serving")
            self.log.info(f"all {len(self.children)} processes serve after {(now_ms - self._started_ms) / 1000:.1f} s")
            os.write(1, ready_message(self.box).encode())
            notify("READY=1")
        elif now_ms >= self._next_notice_ms:
            self._next_notice_ms = now_ms + NOTICE_MS
            self.log.notice(f"still waiting for {', '.join(map(self._with_reason, waiting))}; see their messages above")

    def _with_reason(self, name: str) -> str:
        status_text = self.children[name].status_text
        return f"{name} ({status_text})" if status_text else name

    def describe(self) -> dict[str, Any]:
        """Return the answer to a status request on supervisor.sock."""
        own = {"name": NAME, "pid": os.getpid(), "state": "serving" if self._ready_said else "starting", "since": self.box.started_wall_ms, "restarts": 0}
        if self._stop_signals:
            own["state"] = "stopping"
        aside = [
            {"name": f"{process.name} (detached)", "pid": process.pid, "state": "ending", "since": process.since_wall_ms, "restarts": 0}
            for process in self._detached.processes()
        ]
        return {"processes": [own, *(self._describe_child(child) for child in self.children.values()), *aside]}

    def _describe_child(self, child: Child) -> dict[str, Any]:
        state = child.state.value
        if child.state is ChildState.STARTING:
            snapshot = read_counters(self.layout, child.name)
            if snapshot is not None and snapshot.pid == child.pid and snapshot.state:
                state = snapshot.state  # for example "recovering"
        description = {"name": child.name, "pid": child.pid or None, "state": state, "since": child.since_wall_ms, "restarts": child.restarts}
        return description | ({"status": child.status_text} if child.status_text else {})

    # --- disk orders ---

    def _on_disk_order(self, order: dict[str, str]) -> dict[str, str]:
        """Apply `millrace disk add | remove | replace`, or `config reload`; returns the answer or the
        error for the client."""
        if order.get("verb") == RELOAD and self._reload is not None:
            return self._on_reload(order)
        try:
            self.box, disk = self._disk_changes.carry_out(self.box, order, self._set_disk_aside)
        except RequestRefused as refusal:
            return {"error": refusal.message}
        except OSError as error:
            return {"error": f"could not write {error.filename or self.box.state_directory}: {error.strerror}"}
        self.log.info(f"disk {disk.name} ({disk.path}): {order['verb']}, as ordered", disk=disk.name)
        if order["verb"] != REMOVE:
            self.children.update((process, Child(process)) for process in disk_processes(disk.name))
        return {"disk": disk.name, "path": disk.path}

    def _on_reload(self, order: dict[str, str]) -> dict[str, str]:
        """Apply a changed settings file, and restart the ingests if they have to read it."""
        assert self._reload is not None
        reloads = self.box.reloads
        self.box, answer = self._reload.answer(self.box, order, self.log)
        for name in answer.get("ingests", "").split(", ") if self.box.reloads != reloads else []:
            child = self.children.get(name)
            if child is not None and child.pid:
                child.is_restart_ordered = True
                send_signal(child.pid, signal.SIGTERM)  # when it has ended, it is started again
        return answer

    def _set_disk_aside(self, disk: str, is_lost: bool) -> None:
        """Detach the two processes of a disk that the box no longer serves.

        If the disk is lost or blocks them they are killed, which takes effect when the disk
        answers. Otherwise they end by themselves and close their directory cleanly.
        """
        for process in disk_processes(disk):
            child = self.children.pop(process, None)
            if child is not None and child.pid:
                self._detach(child, 0 if is_lost else GROUP_STOP_MS)

    def _look_at_log_writer(self, disk: str) -> LogWriterSample:
        child = self.children.get(f"log-writer@{disk}")
        return LogWriterSample(0, 0) if child is None else LogWriterSample(child.pid, max(child.since_ms, self._heard_ms(child)))

    # --- stop ---

    def _install_signals(self) -> None:
        signal.set_wakeup_fd(self._signal_pipe[1], warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_stop_signal)
        # only wakes the poller through the signal pipe
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def _on_stop_signal(self, _number: int, _frame: object) -> None:
        self._stop_signals += 1

    def _on_signal_byte(self, _events: int) -> None:
        try:
            os.read(self._signal_pipe[0], 4096)
        except BlockingIOError:
            pass

    def _stop(self) -> None:
        """Stop one process group after the other. A second stop signal kills at once; no
        acknowledged record is lost by that."""
        self._stop_signals = max(1, self._stop_signals)
        self._counters.set_state("stopping")
        notify("STOPPING=1")
        self.log.info("the box is stopping")
        self._end_first_start()
        self._await_leaving()
        self._prepared.listening.close()
        for group in plan_stop(list(self.children)):
            members = [self.children[name] for name in group]
            for child in members:
                if child.pid:
                    send_signal(child.pid, STOP_SIGNALS.get(child.name, signal.SIGTERM))
            self._await_end(members, self._clock.monotonic_ms() + GROUP_STOP_MS)
        while self._detached.may_end_by_itself(self._clock.monotonic_ms()) and self._stop_signals == 1:
            self._poller.poll(TURN_MS_MAX)
            self._reap()
        self.log.info("the box has stopped")

    def _await_leaving(self) -> None:
        """Run the controlled shutdown: the controller hands leaderships to other boxes while all
        processes still serve.

        A box without a cluster has none to hand over.
        """
        Path(self.layout.stopping_file).touch()
        leaving = ShutdownProgress(self.layout)
        controller = self.children[CONTROLLER]
        while controller.pid and controller.state is ChildState.SERVING and not leaving.has_left():
            if self._stop_signals > 1 or leaving.is_given_up(self._clock.monotonic_ns()):
                self.log.warning("the controlled shutdown did not complete; other boxes take over when the ZooKeeper session of this box expires")
                return
            self._counters.beat(self._clock.monotonic_ns())
            self._poller.poll(10)
            self._reap()

    def _await_end(self, members: list[Child], deadline_ms: int) -> None:
        while any(child.pid for child in members):
            now_ms = self._clock.monotonic_ms()
            self._counters.beat(self._clock.monotonic_ns())
            if now_ms >= deadline_ms or self._stop_signals > 1:
                for child in members:
                    if child.pid in self._killed and now_ms >= deadline_ms:
                        self._report_unkillable(child.name, child.pid)
                        self._detach(child)
                    elif child.pid and child.pid not in self._killed:
                        self.log.warning(f"{child.name} did not stop in time; killing it", peer=child.name)
                        self._killed.add(child.pid)
                        kill_group(child.pid)
                if now_ms >= deadline_ms or deadline_ms > now_ms + KILLED_MS:
                    deadline_ms = now_ms + KILLED_MS
            self._poller.poll(max(1, min(TURN_MS_MAX, deadline_ms - now_ms)))
            self._reap()

    def close(self) -> None:
        """Kill the children that still run, and remove sockets, shared memory and the runtime directory.

        `run` calls it after `_stop`, when no child runs any more, and after a failure of the supervisor itself. A child
        that is blocked in the kernel survives SIGKILL until its disk answers: it is reported and left behind.
        """
        signal.set_wakeup_fd(-1)
        self._kill_children()
        self._prepared.listening.close()
        self._status.close()
        self._notify.close()
        if self._zookeeper is not None:
            self._zookeeper.close()
        self._counters.close()
        self._poller.close()
        clear_box(self.layout)
        self.log.close()
        os.close(self._prepared.state_lock)

    def _kill_children(self) -> None:
        """Kill all children and reap them for at most `KILLED_MS`, without the poller, which may be
        what failed."""
        if self._first_start is not None:
            self._first_start.close()
        running = {child.pid: child.name for child in self.children.values() if child.pid}
        for child in self.children.values():
            if child.pid:
                self._detach(child)
        deadline_ms = self._clock.monotonic_ms() + KILLED_MS
        while running and (now_ms := self._clock.monotonic_ms()) < deadline_ms:
            for ended in self._detached.turn(now_ms):
                running.pop(ended.pid, None)
            if running:
                select.select([], [], [], 0.01)
        for pid, name in running.items():
            self._report_unkillable(name, pid)

    def _detach(self, child: Child, patience_ms: int = 0) -> None:
        """Kill a child, after `patience_ms` if it has not ended by then, and reap it whenever it ends."""
        self._killed.discard(child.pid)
        self._uncounted.pop(child.pid, None)
        self._detached.add(child.name, child.pid, self._clock.wall_ms(), self._clock.monotonic_ms(), patience_ms)
        child.pid = 0
        child.state = ChildState.STOPPED

    def _report_unkillable(self, name: str, pid: int) -> None:
        self.log.error(f"{name} (pid {pid}) cannot be killed: its disk hangs; it is left running and ends when the disk answers", peer=name)


def send_signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it ended; the next reap handles it


def kill_group(pid: int) -> None:
    """Kill a child and its descendants: each child leads its own process group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def problem_lines(problems: Iterable[str]) -> str:
    return "".join(f"  - {problem}\n" for problem in problems)


def main(zookeeper_check: ExternalCheck, read_senders: ReadSenders, sync_zookeeper: Callable[[str], None]) -> int:
    """Run the supervisor; `argv[1]` is the options as JSON. `sync_zookeeper` syncs ZooKeeper's
    files in a state directory.

    Exit codes: 0 stopped on request, 2 the box cannot start (the reasons are printed), 78 another
    release.
    """
    options = RunOptions.from_json(sys.argv[1]) if len(sys.argv) > 1 else RunOptions()
    clock = SystemClock()
    name_process("millrace")
    state = resolve_options(options, 1)[0].state
    if not await_previous_life(state, clock):
        clear_dead_life(state)
    clear_vanished_boxes()
    try:
        prepared = prepare_box(options, clock, zookeeper_check, read_senders=read_senders)
    except ConfigurationProblems as error:
        sys.stderr.write(CANNOT_START + problem_lines(error.problems))
        return EXIT_USAGE
    reload = SettingsReload(options, prepared.layout, prepared.given, read_senders)
    return Supervisor(prepared, clock, sync_zookeeper, reload).run()
