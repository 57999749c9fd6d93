"""How a log-writer starts: find out how the last incarnation ended, then recover log after log.

* Same boot (only the process died): the rows of its table say where each log ends. Leading and following
  continue at once, from the image, under the same leader epoch. Partitions with other replicas are led
  again only while the box's lease lasts, because otherwise another replica may have been elected.
* Clean stop: no scan.
* Unclean boot: each log is scanned from its recovery point, and no partition leads before the controller
  has raised its leader epoch: unsynced batches that consumers have seen may be lost.

If the disk has no space for opening a log, that log waits, and the others are served; later a thread
recovers it (`open_late`), because scanning it may take longer than a turn may. Logs
without a free row or descriptor stay closed and untouched in this incarnation. Weak spot: logs of one
disk are recovered one after the other (disks are parallel, each has a process).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from appliance.base.errors import DiskFull, OutOfDescriptors, OutOfThreads
from appliance.base.layout import Disk
from appliance.base.model import FIRST_OFFSET, Offset, TopicId, TopicPartition
from appliance.cluster.metadata_image import ImageUnreadable, MetadataImage, TopicImage, read_image
from appliance.runtime.agent import ServiceContext
from appliance.runtime.known_disks import KnownDisk, read_known_disk, write_known_disk
from appliance.shm.lease import lease_holds
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER, ROWS, PartitionTableWriter, Row, TableFull
from appliance.storage import file_io
from appliance.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from appliance.storage.known_segments import NONE_KNOWN
from appliance.storage.log import Log
from appliance.storage.log_damage import LostRange
from appliance.storage.log_directory import LogDirectory
from appliance.storage.move_record import read_move
from appliance.storage.recovery import Clean, Recovery, SameBoot, Unclean
from services.log_writer.background.background_task import BackgroundTask
from services.log_writer.background.disk_trouble import FAILURES_LABEL, check_not_swapped
from services.log_writer.command_queue import lead
from services.log_writer.directory_generation import Age, DirectoryGeneration
from services.log_writer.previous_incarnations import PreviousTables
from services.log_writer.recovery_progress import OPEN_BYTES, RecoveryProgress, share_of
from services.log_writer.replicas.replica import Replica, ReplicationTerms
from services.log_writer.replicas.replicas_of_disk import DescriptorBudget, ProducerSettings, Replicas

CLEAN_STOP = "clean"
SAME_BOOT = "same"
UNCLEAN_BOOT = "unclean"


class _Opening(NamedTuple):
    """How a log is to be opened."""

    name: TopicPartition
    topic_id: TopicId
    topic: TopicImage | None
    recovery: Recovery
    log_start_offset: Offset
    high_watermark: Offset
    has_moved: bool


class LogWriterStartup:
    """The work between the process's start and its first source."""

    def __init__(self, context: ServiceContext, disk: Disk, table: PartitionTableWriter) -> None:
        self._context = context
        self._disk = disk
        box = context.box
        new_directory_id = str(TopicId(os.urandom(16)))
        try:
            check_not_swapped(box.state_directory, disk.path)
        except OSError as error:
            raise file_io.storage_failure(f"look into log directory {disk.path}", error) from error
        self.directory = LogDirectory.open(disk.path, box.broker_id, box.cluster_id or None, context.clock, new_directory_id)
        self.replaces = self._remember(box.state_directory)
        producers = ProducerSettings(box.integer("producer.id.expiration.ms"), box.flag("transaction.partition.verification.enable"))
        terms = ReplicationTerms(box.broker_id, box.integer("replica.lag.time.max.ms") * 1_000_000, context.clock)
        self.partitions = Replicas(self.directory, table, context.clock, terms, producers)
        self._previous = PreviousTables(context.layout, disk.name, table.shared.name)
        self.boot = CLEAN_STOP if self.directory.was_clean else SAME_BOOT if self._previous.is_same_boot else UNCLEAN_BOOT
        self.generation, self._known_ends = self._check_age(box.state_directory)
        self._checkpoints = self.directory.checkpoints
        self._image = self._read_image()
        self._waiting = self._known_partitions()
        self._total = len(self._waiting)
        self._started_ns = context.clock.monotonic_ns()
        self._progress = RecoveryProgress(self._shares(), table, context.clock, context.notifier.status)
        self._cut_bytes = 0
        self._lost = context.counters.gauge("log_writer.lost_offsets")
        self.recovery_points_went_back = False
        """Whether a log now ends below what the checkpoint promises of it: that must be written
        down anew."""
        self._led_at_once = 0
        self._is_registered = lease_holds(context.layout, context.clock.boottime_ns())
        """Whether this box's registration in the cluster surely stands."""
        self.moved_here: list[Replica] = []
        """Logs that still have the record of their move in them: the checkpoints do not speak for
        them yet."""
        self._is_synced = False
        """Whether the file system was synced since we started."""
        self._short_of_space: list[tuple[TopicPartition, TopicId]] = []
        self._loading = BackgroundTask("late-log", f"recover a log of {disk.path}")
        self._loaded: deque[Log] = deque()
        """What the thread has opened and no turn has taken."""
        self._has_let_go = False
        self._space_problem = ""
        self._left: list[TopicPartition] = []
        logs_max = DescriptorBudget().logs_max
        if logs_max < ROWS:
            words = f"disk {disk.name} can serve about {logs_max} partitions (of {ROWS}): the limit of open files is {DescriptorBudget().limit}"
            context.log.notice(words, disk=disk.name)

    def _remember(self, state_directory: str) -> tuple[str, ...]:
        """Which directory this is, for the case that it is not there one day; returns the ids of
        those that it stands for.
        """
        known = read_known_disk(state_directory, self._disk.path)
        directory_id = self.directory.identity.directory_id
        if known.directory_id != directory_id:
            self._context.counters.counter(FAILURES_LABEL).set(0)
            try:
                write_known_disk(state_directory, KnownDisk(self._disk.path, directory_id, known.replaces))
            except OSError as error:
                words = f"could not write down that {self._disk.path} is directory {directory_id}: {(error.strerror or str(error)).lower()}"
                self._context.log.warning(words, disk=self._disk.name)
        return known.replaces

    def _check_age(self, state_directory: str) -> tuple[DirectoryGeneration, dict[tuple[TopicPartition, TopicId], Offset]]:
        """Report a directory that was restored from a copy, and distrust it: no log of it leads
        before its leader epoch has grown, and its in-sync sets are left, as after a power cut.
        """
        path, log = self._disk.path, self._context.log
        ends: dict[tuple[TopicPartition, TopicId], Offset] = {}
        try:
            generation = DirectoryGeneration(state_directory, path, self.directory.identity.directory_id)
            if generation.age is Age.OLD_DIRECTORY:
                self.boot, ends = UNCLEAN_BOOT, generation.known_ends()
                words = f"log directory {path} is older than its box remembers ({generation.words}): it was restored from a copy, or used elsewhere"
                log.critical(f"{words}. Replicas on other boxes have what it lacks, or it is lost; no offset is given again", disk=self._disk.name)
            elif generation.age is Age.OLD_STATE:
                words = f"state directory {state_directory} is older than log directory {path} ({generation.words}): it was restored from a copy"
                log.critical(f"{words}. Replayed senders and spooled records of that time may be stored again", disk=self._disk.name)
            self._context.counters.gauge("log_writer.old_copy").set(generation.age.value)
            if self.boot != SAME_BOOT:
                generation.advance()
        except OSError as error:
            raise file_io.storage_failure(f"begin a generation of {path}", error) from error
        return generation, ends

    def _read_image(self) -> MetadataImage:
        try:
            return read_image(self._context.layout.image_file) or MetadataImage.empty()
        except ImageUnreadable:
            return MetadataImage.empty()

    def _known_partitions(self) -> list[tuple[TopicPartition, TopicId]]:
        """What to open.

        A directory whose topic id cannot be read is not served and not touched: whose records it
        holds is not known.
        """
        known = []
        for name, found in self.directory.partition_directories().items():
            if found.topic_id is not None:
                known.append((name, found.topic_id))
        for problem in self.directory.problems:
            self._context.log.error(f"{problem}; left as it is", disk=self._disk.name)
        for unknown in self.directory.unknown_names:
            self._context.log.notice(f"{self._disk.path}/{unknown} is not ours; left as it is", disk=self._disk.name)
        return known

    def _shares(self) -> dict[TopicPartition, int]:
        """What opening each log will read, about."""
        if self.boot != UNCLEAN_BOOT:
            return {name: OPEN_BYTES for name, _ in self._waiting}
        first_bytes_max = self._context.box.integer("log.flush.unflushed.bytes")
        points = self._checkpoints.lines[RECOVERY_POINTS]
        return {name: share_of(f"{self._disk.path}/{name}", points.get(name, FIRST_OFFSET), first_bytes_max) for name, _ in self._waiting}

    def recover_next(self) -> bool:
        """Open one more log.

        Return False if all are open that can be; then, if none waits for space, the tables of
        earlier incarnations are removed.
        """
        if not self._waiting:
            self._checkpoints.unserved.update(self._left, (name for name, _ in self._short_of_space))
            self.partitions.waiting = self._short_of_space
            if not self._short_of_space:
                self._previous.forget()
            return False
        name, topic_id = self._waiting.pop()
        try:
            self._recover(name, topic_id)
        except DiskFull as failure:
            self._short_of_space.append((name, topic_id))
            self._space_problem = str(failure)
        except (TableFull, OutOfDescriptors) as failure:
            self._leave([name, *(name for name, _ in self._waiting)], str(failure))
            self._waiting.clear()
        return True

    def _recover(self, name: TopicPartition, topic_id: TopicId) -> None:
        self._progress.begin(name)
        try:
            opening = self._opening(name, topic_id)
            self._serve(opening, self._load(opening, self._progress.on_scanned))
        except (DiskFull, TableFull, OutOfDescriptors):
            self._progress.put_off(name)  # or left, which skips it
            raise
        self._progress.end()

    def _load(self, opening: _Opening, on_scanned: Callable[[int], None] = lambda _: None) -> Log:
        config = opening.topic.config if opening.topic else {}
        return self.partitions.load(opening.name, opening.topic_id, config, opening.recovery, opening.log_start_offset, on_scanned)

    def _serve(self, opening: _Opening, log: Log) -> None:
        replica = self.partitions.add(log, opening.high_watermark)
        replica.is_moving = opening.topic is not None and _is_moving(opening.topic, opening.name.partition)
        if opening.has_moved:
            self.moved_here.append(replica)
        self._cut_bytes += replica.log.recovered_cut_bytes
        self.recovery_points_went_back |= replica.log.recovery_point < self._checkpoints.lines[RECOVERY_POINTS].get(opening.name, FIRST_OFFSET)
        self._report_damage(replica)
        if self.boot == SAME_BOOT:
            self._serve_again(replica)
        elif self.boot == UNCLEAN_BOOT:
            replica.needs_epoch_bump = True

    def _report_damage(self, replica: Replica) -> None:
        """Write down and report what a log lacks, until it leads or follows.

        After a clean stop a log ends at its recovery point; after a power cut it holds what is below
        it. If it ends before, or lacks segments, its files were changed beside the log-writer.
        """
        name, log = replica.topic_partition, replica.log
        recovery_point = self._checkpoints.lines[RECOVERY_POINTS].get(name, FIRST_OFFSET)
        recovery_point = max(recovery_point, self._known_ends.get((name, replica.topic_id), FIRST_OFFSET))
        found = list(log.lost_at_open)
        if self.boot != SAME_BOOT and log.log_end_offset < recovery_point:
            found.append(LostRange(log.log_end_offset, recovery_point))
        if self.boot == UNCLEAN_BOOT and self._checkpoints.lines[LOG_START_OFFSETS].get(name, log.log_start_offset) < log.log_start_offset:
            replica.needs_checkpoints = True  # once it grows, a start that is not on record would count as damage
        log.damage.remember(found)
        log.damage.forget_below(log.log_start_offset)
        if log.damage.ranges:
            self.partitions.damaged.append(replica)
        for lost in log.damage.open:
            replica.needs_epoch_bump = True
            self._lost.set(self._lost.value + lost.until - lost.first)
            where = "at its start" if lost.until <= log.log_start_offset else "at its end" if lost.until > log.log_end_offset else "between its segments"
            words = (
                f"log {name} of {self._disk.path} lacks {lost.until - lost.first} offsets {where}, {lost.first} to {lost.until - 1}: its files were changed"
                " beside the log-writer, or its disk lost them. A replica on another box has them, or they are lost; they are not given to other records."
                " What was cut off is in files *.damaged of its directory"
            )
            self._context.log.critical(words, **name._asdict(), disk=self._disk.name)

    def _leave(self, names: list[TopicPartition], why: str) -> None:
        self._left += names
        shown = ", ".join(map(str, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        self._context.log.error(f"{len(names)} logs of {self._disk.path} are left as they are and not served ({shown}): {why}", disk=self._disk.name)
        for name in names:
            self._progress.skip(name)  # it will not be better known later

    @property
    def waits_for_space(self) -> str:
        """Why logs that are there are not open yet; empty when all are."""
        return self._space_problem if self._short_of_space else ""

    def open_late(self) -> bool:
        """Go on with those that wait for space: a thread recovers one after the other.

        Return whether something was done. Raises DiskFull while there is none.
        """
        if self._loading.is_running:
            return False
        name, topic_id = self._short_of_space[-1]
        replica = self.partitions.find(topic_id, name.partition)
        if self._loading.has_ended:
            self.partitions.loading = None
            try:
                self._loading.finish()
            except OutOfThreads:
                return False  # the next turn tries again
            except (TableFull, OutOfDescriptors) as failure:
                self._leave([name], str(failure))
            else:
                self._checkpoints.unserved.discard(name)
                self._progress.skip(name)
        elif name not in self._checkpoints.unserved:
            self._progress.skip(name)  # deleted, or created again
        elif replica is not None:  # it was opened, and could not write down that it leads
            if replica.role not in (ROLE_LEADER, ROLE_FOLLOWER) and self.boot == SAME_BOOT:
                self._serve_again(replica)
            self._checkpoints.unserved.discard(name)
            self._progress.skip(name)
        else:
            opening = self._opening(name, topic_id)
            self.partitions.loading = name
            self._loading.start(lambda: self._load_late(opening), lambda _: self._serve(opening, self._loaded.pop()))
            return True
        self._short_of_space.pop()
        if not self._short_of_space:
            self._previous.forget()
        return True

    def _load_late(self, opening: _Opening) -> None:
        self._loaded.append(self._load(opening))
        if self._has_let_go:
            self._abandon_loaded()

    def _abandon_loaded(self) -> None:
        try:
            self._loaded.pop().abandon()
        except IndexError:
            pass  # the other thread has done so, or there is none

    def let_go(self) -> None:
        """The disk is not used any more: what a thread has opened, or is about to, is closed."""
        self._has_let_go = True
        self._abandon_loaded()

    def close(self, timeout_seconds: float) -> None:
        """Wait for the thread that recovers a log; what it opened is not served any more."""
        self.let_go()
        self._loading.join(timeout_seconds)

    def _opening(self, name: TopicPartition, topic_id: TopicId) -> _Opening:
        if self._previous.is_suspect:
            self.directory.forget_pages(name)
        elif self.boot == UNCLEAN_BOOT:  # the machine may still be up: a box that ends removes its tables, even after its disk failed
            self.directory.forget_pages(name, self._checkpoints.lines[RECOVERY_POINTS].get(name, FIRST_OFFSET))
        row = self._previous.rows.get((topic_id, name.partition)) if self.boot == SAME_BOOT else None
        has_moved = self._take_move_record(name)
        topic = self._image.topics_by_id.get(topic_id)
        high_watermark = row.high_watermark if row is not None else self._checkpoints.lines[HIGH_WATERMARKS].get(name, FIRST_OFFSET)
        # The row is of this topic id, and never older.
        log_start_offset = self._checkpoints.lines[LOG_START_OFFSETS].get(name, FIRST_OFFSET) if row is None else row.log_start_offset
        return _Opening(name, topic_id, topic, self._recovery(name, row), log_start_offset, high_watermark, has_moved)

    def _take_move_record(self, name: TopicPartition) -> bool:
        """Whether a log came from another disk, and its record may say more than the checkpoints:
        then they say it too, from here on.
        """
        path = f"{self._disk.path}/{name}"
        try:
            record = read_move(path)
        except ValueError as problem:
            self._context.log.error(f"{path}: {problem}; left as it is", **name._asdict(), disk=self._disk.name)
            return False
        except OSError as error:
            raise file_io.storage_failure(f"read {path}", error) from error
        if record is None or record.complete is None:
            return record is not None
        self._checkpoints.raise_to(name, record.complete.checkpoint_lines())
        return True

    def _recovery(self, name: TopicPartition, row: Row | None) -> Recovery:
        recovery_point = self._checkpoints.lines[RECOVERY_POINTS].get(name, FIRST_OFFSET)
        if self.boot == CLEAN_STOP:
            return Clean(self.directory.segments.get(name, NONE_KNOWN))
        if row is not None:
            return SameBoot(row.log_end_offset, row.active_base_offset, row.active_position, recovery_point)
        return Unclean(recovery_point, self.directory.segments.get(name, NONE_KNOWN), name in self._checkpoints.lines[LOG_START_OFFSETS])

    def _serve_again(self, replica: Replica) -> None:
        """Lead or follow under the leader epoch of the last incarnation, if the image has the same
        one: produce, fetch and replication do not wait for the controller. A partition with other
        replicas is led only while this box's lease lasts: until then no other replica can have been
        elected.
        """
        row = self._previous.rows.get((replica.topic_id, replica.topic_partition.partition))
        topic = self._image.topics_by_id.get(replica.topic_id)
        if row is not None and row.leader_epoch < 0 <= replica.log.leader_epochs.latest:
            # The last incarnation never led it: after an unclean boot the controller may not have raised its epoch yet.
            replica.needs_epoch_bump = True
        if row is None or topic is None or replica.topic_partition.partition >= len(topic.partitions):
            return
        should_be = topic.partitions[replica.topic_partition.partition]
        if should_be.leader_epoch != row.leader_epoch:
            return
        broker_id = self._context.box.broker_id
        if row.role == ROLE_LEADER and should_be.leader == broker_id:
            if len(should_be.replicas) > 1 and not self._is_registered:
                return  # another replica may lead by now; the controller decides
            if replica.log.config.acknowledges_after_flush:
                self._make_durable(replica)
            # No partition epoch: the image may be older than the last ISR that the dead incarnation received or
            # proposed, so every replica counts until the controller sends one.
            lead(replica, row.leader_epoch, should_be.isr, should_be.replicas, row.config_generation)
            self._led_at_once += 1
        elif row.role == ROLE_FOLLOWER and should_be.leader != broker_id and broker_id in should_be.replicas:
            replica.follow(row.leader_epoch, should_be.isr, should_be.replicas, row.config_generation)

    def _make_durable(self, replica: Replica) -> None:
        """Sync what was perhaps neither acknowledged nor synced when the last incarnation ended.

        Nothing is appended before this one serves, so one sync of the file system suffices for all
        logs.
        """
        flush = replica.log.plan_batch_flush()
        if flush is None:
            return
        if not self._is_synced:
            self.directory.sync_file_system()
            self._is_synced = True
        replica.log.on_batches_flushed(flush)

    def progress(self) -> str:
        return f"recovering {self._progress}"

    def summary(self) -> str:
        """One line for the log when it serves."""
        elapsed_ms = (self._context.clock.monotonic_ns() - self._started_ns) // 1_000_000
        how = {CLEAN_STOP: "after a clean stop", SAME_BOOT: "after its process died", UNCLEAN_BOOT: "after an unclean boot"}
        cut = f", cut {self._cut_bytes} bytes of unfinished appends" if self._cut_bytes else ""
        if not self._total:
            return f"opened {self._disk.path}, which holds no log yet"
        opened = len(self.partitions)
        missing = f", {len(self._left)} are left unserved" if self._left else ""
        if self._short_of_space:
            missing += f", {len(self._short_of_space)} wait for space ({self._space_problem})"
        count = f"{opened} of {self._total}" if opened != self._total else f"{opened}"
        return f"opened {count} logs of {self._disk.path} in {elapsed_ms} ms {how[self.boot]}, leads {self._led_at_once} at once{cut}{missing}"


def _is_moving(topic: TopicImage, partition: int) -> bool:
    """Whether the image says that the partition is being moved away: then its log is not compacted,
    from the first turn on.
    """
    return partition < len(topic.partitions) and topic.partitions[partition].moving_to is not None
