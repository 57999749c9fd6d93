"""ZooKeeper under systemd: starts the JVM, polls whether it serves, and reports that to systemd.

A JVM sends no sd_notify messages and no watchdog heartbeat. Under `millrace run` the supervisor
polls it, and the process *is* the JVM; a unit polls it itself. If one of the two ends, so does the
other, and systemd restarts the unit. Only a server that cannot rejoin its quorum is restarted here,
because its time limit grows with each restart. On a stop request it waits until no process needs
ZooKeeper, then stops the JVM.

Weak: `srvr` does not show a disk that hangs under the transaction log until a session writes.
"""

from __future__ import annotations

import os
import signal

from appliance.base.errors import ConfigurationProblems, MillraceError
from appliance.base.settings import Box
from appliance.cluster.zookeeper_files import sync_data
from appliance.cluster.zookeeper_server import prepare
from appliance.runtime.agent import ServiceContext
from appliance.runtime.ensemble_checks import member_problems
from appliance.runtime.poller import READABLE
from appliance.runtime.service_main import EXIT_USAGE, StopRequest
from appliance.runtime.spawning import spawn
from appliance.runtime.unit_process import START_FACTOR, heart_of, stop_turn_of
from appliance.runtime.zookeeper_watch import ASK_MS_WHILE_STARTING, ZooKeeperWatch
from appliance.shm.counters import DEAD

TURN_MS = 100
STOP_MS = 10_000


class ZooKeeperKeeper:
    """Runs and watches one JVM."""

    def __init__(self, context: ServiceContext, stop: StopRequest) -> None:
        self._context = context
        self._clock = context.clock
        self._stop = stop
        self._may_stop = stop_turn_of(context)
        heart = heart_of(context)
        assert heart is not None  # `services/zookeeper/__main__.py` runs this only under systemd
        self._heart = heart
        self._watchdog_ms = context.box.integer("watchdog.timeout.ms")
        self._watch = ZooKeeperWatch(context.layout, context.box, context.poller, context.clock, sync_data)
        self._has_ended = True
        self._reported = ""
        self._start_machine()

    def _start_machine(self) -> None:
        self._pid = spawn(prepare(self._context.box), dict(os.environ))
        self._watch.on_started(self._pid, self._clock.monotonic_ms())
        self._has_ended = False
        self._is_starting = True
        self._next_ask_ms = 0
        self._pidfd = os.pidfd_open(self._pid)
        self._context.poller.register(self._pidfd, READABLE, self._on_end)

    def run(self) -> None:
        """Run until a stop request. Raises MillraceError if the JVM ended by itself."""
        try:
            while not self._stop.requested:
                self._turn()
                if self._has_ended:
                    raise MillraceError("the ZooKeeper JVM ended by itself; see zookeeper.log in the state directory")
            self._heart.stopping()
            while not self._has_ended and self._may_stop is not None and not self._may_stop():
                self._turn()
            self._end()
        finally:
            if not self._has_ended:
                self._signal(signal.SIGKILL)
                os.close(self._pidfd)
            self._watch.set_state(DEAD)
            self._watch.close()

    def _turn(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_ask_ms:
            self._watch.ask(now_ms)
            self._next_ask_ms = self._watch.next_ask_ms(now_ms, self._watchdog_ms // 4)
        if self._watch.words != self._reported:
            self._reported = self._watch.words
            if self._reported:
                (self._context.log.warning if self._is_ready else self._context.log.info)(self._reported)
                self._context.notifier.status(self._reported)
        if self._is_starting and self._watch.is_ready:
            self._is_starting = False
            if not self._is_ready:
                self._context.notifier.ready()
            self._watch.set_state("serving")
        if problem := self._watch.sync_problem:
            state = self._context.box.state_directory
            raise MillraceError(f"could not sync the files of ZooKeeper in {state}: {problem}; check the disk of the state directory")
        if lost := self._watch.keep_counters():
            self._context.log.error(f"another program deleted {lost} in /dev/shm, it was made again; keep other programs away from it", reason="shared-memory")
        silent_ms = now_ms - self._watch.heard_ms
        if silent_ms > self._watchdog_ms * (START_FACTOR if self._is_starting else 1):
            self._context.log.warning(f"the ZooKeeper JVM (pid {self._pid}) has not answered for {silent_ms / 1000:.0f} s; killing it")
            self._signal(signal.SIGKILL)
        elif not self._stop.requested and self._watch.is_left_behind(now_ms):
            self._context.log.warning(f"restarting the ZooKeeper JVM (pid {self._pid}): it cannot rejoin a quorum that is otherwise healthy")
            self._watch.on_left_behind()
            self._restart_machine()
        self._heart.beat(self._clock.monotonic_ns(), self._status_line)
        self._context.poller.poll(ASK_MS_WHILE_STARTING if self._is_starting else TURN_MS)

    @property
    def _is_ready(self) -> bool:
        return self._heart.is_ready

    def _status_line(self) -> str:
        return f"{self._watch.words or f'answers on {self._context.box.own_zookeeper}'}; JVM {self._pid}"

    def _restart_machine(self) -> None:
        self._signal(signal.SIGKILL)
        while not self._has_ended:
            self._heart.beat(self._clock.monotonic_ns(), self._status_line)
            self._context.poller.poll(TURN_MS)
        self._start_machine()

    def _end(self) -> None:
        """Send SIGTERM, then SIGKILL every `STOP_MS` until the JVM has ended."""
        self._signal(signal.SIGTERM)
        until_ms = self._clock.monotonic_ms() + STOP_MS
        while not self._has_ended:
            if self._clock.monotonic_ms() >= until_ms:
                self._signal(signal.SIGKILL)
                until_ms += STOP_MS
            self._context.poller.poll(TURN_MS)

    def _signal(self, number: signal.Signals) -> None:
        if not self._has_ended:
            signal.pidfd_send_signal(self._pidfd, number)

    def _on_end(self, _events: int) -> None:
        self._context.poller.unregister(self._pidfd)
        os.close(self._pidfd)
        os.waitpid(self._pid, 0)
        self._has_ended = True


def own_member_problems(box: Box) -> list[str]:
    """Return why this machine cannot run the box's member of an ensemble."""
    return [problem for member in box.ensemble if member.member_id == box.broker_id for problem in member_problems(member)]


def keep_zookeeper(context: ServiceContext, stop: StopRequest) -> None:
    """Run the unit of ZooKeeper, for `run_service`."""
    try:
        if found := own_member_problems(context.box):
            raise ConfigurationProblems(found)
        ZooKeeperKeeper(context, stop).run()
    except ConfigurationProblems as problems:
        for problem in problems.problems:
            context.log.critical(problem)
        context.notifier.status(problems.problems[0])
        raise SystemExit(EXIT_USAGE) from None
