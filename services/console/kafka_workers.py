"""Asks the cluster for the pages of the console, in threads: a client of Kafka that waits must not
stop the loop.

Owned by the console's loop. Each request has a thread and a client of its own, at most
`WORKERS_MAX` at a time, and connects to its box as `own_kafka` says. A request that takes longer than
`answer_seconds` is answered without it; its thread counts until it has ended, which the client's
time-outs enforce. Weak: a connection for each request costs about 2 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from appliance.base.errors import MillraceError
from appliance.base.layout import BoxLayout
from appliance.base.settings import Box
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from appliance.runtime.unit_process import SYSTEMD
from appliance.security.listeners import PLAINTEXT, is_encrypted

if TYPE_CHECKING:
    from appliance.client.cluster import ClusterClient
    from appliance.client.security import ClientSecurity
    from appliance.security.principals import ActingFor

WORKERS_MAX = 4
OWN_WORKERS = 1
"""More, for what needs no broker: the disks are shown while all others wait for one."""
ANSWER_SECONDS = 20.0
"""Shorter than `console_connections.ANSWER_SECONDS`, so that the client learns the reason."""
CONNECT_MS = 2_000
REQUEST_MS = 8_000
RETRY_MS = 3_000
RESPONSE_BYTES_MAX = 32 << 20

Question = Callable[["ClusterClient"], Any]


def own_kafka(box: Box, layout: BoxLayout) -> tuple[str, int]:
    """Return where the console reaches its box: host and port, or the path of the Unix socket and 0
    if the first listener needs TLS or a login."""
    return box.local_kafka if box.kafka_listeners[0].protocol == PLAINTEXT else (local_kafka(box, layout), 0)


def local_kafka(box: Box, layout: BoxLayout) -> str:
    """Return the path of the Unix socket of the box."""
    return layout.administration_socket(box.managed_by == SYSTEMD)


def security_of(box: Box, person: ActingFor | None = None) -> ClientSecurity | None:
    """Return how the boxes are reached, for a person or for the box; OpenSSL is loaded only where it is needed."""
    if person is None and not is_encrypted(box.kafka_listeners[0].protocol):
        return None
    from appliance.client.security import ClientSecurity, box_security

    security = box_security(box)
    if person is None:
        return security
    return (security or ClientSecurity(PLAINTEXT))._replace(acting=person, acts_elsewhere=bool(box.text("authorizer.class.name")))


class WorkersBusy(MillraceError):
    """As many requests wait for the cluster as may."""


class KafkaWorkers:
    """`address`: where the box serves Kafka to itself, and `local` to persons; `security`: how boxes are reached.
    `on_refused` counts requests without a thread, `on_failed` logs those that raise what they should
    not."""

    def __init__(
        self,
        address: tuple[str, int],
        on_refused: Callable[[], None] = lambda: None,
        answer_seconds: float = ANSWER_SECONDS,
        security: Callable[[ActingFor | None], ClientSecurity | None] = lambda _person: None,
        on_failed: Callable[[str], None] = lambda _words: None,
        local: str = "",
    ) -> None:
        self._local = local
        self.on_failed = on_failed
        self._address = address
        self._security = security
        self._on_refused = on_refused
        self._answer_seconds = answer_seconds
        self.running = 0

    async def ask(self, question: Question, needs_broker: bool = True, person: ActingFor | None = None) -> Any:
        """Return what `question` returns or raises; TimeoutError if it takes too long, `WorkersBusy` if
        there is no thread for it. `person`: with whose rights it is asked; None: with those of the box."""
        if self.running >= WORKERS_MAX + (0 if needs_broker else OWN_WORKERS):
            self._on_refused()
            raise WorkersBusy(f"{WORKERS_MAX} requests wait for the cluster already; try again in a moment")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        has_run: list[bool] = []
        thread = BackgroundThread(self._work, "console-kafka", (loop, answer, question, person, has_run))
        try:
            thread.start(waits=False)  # the loop must not wait for the scheduler
        except ThreadRefused as problem:
            self._on_refused()
            raise WorkersBusy(f"no thread could be started: {problem}") from problem
        self.running += 1
        try:
            return await asyncio.wait_for(answer, self._answer_seconds)
        except TimeoutError:
            if has_run or thread.is_alive():
                raise
            self.running -= 1
            self._on_refused()
            raise WorkersBusy("a thread died before it ran, for lack of memory; try again in a moment") from None

    def _work(self, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], question: Question, person: ActingFor | None, has_run: list[bool]) -> None:
        has_run.append(True)
        result: Any = None
        problem: BaseException | None = None
        try:
            result = self._result_of(question, person)
        except StopIteration as raised:  # a future takes none
            problem = RuntimeError(f"a question raised {raised!r}")
        except BaseException as raised:  # the one that asked gets it
            problem = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._on_result, answer, result, problem)

    def _result_of(self, question: Question, person: ActingFor | None) -> Any:
        from appliance.client.address import Address
        from appliance.client.cluster import ClusterClient  # 3 MB that a console without such requests saves

        with ClusterClient(
            [Address(*self._address) if person is None else Address(self._local, 0)],
            client_id="millrace-console",
            connect_timeout_ms=CONNECT_MS,
            request_timeout_ms=REQUEST_MS,
            retry_ms=RETRY_MS,
            response_bytes_max=RESPONSE_BYTES_MAX,
            security=self._security(person),
        ) as cluster:
            return question(cluster)

    def _on_result(self, answer: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
        self.running -= 1
        if answer.done():
            return  # it came too late, or the client has gone
        if problem is None:
            answer.set_result(result)
        else:
            answer.set_exception(problem)
