"""Serves HTTP for people, probes and Prometheus on the inherited socket. An asyncio loop replaces
the common runner.

It reads shared memory, files on tmpfs and figures of the machine in /proc, and asks the coordinator about groups by its
socket. It has no arena, no ring and no log directory; if it dies, no other process is affected. The
loop waits in `HeartbeatSelector`, so heartbeat, stop and the longest wait of 100 ms are the same as
in each other process. Weak: a handler that computes for long delays the heartbeat.

The installed release: the file VERSION, or the version in pyproject.toml. Weak: a checkout does
not show its commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import secrets
import selectors
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import uvicorn

from appliance.base.errors import MillraceError, StepsDown
from appliance.base.http_hosts import box_names
from appliance.base.layout import CONSOLE_STATE
from appliance.base.networks import read_networks
from appliance.ipc.frames import listen_unix
from appliance.runtime.agent import PARK_MS_MAX, ServiceContext
from appliance.runtime.ensemble_checks import authenticates, is_loopback
from appliance.runtime.process_cost import CostReport
from appliance.runtime.service_main import StopRequest
from appliance.runtime.settings_watch import SettingsWatch
from appliance.runtime.shared_memory import SharedMemoryWatch
from appliance.runtime.unit_process import heart_of
from appliance.security.listeners import has_console_users
from appliance.shm.counters import Counters
from services.console.access import Access
from services.console.alarm import AlarmEvent
from services.console.alarm_history import AlarmHistory
from services.console.alarm_push import AlarmPush, AlarmSource
from services.console.alarms import ALARMS
from services.console.application import make_application
from services.console.box_sample import BoxReader
from services.console.console_connections import ConsoleConnections, bounded_protocol
from services.console.console_groups import GroupQuestions
from services.console.console_host import HostFigures
from services.console.kafka_workers import KafkaWorkers, local_kafka, own_kafka, security_of
from services.console.login_routes import Users
from services.console.person_guard import Persons, Proxies
from services.console.persons import Roles
from services.console.search_processes import SearchProcesses
from services.console.state_files import StateFiles
from services.console.watch import BoxMonitor

ROOT = Path(__file__).parent.parent.parent


def release_version(root: Path = ROOT) -> str:
    """Return one line; "unknown" if neither file exists."""
    try:
        return (root / "VERSION").read_text().strip()
    except OSError:
        pass
    try:
        lines = (root / "pyproject.toml").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.split('"')[1] for line in lines if line.startswith('version = "')), "unknown")


LISTEN_NAME = "http"
GRACEFUL_STOP_SECONDS = 2
TURN_SECONDS = 0.25


class HeartbeatSelector(selectors.EpollSelector):
    """Sends the heartbeat before each wait, and never waits longer than `PARK_MS_MAX`."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__()
        self._context = context
        self._heart = heart_of(context)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events, at most `PARK_MS_MAX`, after a heartbeat. `timeout` in seconds."""
        now_ns = self._context.clock.monotonic_ns()
        self._context.counters.beat(now_ns)
        if self._heart is not None:
            self._heart.beat(now_ns, lambda: f"listens on port {self._context.box.http_port}")
        longest = PARK_MS_MAX / 1000
        return super().select(longest if timeout is None else min(timeout, longest))


class ConsoleAgent:
    """The work of the console besides HTTP: samples, requests about groups, memory, figures of the
    machine."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._reader = BoxReader(context.layout, context.box, context.clock)
        self.watch = BoxMonitor(self._reader, context.clock, release_version(), self._on_alarm)
        self._questions = GroupQuestions(context.layout, context.poller, context.clock, self.watch.last_sample)
        self.watch.groups = lambda: self._questions.look
        self._alarm_history = AlarmHistory(self.watch.alarms, ALARMS)
        directory = f"{context.box.state_directory}/{CONSOLE_STATE}"
        self._state = StateFiles(directory, [self._alarm_history, self.watch.figures], context.clock, context.counters, context.log)
        box = context.box
        source = AlarmSource(f"{box.advertise}:{box.http_port}", box.broker_id)
        self._push = AlarmPush(box.text("alerts.url"), source, context.clock, context.counters, context.log)
        self.watch.kept = lambda: {"push": self._push.document, "problems": sorted(self._state.problems.values())}
        self._cost = CostReport(context.counters)
        self.ending: StepsDown | None = None
        """Why the process stops itself, if it does."""
        self.on_ending: Callable[[], None] = lambda: None
        log_writers = [f"log-writer@{disk.name}" for disk in context.box.disks]
        self._shared_memory = SharedMemoryWatch(context.layout, context.process_name, log_writers, context.clock, context.counters, context.log)
        self._settings = SettingsWatch(context.layout, context.box, context.log)
        self._host_figures = HostFigures(context, lambda: self.watch.last_sample().image)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the turns in this loop, one every `TURN_SECONDS`."""
        self._host_figures.start(loop)
        loop.add_reader(self._context.poller.fileno(), self._context.poller.poll, 0)
        self._turn(loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(TURN_SECONDS, self._turn, loop)
        self._cost.turn(self._context.clock.monotonic_ns())
        self.watch.turn()
        self._questions.turn()
        self._state.turn()
        self._push.turn(self.watch.alarms.present)
        try:
            self._shared_memory.turn(self._context.clock.monotonic_ns())
            self._settings.look()
        except StepsDown as reason:
            self.ending = reason
            self.on_ending()

    def _on_alarm(self, event: AlarmEvent) -> None:
        """Keep and send an alarm, and log it, for boxes without Prometheus."""
        self._alarm_history.note()
        self._push.on_alarm(event)
        if event.ended_wall_ms is None:
            self._context.log.warning(f"alarm {event.alarm.name}: {event.words}", reason=event.alarm.name)
        else:
            self._context.log.info(f"alarm {event.alarm.name} is over: {event.words}", reason=event.alarm.name)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop the turns and close all files, after the loop has ended."""
        self._timer.cancel()
        self._host_figures.close(loop)
        loop.remove_reader(self._context.poller.fileno())
        self._state.close()
        self._push.close()
        self._questions.close()
        self._reader.close()


