"""The ingest: syslog senders in, record batches out to the log-writers that lead the syslog topic's partitions.

One turn: completions and deaths of log-writers, news of tables and image, batches that are due; then the poller hands it datagrams and
streams. Alone owns its senders' connections, its arena and its rings; the books it keeps in its counters are taken over
by its next life. It never touches a log directory.
One dead disk stops nobody: the partitions of others take its lines (`ingest_disks`, `ingest_outlet`).
Weak: lines go to partitions that this box leads; those that would go to others are taken by these, too. While it leads none, lines wait until the
budget is used up, and then their senders do.
"""

from __future__ import annotations

import orjson

from appliance.agents.image_follower import ImageFollower
from appliance.agents.ingest_disks import IngestDisks
from appliance.agents.ingest_outlet import IngestOutlet, OutgoingBatch
from appliance.agents.ingest_previous_life import IngestPreviousLife
from appliance.agents.syslog_connections import SyslogConnections
from appliance.agents.syslog_datagrams import SyslogDatagrams
from appliance.agents.syslog_intake import TURN_BYTES, SyslogIntake
from appliance.base.model import NO_LEADER
from appliance.broker.box_view import BoxView
from appliance.ingest.accounting import read_ledger
from appliance.ingest.batcher import Batcher
from appliance.ipc.box_disks import BoxDisks
from appliance.ipc.controller_frames import AUTO_CREATE
from appliance.ipc.controller_link import ControllerLink
from appliance.ipc.disk_health import DiskHealth
from appliance.ipc.proxies import LogWriterProxies, Source
from appliance.metadata.metadata_image import TopicImage
from appliance.runtime.agent import PARK_MS_MAX, ServiceContext

SWEEP_NS = 1_000_000_000
CREATE_TIMEOUT_MS = 5_000
DRAIN_NS_MAX = 1_000_000_000
"""How long a stop goes on reading from senders that never pause."""


