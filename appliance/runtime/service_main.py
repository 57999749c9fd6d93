"""What every `services/*.py` main does: from the environment to a running agent, and from its end to an exit code.

`MILLRACE_RUNTIME` names the runtime directory, argv[1] the instance ("0", "d0"). Exit codes: 0 stopped on request, 1 died of
an exception, 70 found its own state inconsistent, 75 wants to begin anew, 78 met objects or settings of another release (not restarted). Weak spot: what an
agent does in its constructor happens before the first heartbeat; long recoveries belong into turns.
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
from appliance.base.errors import StepsDown
from appliance.base.invariants import InvariantViolation
from appliance.base.layout import RUNTIME_VARIABLE, BoxLayout
from appliance.base.logging import DROPPED_COUNTER, Logger, logger_from_environment
from appliance.base.settings import load_box
from appliance.runtime.agent import Agent, AgentFactory, ServiceContext
from appliance.runtime.disk_priority import take_disk_priority
from appliance.runtime.parent_death import PARENT_VARIABLE, bind_to_parent
from appliance.runtime.poller import READABLE, Poller
from appliance.runtime.runner import Runner
from appliance.runtime.short_slices import take_short_slices
from appliance.runtime.systemd import SystemdNotifier, take_listen_sockets
from appliance.runtime.unit_heart import heart_of
from appliance.runtime.unit_mode import stop_turn_of
from appliance.runtime.unit_start import BoxNotPrepared, await_turn_to_start, require_box
from appliance.shm.counters import Counters
from appliance.shm.mapping import LayoutMismatch, SharedObjectTaken

__all__ = ["Agent", "AgentFactory", "ServiceContext", "StopRequest", "run_service", "service_main"]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INCONSISTENT = 70
EXIT_STEPS_DOWN = 75
EXIT_OTHER_RELEASE = 78

FELT_BY_USERS = frozenset({"acceptor", "log-writer"})
"""Process kinds whose pauses users feel: they collect garbage when idle (DESIGN §2) and run as soon as they are woken."""

OF_A_DISK = frozenset({"log-writer", "log-reader"})
"""Process kinds whose instance is a disk: every line of theirs is about it."""


class StopRequest:
    """Set by SIGTERM and SIGINT; `on_request` is called once, in the signal handler, by whoever can act on it sooner than by looking."""

    def __init__(self) -> None:
        self.requested = False
        self.on_request: Callable[[], None] | None = None

    def request(self) -> None:
        self.requested = True
        if self.on_request is not None:
            self.on_request()


ServiceBody = Callable[[ServiceContext, StopRequest], None]


def service_main(process_kind: str, agent_factory: AgentFactory) -> int:
    """Run one agent by the common runner; returns the exit code."""

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
    """What ends the wait of this poller at once, also when a signal handler calls it: by itself a wait goes on after a signal."""
    descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def on_end(_events: int) -> None:
        os.eventfd_read(descriptor)

    poller.register(descriptor, READABLE, on_end)
    return lambda: os.eventfd_write(descriptor, 1)


def run_service(process_kind: str, body: ServiceBody) -> int:
    """Everything around `body`, which is the process's life: for a process that brings its own loop (the console)."""
    instance = sys.argv[1] if len(sys.argv) > 1 else ""
    process_name = f"{process_kind}@{instance}" if instance else process_kind
    log = logger_from_environment(process_name)
    if process_kind in OF_A_DISK:
        log.common_fields["disk"] = instance
    if not bind_to_parent():
        return EXIT_FAILED
    if not os.environ.get(RUNTIME_VARIABLE):
        log.error(f"{RUNTIME_VARIABLE} is not set: this process is started by `millrace run` or by its systemd unit, not by hand")
        return EXIT_USAGE
    name_process(process_name)
    _raise_descriptor_limit()
    stop = StopRequest()
    _install_signals(stop)
    install_excepthooks(log)
    if "logging" in sys.modules:  # one of the few processes whose libraries bring it
        from appliance.runtime.library_logging import forward_library_logging

        forward_library_logging(log)
    try:
        require_box()
        context = _make_context(process_name, instance, log)
        await_turn_to_start(context, lambda: stop.requested)
        if process_kind in OF_A_DISK:
            take_disk_priority(context.box, process_kind, instance)
        body(context, stop)
    except BoxNotPrepared as error:
        log.warning(str(error))
        return EXIT_FAILED
    except LayoutMismatch as error:
        log.critical(f"met shared memory of another release, and ends: {error}")
        return EXIT_OTHER_RELEASE
    except SharedObjectTaken as error:
        log.critical(f"cannot start: {error}")
        return EXIT_FAILED
    except InvariantViolation as error:
        log.critical(f"found its own state inconsistent, and dies: {error}\n{traceback.format_exc()}")
        return EXIT_INCONSISTENT
    except StepsDown as reason:
        log.warning(f"ends, to be started again: {reason}")
        return EXIT_STEPS_DOWN
    except Exception as error:
        log.error(f"died of {type(error).__name__}: {error}\n{traceback.format_exc()}")
        return EXIT_FAILED
    finally:
        log.close()
    return 0


def install_excepthooks(log: Logger) -> None:
    """What would be printed line by line becomes one event: an exception that ends a thread, and one that nobody can catch (in `__del__`)."""

    def tell(where: str, error: BaseException | None) -> None:
        log.error(f"{where} died of {type(error).__name__}: {error}\n{''.join(traceback.format_exception(error))}")

    sys.unraisablehook = lambda stray: tell(f"{stray.object!r}", stray.exc_value)
    if (threading := sys.modules.get("threading")) is not None:  # who has no threads need not have the module
        threading.excepthook = lambda stray: tell(f"thread {stray.thread.name if stray.thread else ''}", stray.exc_value)  # type: ignore[attr-defined]


def _make_context(process_name: str, instance: str, log: Logger) -> ServiceContext:
    clock = SystemClock()
    layout = BoxLayout.from_environment()
    try:
        box = load_box(layout)
    except TypeError as error:
        raise LayoutMismatch(f"{layout.box_file} is of another release: {error}") from error
    incarnation = clock.monotonic_ns()  # no two lives of a process in one boot share it; shared memory does not outlive the boot
    counters = Counters.create_or_adopt(layout, process_name, incarnation, clock.wall_ms())
    counters.beat(incarnation)
    counters.counter("runtime.starts").add()
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
    """SIGTERM stops. SIGINT too, unless a parent orders the stop: Ctrl-C reaches the whole terminal. SIGUSR1 prints where we are."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.request())
    if os.environ.get(PARENT_VARIABLE):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGINT, lambda _number, _frame: stop.request())
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def name_process(process_name: str) -> None:
    """Show the process's name in `ps` and `top` (the kernel keeps 15 bytes)."""
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(process_name[:15])
    except OSError:
        pass  # cosmetic


def _raise_descriptor_limit() -> None:
    """Connections, segments and senders are descriptors: take all that the hard limit allows."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _settle_memory(process_kind: str) -> None:
    """What exists now lives as long as the process: take it out of the collector's sight."""
    gc.collect()
    gc.freeze()
    if process_kind in FELT_BY_USERS:
        gc.disable()
