"""The common main function of `services/*`: from the environment to a running agent, and from its
end to an exit code.

`MILLRACE_RUNTIME` names the runtime directory, argv[1] the instance ("0", "d0"). Exit codes: 0
stopped on request, 1 an exception, 70 an invariant violation, 75 requests a restart, 78 shared
memory or settings of another release (no restart). Weak: an agent's constructor runs before the
first heartbeat; long recoveries belong in turns.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable

from appliance.base.clock import SystemClock
from appliance.base.compiled import COMPILED_GAUGE, is_compiled
from appliance.base.errors import StepsDown
from appliance.base.invariants import InvariantViolation
from appliance.base.layout import RUNTIME_VARIABLE, BoxLayout
from appliance.base.logging import DROPPED_COUNTER, Logger, logger_from_environment
from appliance.base.settings import load_box
from appliance.base.trusted_files import faces_network
from appliance.runtime.agent import Agent, AgentFactory, ServiceContext
from appliance.runtime.poller import READABLE, Poller
from appliance.runtime.runner import Runner
from appliance.runtime.scheduling import take_disk_priority, take_short_slices
from appliance.runtime.spawning import PARENT_VARIABLE, bind_to_parent
from appliance.runtime.systemd import SystemdNotifier, take_listen_sockets
from appliance.runtime.unit_process import BoxNotPrepared, await_turn_to_start, heart_of, require_box, stop_turn_of
from appliance.shm.counters import Counters
from appliance.shm.mapping import LayoutMismatch, SharedObjectTaken, unlink

__all__ = ["Agent", "AgentFactory", "ServiceContext", "StopRequest", "run_service", "service_main"]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INCONSISTENT = 70
EXIT_STEPS_DOWN = 75
EXIT_OTHER_RELEASE = 78

FELT_BY_USERS = frozenset({"acceptor", "log-writer"})
"""Kinds of process whose pauses clients notice: they collect garbage when idle and request short
time slices."""

OF_A_DISK = frozenset({"log-writer", "log-reader"})
"""Kinds of process whose instance is a disk, which all their log messages carry."""


class StopRequest:
    """Set by SIGTERM and SIGINT. The signal handler calls `on_request` once, so that an agent need
    not poll the flag."""

    def __init__(self) -> None:
        self.requested = False
        self.on_request: Callable[[], None] | None = None

    def request(self) -> None:
        self.requested = True
        if self.on_request is not None:
            self.on_request()


ServiceBody = Callable[[ServiceContext, StopRequest], None]


def service_main(process_kind: str, agent_factory: AgentFactory) -> int:
    """Run one agent with the common runner; returns the exit code."""

    def body(context: ServiceContext, stop: StopRequest) -> None:
        runner = Runner(agent_factory(context), context, process_kind in FELT_BY_USERS, heart_of(context), stop_turn_of(context))
        end_wait = wait_ender(context.poller)

        def on_request() -> None:
            runner.request_stop()
            end_wait()

        stop.on_request = on_request
        if stop.requested:
            runner.request_stop()
        _settle_memory(process_kind)
        if process_kind in FELT_BY_USERS:
            take_short_slices()
        runner.run()

    return run_service(process_kind, body)


def wait_ender(poller: Poller) -> Callable[[], None]:
    """Return a function that ends the current or next wait of this poller. By itself, a wait
    continues after a signal."""
    descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def on_end(_events: int) -> None:
        os.eventfd_read(descriptor)

    poller.register(descriptor, READABLE, on_end)
    return lambda: os.eventfd_write(descriptor, 1)


def run_service(process_kind: str, body: ServiceBody) -> int:
    """Run `body`, which is the work of the process, with the common setup and exit codes. For
    processes with their own loop."""
    _resume_collection()
    instance = sys.argv[1] if len(sys.argv) > 1 else ""
    process_name = f"{process_kind}@{instance}" if instance else process_kind
    log = logger_from_environment(process_name)
    if process_kind in OF_A_DISK:
        log.common_fields["disk"] = instance
    if not bind_to_parent():
        return EXIT_FAILED
    if not os.environ.get(RUNTIME_VARIABLE):
        log.error(f"{RUNTIME_VARIABLE} is not set: start this process with `millrace run` or its systemd unit, not by hand")
        return EXIT_USAGE
    name_process(process_name)
    _raise_descriptor_limit()
    stop = StopRequest()
    _install_signals(stop)
    install_excepthooks(log)
    if "logging" in sys.modules:  # libraries of this process (or of another one that was forked with it) use it
        from appliance.runtime.library_logging import forward_library_logging

        forward_library_logging(log)
    try:
        require_box()
        context = _make_context(process_name, instance, log)
        await_turn_to_start(context, lambda: stop.requested)
        if process_kind in OF_A_DISK:
            take_disk_priority(context.box, process_kind, instance)
        body(context, stop)
        if faces_network() and os.path.exists(context.layout.stopping_file):
            unlink(context.counters.shared.name)  # at its end the supervisor, of another user, cannot
    except BoxNotPrepared as error:
        log.warning(str(error))
        return EXIT_FAILED
    except LayoutMismatch as error:
        log.critical(f"found shared memory of another release: {error}; stopping")
        return EXIT_OTHER_RELEASE
    except SharedObjectTaken as error:
        log.critical(f"cannot start: {error}")
        return EXIT_FAILED
    except InvariantViolation as error:
        log.critical(f"invariant violation: {error}; stopping\n{traceback.format_exc()}")
        return EXIT_INCONSISTENT
    except StepsDown as reason:
        log.warning(f"restarting: {reason}")
        return EXIT_STEPS_DOWN
    except Exception as error:
        log.error(f"failed with {type(error).__name__}: {error}\n{traceback.format_exc()}")
        return EXIT_FAILED
    finally:
        log.close()
    return 0


def install_excepthooks(log: Logger) -> None:
    """Log uncaught exceptions as one event each: those that end a thread, and those that cannot
    propagate (in `__del__`)."""

    def report(where: str, error: BaseException | None) -> None:
        log.error(f"{where} failed with {type(error).__name__}: {error}\n{''.join(traceback.format_exception(error))}")

    sys.unraisablehook = lambda stray: report(f"{stray.object!r}", stray.exc_value)
    # a process without threads need not import the module
    if (threading := sys.modules.get("threading")) is not None:
        threading.excepthook = lambda stray: report(f"thread {stray.thread.name if stray.thread else ''}", stray.exc_value)  # type: ignore[attr-defined]


def _make_context(process_name: str, instance: str, log: Logger) -> ServiceContext:
    clock = SystemClock()
    layout = BoxLayout.from_environment()
    try:
        box = load_box(layout)
    except TypeError as error:
        raise LayoutMismatch(f"{layout.box_file} is of another release: {error}") from error
    # no two incarnations of a process in one boot share it, and shared memory does not survive a
    # boot
    incarnation = clock.monotonic_ns()
    counters = Counters.create_or_adopt(layout, process_name, incarnation, clock.wall_ms())
    counters.beat(incarnation)
    counters.counter("runtime.starts").add()
    counters.gauge(COMPILED_GAUGE).set(int(is_compiled()))
    log.dropped_counter = counters.counter(DROPPED_COUNTER)
    return ServiceContext(
        layout=layout,
        box=box,
        clock=clock,
        counters=counters,
        poller=Poller(),
        process_name=process_name,
        instance=instance,
        incarnation=incarnation,
        notifier=SystemdNotifier(counters),
        log=log,
        listen_sockets=take_listen_sockets(),
    )


def _install_signals(stop: StopRequest) -> None:
    """Install the handlers. SIGTERM stops. SIGINT does too, unless a parent stops the process
    (Ctrl-C reaches the whole terminal). SIGUSR1 prints the stack."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.request())
    if os.environ.get(PARENT_VARIABLE):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGINT, lambda _number, _frame: stop.request())
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def name_process(process_name: str) -> None:
    """Set the name of the process in `ps` and `top` (the kernel keeps 15 bytes)."""
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(process_name[:15])
    except OSError:
        pass  # cosmetic


def _raise_descriptor_limit() -> None:
    """Raise the limit of descriptors to the hard limit: connections, segments and senders all need
    one."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _resume_collection() -> None:
    """Exclude modules from garbage collection, which `__main__` disables while it imports them: to
    scan them takes a tenth of the start of a box."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _settle_memory(process_kind: str) -> None:
    """Exclude existing objects from garbage collection: they live as long as the process."""
    gc.collect()
    gc.freeze()
    if process_kind in FELT_BY_USERS:
        gc.disable()