class ConsoleServer(uvicorn.Server):
    """uvicorn without its own signal handlers; reports ready when it has the socket."""

    def __init__(self, config: uvicorn.Config, context: ServiceContext, begin: Callable[[], None]) -> None:
        super().__init__(config)
        self._context = context
        self._begin = begin

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: the service's own handlers request the stop."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server and the agent's turns, then report ready."""
        await super().startup(sockets)
        self._begin()
        gc.collect()
        gc.freeze()
        self._context.notifier.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Publish the state `stopping`, then close the connections."""
        self._context.counters.set_state("stopping")
        await super().shutdown(sockets)


def _count_refused(counters: Counters, reason: str) -> None:
    counters.counter(f'console.refused{{reason="{reason}"}}').add()


def _log_failed(context: ServiceContext, words: str) -> None:
    _count_refused(context.counters, "failed")
    context.log.error(words)


def _count_closed(counters: Counters, reason: str) -> None:
    counters.counter(f'console.closed{{reason="{reason}"}}').add()


def _workers(context: ServiceContext) -> KafkaWorkers:
    return KafkaWorkers(
        own_kafka(context.box, context.layout),
        partial(_count_refused, context.counters, "busy"),
        security=partial(security_of, context.box),
        on_failed=partial(_log_failed, context),
        local=local_kafka(context.box, context.layout),
    )


def _users(context: ServiceContext) -> Users | None:
    """Return the users of the console; None without any in the settings."""
    box = context.box
    if not has_console_users(box):
        return None
    networks = box.text("http.proxy.networks")
    proxies = Proxies(read_networks(networks) if networks else (), box.text("http.proxy.user.header"))
    cookie = f"millrace-{hashlib.blake2b(box.box.encode(), digest_size=4).hexdigest()}"  # boxes on one machine share their cookies
    persons = Persons(Roles.of(box), proxies, secrets.token_bytes(32), cookie)
    logins = KafkaWorkers((local_kafka(box, context.layout), 0), partial(_count_refused, context.counters, "logins"))
    done, failed = context.counters.counter("console.logins"), context.counters.counter("console.login_failures")
    return Users(persons, logins, lambda is_done: (done if is_done else failed).add())


def run_console(context: ServiceContext, stop: StopRequest) -> None:
    """Run the console until it is asked to stop, for `run_service`.

    Raises `MillraceError` without a listening socket, `StepsDown` if the process has to restart.
    """
    listening = context.listen_sockets.get(LISTEN_NAME)
    if listening is None:
        raise MillraceError(f"no listening socket named {LISTEN_NAME} was handed over (LISTEN_FDNAMES); start it by `millrace run` or its socket unit")
    loop = asyncio.SelectorEventLoop(HeartbeatSelector(context))
    asyncio.set_event_loop(loop)
    agent = ConsoleAgent(context)
    users = _users(context)
    connections = ConsoleConnections(partial(_count_closed, context.counters), proxies=() if users is None else users.persons.proxies.networks)
    config = uvicorn.Config(
        make_application(
            agent.watch,
            box_names(context.box),
            Access(
                read_networks(context.box.text("http.details.allowed.networks")),
                bool(context.box.text("authorizer.class.name")),
                is_loopback(listening.getsockname()[0]),
                all(authenticates(context.box, each) for each in context.box.kafka_listeners),
                (lambda _digest: None) if users is None else users.persons.sessions.end,
                lambda words: context.log.info(words, audit=words.partition(":")[0]),
                lambda digest: users is not None and users.persons.sessions.has(digest, context.clock.monotonic_ms()),
            ),
            partial(_count_refused, context.counters),
            SearchProcesses(context.layout, context.box.integer("search.processes.max")),
            _workers(context),
            users,
        ),
        proxy_headers=users is None,  # else `person_guard` reads them
        http=bounded_protocol(connections),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_STOP_SECONDS,
    )
    server = ConsoleServer(config, context, lambda: agent.start(loop))

    def ask_to_stop() -> None:
        server.should_exit = True

    stop.on_request = agent.on_ending = ask_to_stop
    try:
        if not stop.requested:
            loop.run_until_complete(server.serve([listening, listen_unix(context.layout.console_socket)]))
            agent.close(loop)
        if agent.ending is not None:
            raise agent.ending
    finally:
        loop.close()
