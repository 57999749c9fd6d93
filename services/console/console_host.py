"""Writes the figures of the machine to their topic, once per interval, through the Kafka port of
its leader.

A task of the console's loop, with deadlines for each wait; the figures come from /proc
(`HostReading`). Records that cannot be written are kept for some minutes and sent with the
next ones; dropped ones are counted, and no failure ends the console. Weak: after a lost answer
records are written twice, as by each producer without an id; (time, kind, device) identifies
duplicates.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Callable

from appliance.base.errors import ErrorCode, MillraceError
from appliance.base.model import NO_LEADER
from appliance.base.settings import Box
from appliance.client.peer_stream import peer_context
from appliance.cluster.metadata_image import MetadataImage
from appliance.runtime.agent import ServiceContext
from appliance.security.scram import ScramFailed
from appliance.shm.counters import read_counters
from services.console import host_topic
from services.console.host_figures import HostReading, LogDirectorySpace, devices_of, host_records, read_host
from services.console.host_topic import RESPONSE_BYTES_MAX, error_name
from services.console.kafka_workers import own_kafka

TRY_SECONDS = 10.0
LOGIN_ID = 0
"""Correlation id of a login, which comes before a request that has its own already."""
WAITING_MAX = 1_000
"""Records that are kept while they cannot be written: 15 minutes of a box with ten devices."""
TOLD_AFTER = 2
"""Failures in a row before one is logged: a restart of an acceptor, or the stop of the box, is no
problem."""
MISSING = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)


class NotWritten(MillraceError):
    """The broker refused the records or the topic."""


class HostFigures:
    """Reads, keeps and sends the figures; interval 0 disables it."""

    def __init__(self, context: ServiceContext, image: Callable[[], MetadataImage] = MetadataImage.empty) -> None:
        """`image`: the cluster as this box knows it. If it lacks the leader, this box is used."""
        box = context.box
        self._context = context
        self._image = image
        self._clock = context.clock
        self._topic = box.text("host.figures.topic")
        self.interval_seconds = box.integer("host.figures.interval.ms") / 1000
        self._address = own_kafka(box, context.layout)
        self._tls = peer_context(box, context.log)
        self._host = os.uname().nodename
        self.waiting: deque[tuple[int, bytes]] = deque()
        self._before: HostReading | None = None
        self.connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._connected_to = self._address
        self._correlation_id = 0
        self._failures_in_a_row = 0
        self._task: asyncio.Task[None] | None = None
        counter = context.counters.counter
        self._records, self._failures, self._dropped = counter("host_figures.records"), counter("host_figures.failures"), counter("host_figures.dropped")

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the task that publishes, unless the interval is 0."""
        if self.interval_seconds:
            self._task = loop.create_task(self._publish(), name="host-figures")

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop the task, when the loop no longer runs; unsent records are lost."""
        if self._task is not None:
            self._task.cancel()
            loop.run_until_complete(asyncio.wait([self._task]))

    async def _publish(self) -> None:
        try:
            while True:
                self.look()
                await self.send()
                await asyncio.sleep(self.interval_seconds)
        finally:
            self.hang_up()

    def look(self) -> None:
        """Take a reading; append the records of the interval since the last one."""
        try:
            reading = read_host(self._clock.monotonic_ns())
        except (OSError, ValueError, NotImplementedError) as problem:  # a kernel that psutil does not support
            self._fail(f"the machine's figures could not be read: {problem}")
            return
        if self._before is not None:
            wall_ms = self._clock.wall_ms()
            directories = self._log_directories()
            records = host_records(self._before, reading, directories, wall_ms, self._host, self._context.box.broker_id)
            self.waiting.extend((wall_ms, record) for record in records)
        self._before = reading
        while len(self.waiting) > WAITING_MAX:
            self.waiting.popleft()
            self._dropped.add()

    def _log_directories(self) -> list[LogDirectorySpace]:
        disks = self._context.box.disks
        devices = devices_of({disk.name: disk.path for disk in disks})
        found = []
        for disk in disks:
            snapshot = read_counters(self._context.layout, f"log-writer@{disk.name}")
            values = {} if snapshot is None else snapshot.values
            device = devices.get(disk.name)
            found.append(LogDirectorySpace(disk.name, disk.path, device, values.get("disk.free_bytes"), values.get("disk.total_bytes")))
        return found

    async def send(self) -> None:
        """Send the waiting records. A failure is counted, logged if it lasts, and retried in the
        next interval."""
        if not self.waiting:
            return
        try:
            async with asyncio.timeout(TRY_SECONDS):
                await self._write()
        except (OSError, EOFError, MillraceError) as problem:  # a time-out is an OSError
            self.hang_up()
            self._fail(f"the machine's figures could not be written to topic {self._topic}: {str(problem) or 'no answer in time'}; they are kept")
        else:
            self._failures_in_a_row = 0

    def _fail(self, words: str) -> None:
        self._failures.add()
        self._failures_in_a_row += 1
        if self._failures_in_a_row == TOLD_AFTER:
            self._context.log.warning(words, topic=self._topic)

    async def _write(self) -> None:
        records = list(self.waiting)
        code = await self._produce(records)
        if code in MISSING:
            request = host_topic.create_topic_request(self._next_id(), self._topic)
            answer = await self._ask(self._address_of(self._image().controller_id), request)
            created = host_topic.create_topic_answer(answer, self._correlation_id)
            if created not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise NotWritten(f"it could not be created ({error_name(created)})")
            code = await self._produce(records)
        if code != ErrorCode.NONE:
            raise NotWritten(error_name(code))
        for _ in records:
            self.waiting.popleft()
        self._records.add(len(records))

    async def _produce(self, records: list[tuple[int, bytes]]) -> int:
        request = host_topic.produce_request(self._next_id(), self._topic, self._host.encode(), records)
        topic = self._image().topics.get(self._topic)
        leader = topic.partitions[0].leader if topic is not None and topic.partitions else NO_LEADER
        return host_topic.produce_answer(await self._ask(self._address_of(leader), request), self._correlation_id, self._topic)

    def _address_of(self, broker_id: int) -> tuple[str, int]:
        broker = self._image().brokers.get(broker_id)
        return self._address if broker is None or broker_id == self._context.box.broker_id else (broker.host, broker.port)

    def _next_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def _tls_context(self) -> ssl.SSLContext | None:
        try:
            return self._tls.context() if self._tls is not None else None
        except ValueError as problem:
            raise NotWritten(str(problem)) from problem

    async def _ask(self, address: tuple[str, int], request: bytes) -> bytes:
        if self.connection is None or self.connection[0].at_eof() or self._connected_to != address:
            self.hang_up()
            host = address[0]
            if host.startswith("/"):
                opened = await asyncio.open_unix_connection(host)
            else:
                opened = await asyncio.open_connection(*address, ssl=self._tls_context())
            self.connection, self._connected_to = opened, address
            if not host.startswith("/") and self._tls is not None and self._tls.logs_in is not None:
                await self._log_in(self._tls.logs_in)
        return await self._exchange(request)

    async def _log_in(self, box: Box) -> None:
        """As `PeerConnection` does. A connection that fails here is given up by the next try."""
        from appliance.client.peer_login import PeerLogin  # few boxes need it

        try:
            login = PeerLogin.of(box)
            assert login is not None
            tokens = login.tokens()
            host_topic.check_handshake(await self._exchange(host_topic.handshake_request(LOGIN_ID, login.mechanism)), LOGIN_ID)
            token = next(tokens)
            while True:
                answer = host_topic.authenticate_answer(await self._exchange(host_topic.authenticate_request(LOGIN_ID, token)), LOGIN_ID)
                try:
                    token = tokens.send(answer)
                except StopIteration:
                    return
        except (ValueError, ScramFailed) as problem:
            self.hang_up()
            raise NotWritten(str(problem)) from problem

    async def _exchange(self, request: bytes) -> bytes:
        assert self.connection is not None
        reader, writer = self.connection
        writer.write(request)
        await writer.drain()
        (size_bytes,) = host_topic.FRAME_SIZE.unpack(await reader.readexactly(host_topic.FRAME_SIZE.size))
        if not 0 < size_bytes <= RESPONSE_BYTES_MAX:
            raise NotWritten(f"the answer announces {size_bytes} bytes")
        return await reader.readexactly(size_bytes)

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection[1].transport.abort()
            self.connection = None