class IngestAgent:
    """One ingest process."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._clock = context.clock
        self._poller = context.poller
        counters, box, log = context.counters, context.box, context.log
        now_ns = self._clock.monotonic_ns()
        disks = [disk.name for disk in box.disks]
        self._topic = box.text("ingest.syslog.topic")
        self._topic_image: TopicImage | None = None
        self._source = Source(context.layout, context.process_name, context.incarnation, box.integer("ingest.arena.bytes"), box.integer("channel.ring.entries"))
        self._previous_life = IngestPreviousLife(context.layout, context.process_name, context.incarnation, counters, log, now_ns)
        self._proxies = LogWriterProxies(
            self._source,
            disks,
            self._poller,
            self._clock,
            counters,
            self._on_completion,
            self._on_lost,
            self._on_connected,
            self._on_gone,
            keep_ring_names=True,  # completions that we do not live to see are read by our next life
        )
        self._view = BoxView(box.broker_id, self._proxies, box.integer("message.max.bytes"))
        self._image = ImageFollower(context.layout, self._view, log)
        self._controller = ControllerLink(context.layout, self._poller, self._clock, self._image.on_changed)
        budget_bytes = min(box.integer("disk.budget.bytes"), self._source.arena.size_bytes // len(disks))
        self._outlet = IngestOutlet(self._topic, self._source.arena, self._view, budget_bytes, self._clock, counters, log, self._on_blocked)
        self._box_disks = BoxDisks(context.layout, box)
        self._health = DiskHealth(self._proxies.by_disk.values(), box.integer("log.disk.deadline.ms"), lambda _disk, _operation: None, lambda _disk: None)
        self._disks = IngestDisks(self._proxies, counters, log)
        self._intake = SyslogIntake(box, self._clock, counters)
        max_message_bytes = box.integer("ingest.syslog.max.message.bytes")
        self._connections = SyslogConnections(
            context.listen_sockets["syslog-tcp"],
            self._poller,
            self._intake,
            max_message_bytes,
            box.integer("max.connections"),
            box.integer("max.connections.per.ip"),
            counters,
        )
        counts_drops = context.instance in ("", "0")
        self._datagrams = SyslogDatagrams(context.listen_sockets["syslog-udp"], self._poller, self._intake, max_message_bytes, counts_drops, counters, log)
        self._in_flight = counters.counter("ingest.in_flight")
        self._create_asked_ns = 0
        self._next_sweep_ns = 0
        self._drain_until_ns = 0
        self._is_elsewhere = False
        self._ready = False
        self._drained = False

    # -- duty cycle

    def do_work(self) -> int:
        now_ns = self._clock.monotonic_ns()
        self._intake.turn_bytes_left = TURN_BYTES
        work = self._proxies.do_work(now_ns)
        work += self._health.look(now_ns)
        self._look_at_disks(now_ns)
        work += self._controller.do_work(now_ns)
        if self._image.is_stale:
            image = self._image.load()
            if image is not None:
                self._on_topic(image.topics.get(self._topic))
            work += 1
        work += self._view.refresh()
        if self._disks.look(now_ns):
            self._outlet.set_dead_disks(self._disks.dead)
            work += 1
        if not self._previous_life.settled:
            work += self._previous_life.settle(now_ns, self._writer_incarnation)
        if self._topic_image is None:
            self._maybe_ask_for_topic(now_ns)
        work += self._batch_and_send(now_ns)
        if self._drain_until_ns:
            work += self._drain(now_ns)
        self._proxies.flush()
        if now_ns >= self._next_sweep_ns:
            self._sweep(now_ns)
        if not self._ready:
            self._maybe_ready()
        return work

    def _look_at_disks(self, now_ns: int) -> None:
        """Disks that were added, removed or replaced while we run."""
        changes = self._box_disks.look(now_ns)
        for disk in changes.came:
            self._proxies.add_disk(disk.name)
        for disk in changes.went:
            self._proxies.remove_disk(disk.name, self._outlet.on_set_aside)
            self._disks.forget(disk.name)
        for disk in changes.replaced:
            self._proxies.replace_disk(disk.name, self._outlet.on_set_aside)

    def _batch_and_send(self, now_ns: int) -> int:
        batcher = self._intake.batcher
        batcher.close_due(now_ns // 1_000_000)
        ready = batcher.take_ready()
        self._outlet.put(ready)
        return len(ready) + (self._outlet.send(now_ns) if self._outlet.waits else 0)

    def may_park(self) -> bool:
        self._source.doorbell.prepare_to_sleep()
        if self._proxies.has_completions() or self._image.is_stale or (self._drain_until_ns and not self._drained):
            self._source.doorbell.wake()
            return False
        return True

    def unpark(self) -> None:
        self._source.doorbell.wake()

    def park_ms(self) -> int:
        now_ns = self._clock.monotonic_ns()
        wait_ms = self._outlet.ms_to_next_try(now_ns, 20 if self._outlet.waits else PARK_MS_MAX)
        batch_ms = self._intake.batcher.wait_ms(now_ns // 1_000_000)
        return wait_ms if batch_ms is None else min(wait_ms, batch_ms)

    def begin_stop(self) -> None:
        """Take nothing new, but what has arrived already."""
        self._connections.accept(False)
        self._drain_until_ns = self._clock.monotonic_ns() + DRAIN_NS_MAX

    def stopped(self) -> bool:
        return self._drained and self._outlet.is_empty and self._previous_life.settled

    def close(self) -> None:
        self._datagrams.close()
        self._connections.close()
        self._intake.batcher.close_all()
        self._outlet.put(self._intake.batcher.take_ready())
        if lost := self._outlet.give_up():
            self._context.log.error(f"{lost} lines are lost that no log-writer took before the stop; counted as shutdown", reason="shutdown")
        self._previous_life.close()
        self._controller.close()
        self._proxies.close()
        self._source.close()
        self._update_in_flight()

    def status_line(self) -> str:
        return f"{len(self._connections)} senders, {self._outlet.describe()}"

    def _maybe_ready(self) -> None:
        """Ready when lines can be stored: the topic is there and one of its partitions is served. If all are led by other boxes, nothing here is awaited."""
        topic = self._topic_image
        if topic is None or self._drain_until_ns:
            return
        if self._is_elsewhere or any(self._view.placement(self._topic, partition) is not None for partition in range(len(topic.partitions))):
            self._ready = True
            self._connections.accept(True)
            self._datagrams.read(True)
            self._context.notifier.ready()

    def _drain(self, now_ns: int) -> int:
        """Stopping: what senders had sent by now is taken, then their connections are closed."""
        if self._drained:
            return 0
        self._datagrams.on_readable(0)
        is_drained = self._connections.drain() and (self._datagrams.drained or not self._datagrams.reading)
        if is_drained or now_ns >= self._drain_until_ns:
            self._datagrams.read(False)
            self._connections.close_all()
            self._intake.batcher.close_all()
            self._outlet.put(self._intake.batcher.take_ready())
            self._drained = True
        return 1

    def _sweep(self, now_ns: int) -> None:
        self._next_sweep_ns = now_ns + SWEEP_NS
        self._datagrams.count_kernel_drops()
        self._connections.look()
        self._update_in_flight()

    def _update_in_flight(self) -> None:
        counters = self._context.counters
        self._in_flight.set(max(0, read_ledger({label: counters.counter(label).value for label in counters.labels()}).in_flight))

    # -- news

    def _on_topic(self, topic: TopicImage | None) -> None:
        """The topic came, changed, went, or was made anew under the same name."""
        previous, self._topic_image = self._topic_image, topic
        if topic is None or not topic.partitions:
            self._topic_image = None
            return
        if previous is None or previous.topic_id != topic.topic_id:
            self._start_batching(len(topic.partitions))
        elif len(topic.partitions) > len(previous.partitions):
            self._intake.batcher.resize(len(topic.partitions))
        self._intake.batcher.limit(int(topic.config.get("max.message.bytes", self._context.box.integer("message.max.bytes"))))
        led_elsewhere = frozenset(number for number, partition in enumerate(topic.partitions) if partition.leader not in (NO_LEADER, self._view.broker_id))
        self._outlet.set_partitions([partition.disk or "" for partition in topic.partitions], led_elsewhere)
        self._tell_where(topic, len(led_elsewhere) == len(topic.partitions))

    def _tell_where(self, topic: TopicImage, is_elsewhere: bool) -> None:
        """Once, when the last partition went to other boxes, and when one came back."""
        if is_elsewhere == self._is_elsewhere:
            return
        self._is_elsewhere = is_elsewhere
        if is_elsewhere:
            leaders = ", ".join(map(str, sorted({partition.leader for partition in topic.partitions})))
            words = f"no partition of topic {topic.name} is led by this box (but by broker {leaders}): lines wait until one is, or are lost and counted"
            self._context.log.warning(words, topic=topic.name)
        else:
            self._context.log.notice(f"this box leads partitions of topic {topic.name} again", topic=topic.name)

    def _start_batching(self, partition_count: int) -> None:
        box = self._context.box
        old = self._intake.batcher
        old.close_all()
        self._outlet.put(old.take_ready())
        self._intake.batcher = Batcher(partition_count, box.integer("ingest.batch.bytes"), box.integer("ingest.batch.ms"), box.integer("message.max.bytes"))

    def _maybe_ask_for_topic(self, now_ns: int) -> None:
        """Without the topic nothing is read; ask the controller to create it, and again while it is not there."""
        if self._view.image.generation == 0 or now_ns < self._create_asked_ns:
            return
        self._create_asked_ns = now_ns + SWEEP_NS
        payload = orjson.dumps({"topics": {self._topic: self._context.box.integer("ingest.syslog.partitions")}})
        self._controller.request(AUTO_CREATE, payload, CREATE_TIMEOUT_MS, self._on_topic_answer)

    def _on_topic_answer(self, answer: bytes | None) -> None:
        self._image.is_stale = True
        code = orjson.loads(answer)["errors"].get(self._topic, 0) if answer else 0
        if code not in (0, 36):
            words = f"topic {self._topic} was not created by the controller (Kafka error {code}); it is asked again"
            self._context.log.warning(words, topic=self._topic, peer="controller")

    # -- log-writers

    def _on_completion(self, batch: OutgoingBatch, entry: tuple[int, ...]) -> None:
        self._outlet.on_completion(batch, entry)

    def _on_lost(self, batch: OutgoingBatch) -> None:
        self._outlet.on_lost(batch)

    def _on_connected(self, disk: str) -> None:
        self._image.is_stale = True

    def _on_gone(self, disk: str) -> None:
        self._context.log.info(f"log-writer@{disk} is gone; its lines wait until it is back", disk=disk, peer=f"log-writer@{disk}")

    def _writer_incarnation(self, disk: str) -> int | None:
        proxy = self._proxies.by_disk.get(disk)
        if proxy is None:
            return -1  # the disk was taken out of this box: nobody will complete anything
        return int(proxy.writer_info["incarnation"]) if proxy.serving else None

    def _on_blocked(self, blocked: frozenset[int]) -> None:
        """Disks went over their budget, or are below it again; or died, or came back."""
        self._intake.batcher.block(blocked)
        self._intake.batcher.avoid(self._outlet.dead)
        topic = self._topic_image
        if self._ready and not self._drained:
            self._datagrams.read(topic is None or len(blocked) < len(topic.partitions))
        self._connections.resume(blocked)
