"""console: serves HTTP for people and probes on the inherited socket. An asyncio loop stands in for the common runner.

It owns no arena, no ring and no file; when it dies nothing else notices. The loop waits in `HeartbeatSelector`, so heartbeat, stop and the
100 ms backstop work as they do in every other process. Weak spot: a handler that computes for long delays the heartbeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import selectors
import socket
from collections.abc import Iterator
from functools import partial

import uvicorn

from appliance.base.errors import MillraceError
from appliance.console.application import make_application
from appliance.console.readiness import read_readiness
from appliance.runtime.agent import PARK_MS_MAX, ServiceContext
from appliance.runtime.service_main import StopRequest

LISTEN_NAME = "http"
GRACEFUL_STOP_SECONDS = 2
CONNECTIONS_MAX = 256


class HeartbeatSelector(selectors.EpollSelector):
    """Beats the heart before every wait, and never waits longer than the backstop."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__()
        self._context = context

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._context.counters.beat(self._context.clock.monotonic_ns())
        longest = PARK_MS_MAX / 1000
        return super().select(longest if timeout is None else min(timeout, longest))


class ConsoleServer(uvicorn.Server):
    """uvicorn without its own signal handlers (ours are installed), saying ready when it has the socket."""

    def __init__(self, config: uvicorn.Config, context: ServiceContext) -> None:
        super().__init__(config)
        self._context = context

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()
        self._context.notifier.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._context.counters.set_state("stopping")
        await super().shutdown(sockets)


def run_console(context: ServiceContext, stop: StopRequest) -> None:
    """The console's life, for `run_service`."""
    listening = context.listen_sockets.get(LISTEN_NAME)
    if listening is None:
        raise MillraceError(f"no listening socket named {LISTEN_NAME} was handed over (LISTEN_FDNAMES); start it by `millrace run` or its socket unit")
    application = make_application(partial(read_readiness, context.layout, context.box, context.clock))
    config = uvicorn.Config(
        application,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=GRACEFUL_STOP_SECONDS,
    )
    server = ConsoleServer(config, context)

    def ask_to_stop() -> None:
        server.should_exit = True

    stop.on_request = ask_to_stop
    if stop.requested:
        return
    loop = asyncio.SelectorEventLoop(HeartbeatSelector(context))
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(server.serve([listening]))
    finally:
        loop.close()
