"""The work of one mirror: rounds that copy what the sources' fetches brought, each in one transaction on the target.

A round has the records, and behind them the positions that follow in each source, as offsets of one group per
source. So a mirror that is killed anywhere goes on at the positions in the target, and every record is there
once, in the order of its partition (docs/mirroring.md, "Failures"). Nothing is kept outside of the target.

Owned by one thread; `step` is one turn. After any failure of the target the transaction is given up, the
producer begins anew, which fences a former mirror of this name, and positions are read again. Weak spot: the
target blocks the turn for at most DELIVERY_TIMEOUT_MS, while the sources' answers wait in their sockets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER, Offset, TopicPartition
from appliance.client.admin import settings_of_topics, try_list_offsets
from appliance.client.cluster import ClusterClient, ClusterMetadata, Sleep, TopicMetadata
from appliance.client.connection import await_readable
from appliance.client.errors import ClientFailed
from appliance.client.groups import CommittedOffset
from appliance.client.transaction import TransactionalProducer
from appliance.protocol.offset_apis import LATEST_TIMESTAMP
from services.mirror.batch_copy import CopiedBatch, OffsetRuns
from services.mirror.group_offsets import translate_groups
from services.mirror.mirror_file import ClusterOptions, MirrorOptions
from services.mirror.source import COPYING, GONE, RETRYING, STOPPED, MirroredPartition, MirrorSource, RetryPause
from services.mirror.target_topics import prepare_topics, read_origins, read_positions
from services.mirror.topic_rules import RECREATED, CopiedTopic, LeftOut, Resumption, is_selected, plan_topics, self_copy_problem, write_note

ROUND_BYTES: Final = 4 * 1024 * 1024
"""A round begins before its time when so much is fetched."""
WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
DELIVERY_TIMEOUT_MS: Final = 8_000
TRANSACTION_TIMEOUT_MS: Final = 60_000
LONGEST_PAUSE_MS: Final = 30_000
LOST: Final = "the target has records but no position of this mirror, so records may be copied again"
DELETED: Final = "the topic is deleted in the source"
POSITIONS_AGE_MS_MAX: Final = 3_600_000
"""Positions are committed again after this time, so that the target does not delete them (offsets.retention.minutes)."""
WAIT_MS_MAX: Final = 500
STALE_MS: Final = 500
"""Between two reads of the topics of a source after something there has changed."""
SOURCE_CONNECT_MS: Final = 2_000

MISSING_TOPIC: Final = frozenset((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID))
REFUSED_JOINS: Final = MISSING_TOPIC | {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
OF_THE_PRODUCER: Final = frozenset(
    (
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    )
)
"""Answers to a produce that say nothing about its partition."""

TOO_LARGE: Final = frozenset((ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE))


class MirrorFenced(Exception):
    """Another process runs the mirror of this name."""


class _Share(NamedTuple):
    """What a round takes of one partition; `next_offset` is the position behind it."""

    source: MirrorSource
    partition: MirroredPartition
    batches: list[CopiedBatch]
    next_offset: Offset


class Mirror:
    """`step` until the end, then `close`."""

    def __init__(self, options: MirrorOptions, clock: Clock, notice: Callable[[str], None], sleep: Sleep) -> None:
        """`notice` gets sentences for the log. `sleep` may raise to end the mirror; so may `notice`."""
        self.options = options
        self.clock = clock
        self.target = _client(options.target, clock, sleep, 5_000)
        self.sources = [MirrorSource(each, _client(each.cluster, clock, sleep, SOURCE_CONNECT_MS), options.group_of(each)) for each in options.sources]
        self.on_progress: Callable[[], None] = lambda: None
        """Called between the steps of turns that may take minutes; it may raise to end the mirror."""
        self.rounds = self.failed_rounds = 0
        self.problem = ""
        """of the target"""
        self.pause = RetryPause(LONGEST_PAUSE_MS)
        self._notice = notice
        self._producer = TransactionalProducer(
            self.target,
            options.transactional_id,
            timeout_ms=TRANSACTION_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            waiting_bytes_max=WAITING_BYTES_MAX,
        )
        self.is_begun = False
        self._blamed: MirroredPartition | None = None
        self._target_cluster_id: str | None = None
        self._is_writing = False
        """True from the begin of a transaction until one is committed: a failure between is over then, and no sooner."""
        self._said: set[tuple[str, str, str]] = set()
        self._kept: set[str] = set()
        self._last_round_ms = 0
        now_ms = clock.monotonic_ms()
        self.topics_due_ms = {source.name: now_ms for source in self.sources}
        self._refreshed_ms = {source.name: now_ms - STALE_MS for source in self.sources}
        self._leader_pauses = {source.name: RetryPause(options.topics_ms) for source in self.sources}
        self._groups_due_ms = now_ms + options.groups_ms
        self._positions_due_ms = now_ms + POSITIONS_AGE_MS_MAX

    def close(self) -> None:
        """Drop all connections; an open transaction is aborted by the next mirror of this name, or by its time-out."""
        self._producer.close()
        for source in self.sources:
            source.close()
        self.target.close()

    def step(self) -> None:
        """One turn: at most half a second if nothing is to be done. Raises MirrorFenced."""
        now_ms = self.clock.monotonic_ms()
        if now_ms < self.pause.until_ms:
            self.target.sleep(min(self.pause.until_ms - now_ms, WAIT_MS_MAX) / 1000)
            return
        try:
            if not self.is_begun:
                self._begin()
            for source in self.sources:
                self._maybe_refresh(source)
            self._commit_first_positions()
            self._copy()
            self._maybe_translate()
            if not self._is_writing:
                self._end_problem()
        except (ClientFailed, RequestRefused) as error:
            self.on_target_failed(error)
        for source in self.sources:
            self._take_notices(source)

    # --- the target

    def _begin(self) -> None:
        self._producer.begin()
        for source in self.sources:
            source.positions = read_positions(self.target, source.group_id)
            for partition in source.partitions.values():
                source.resume(partition)
        self._target_cluster_id = self.target.metadata([]).cluster_id
        self.is_begun = True

    def on_target_failed(self, error: Exception, refused: MirroredPartition | None = None) -> None:
        """Give the transaction up. `refused`: the one partition to blame, which pauses; otherwise the target does."""
        now_ms = self.clock.monotonic_ms()
        self.is_begun = False
        if isinstance(error, RequestRefused) and error.code == ErrorCode.PRODUCER_FENCED:  # to begin anew would fence it in turn, for ever
            raise MirrorFenced(f"another process runs mirror {self.options.name}, or this one stood still for a minute: {error.message}")
        text = error.message if isinstance(error, RequestRefused) else str(error)
        if refused is not None:
            if text != refused.problem:
                self._notice(f"{refused.target} of the target: {text}; retrying")
            refused.is_refused = True
            refused.refusals += 1
            refused.joins &= not (isinstance(error, RequestRefused) and error.code in TOO_LARGE)
            self._is_writing = False
            refused.fail(text, now_ms)
            return
        if text != self.problem:
            self._notice(f"target: {text}; retrying")
        self.problem = text
        self.pause.begin(now_ms)

    def _end_problem(self) -> None:
        if self.problem:
            self._notice("target: writing again")
        self.problem = ""

    # --- topics

    def _maybe_refresh(self, source: MirrorSource) -> None:
        """Look at the source's topics, if it is time for it; failures of the source concern the source only."""
        now_ms = self.clock.monotonic_ms()
        due_ms = self.topics_due_ms[source.name]
        if source.is_stale:
            due_ms = min(due_ms, self._refreshed_ms[source.name] + STALE_MS)
        if now_ms < max(due_ms, source.pause.until_ms):
            return
        self._refreshed_ms[source.name] = now_ms
        try:
            found = source.cluster.metadata()
            source.origins = read_origins(source.cluster, self.on_progress)
            selected = self._selected(source, found)
            settings = settings_of_topics(source.cluster, selected) if self.options.copies_settings else {}
        except (ClientFailed, RequestRefused) as error:
            source.fail(error)
            return
        source.cluster_id = found.cluster_id
        options = source.options
        is_target = found.cluster_id is not None and found.cluster_id == self._target_cluster_id
        if is_target and (problem := self_copy_problem(selected, options.prefix, options.topics, options.exclude)) is not None:
            source.fail(RequestRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem))
            return
        copied, left_out = plan_topics(selected, options.prefix, self._target_cluster_id, source.origins)
        changes = prepare_topics(self.target, self.options, settings, found, copied, self.on_progress)
        source.is_stale = False
        self.topics_due_ms[source.name] = now_ms + self.options.topics_ms
        for text in changes.notices + sorted(set(changes.kept) - self._kept):
            self._notice(text)
        self._kept.update(changes.kept)
        self._set_left_out(source, left_out + changes.refused)
        for topic in changes.usable:
            self._add_partitions(source, topic, found.topics[topic.source])
        self._mark_gone(source, {topic.source for topic in copied}, set(found.topics))
        try:
            source.find_starts([each for each in source.partitions.values() if each.next_offset < 0 and each.leader != NO_LEADER and each.state != STOPPED])
        except (ClientFailed, RequestRefused) as error:
            source.fail(error)
            return
        self.plan_next_look(source, now_ms)

    def plan_next_look(self, source: MirrorSource, now_ms: int) -> None:
        """Wait for leaders with pauses that double: a partition may have none for ever, and each time all topics of both clusters are asked for."""
        pause = self._leader_pauses[source.name]
        if source.is_stale or any(each.leader == NO_LEADER and each.state not in (GONE, STOPPED) for each in source.partitions.values()):
            pause.begin(now_ms)
            self.topics_due_ms[source.name] = min(pause.until_ms, self.topics_due_ms[source.name])
            source.is_stale = False
        else:
            pause.end()

    def _selected(self, source: MirrorSource, found: ClusterMetadata) -> list[str]:
        options = source.options
        return [name for name, topic in found.topics.items() if not topic.is_internal and is_selected(name, options.topics, options.exclude)]

    def _add_partitions(self, source: MirrorSource, topic: CopiedTopic, found: TopicMetadata) -> None:
        for each in found.partitions:
            name = TopicPartition(topic.source, each.partition)
            partition = source.partitions.get(name)
            if partition is None:
                partition = source.partitions[name] = MirroredPartition(name, TopicPartition(topic.target, each.partition), found.topic_id)
                source.resume(partition)
            elif partition.topic_id != found.topic_id:
                partition.topic_id = found.topic_id
                source.on_change(partition, Resumption(0, RECREATED))
            elif partition.state == GONE:
                partition.succeed()
            partition.leader = each.leader

    def _mark_gone(self, source: MirrorSource, copied: set[str], existing: set[str]) -> None:
        for name, partition in list(source.partitions.items()):
            if name.topic in copied:
                continue
            if name.topic in existing:  # not selected any more, or found to be a loop
                del source.partitions[name]
            elif partition.state != GONE:
                self._notice(f"{name} of source {source.name}: {DELETED}")
                partition.state, partition.problem, partition.leader = GONE, DELETED, NO_LEADER
                partition.source_changes += 1

    def _set_left_out(self, source: MirrorSource, left_out: list[LeftOut]) -> None:
        source.left_out = left_out
        said = {(source.name, *each) for each in left_out}
        for each in sorted(said - self._said):
            self._notice(f"topic {each[1]!r} of source {source.name} is not copied: {each[2]}")
        self._said = said | {each for each in self._said if each[0] != source.name}

    def _commit_first_positions(self) -> None:
        """Before anything is copied from a partition its position says so, for mirrors that would copy it back."""
        unknown = self.find_lost_positions()
        new = [(source, each) for source in self.sources for each in source.partitions.values() if _is_first(each) and each not in unknown]
        if not new:
            return
        self._commit_positions([_Share(source, each, [], each.next_offset) for source, each in new], [each.runs for _, each in new])
        for source in {source for source, _ in new}:
            try:
                source.origins = read_origins(source.cluster, self.on_progress)
            except (ClientFailed, RequestRefused) as error:
                source.fail(error)
            else:
                loops = {name for name, origins in source.origins.items() if (self._target_cluster_id or "") in origins}
                source.is_stale |= any(each.source.topic in loops for each in source.partitions.values())
        for _, each in new:
            each.needs_commit = False
            each.committed = each.next_offset

    def find_lost_positions(self) -> set[MirroredPartition]:
        """A partition without a position whose target has records: the target has deleted the position, or another program wrote there.

        Returns the partitions whose target does not say whether it has records; it is asked again after a pause."""
        now_ms = self.clock.monotonic_ms()
        new = [(source, each) for source in self.sources for each in source.partitions.values() if _is_first(each) and each.committed < 0]
        asked = [(source, each) for source, each in new if now_ms >= each.pause.until_ms]
        unknown = {each for _, each in new} - {each for _, each in asked}
        if not asked:
            return unknown
        targets, writers = {each.target for _, each in asked}, self._writers()
        self.target.metadata({target.topic for target in targets})  # a topic may just have grown
        ends, _ = try_list_offsets(self.target, targets, LATEST_TIMESTAMP)
        for source, partition in asked:
            if partition.target not in ends:
                partition.pause.begin(now_ms)
                unknown.add(partition)
            elif ends[partition.target].offset > 0 and writers[partition.target] == 1 and partition.problem != LOST:
                source.on_change(partition, Resumption(partition.next_offset, LOST))
        return unknown

    # --- rounds

    def _copy(self) -> None:
        for source in self.sources:
            source.send_fetches()
        self._receive()
        shares = [_Share(source, each, each.batches, each.next_offset) for source in self.sources for each in source.partitions.values() if each.batches]
        now_ms = self.clock.monotonic_ms()
        size_bytes = sum(len(batch.encoded) for share in shares for batch in share.batches)
        if shares and (size_bytes >= ROUND_BYTES or now_ms - self._last_round_ms >= self.options.round_ms):
            self._last_round_ms = now_ms
            self._run_round(shares)
        elif now_ms >= self._positions_due_ms:
            partitions = [(source, each) for source in self.sources for each in source.partitions.values() if each.committed >= 0 and not each.batches]
            self._commit_positions([_Share(source, each, [], Offset(each.position)) for source, each in partitions], [each.runs for _, each in partitions])
            self._positions_due_ms = now_ms + POSITIONS_AGE_MS_MAX

    def _receive(self) -> None:
        waiting = {connection: (source, leader) for source in self.sources for connection, leader in source.waiting().items()}
        now_ms = self.clock.monotonic_ms()
        has_batches = any(each.batches for source in self.sources for each in source.partitions.values())
        wait_ms = min(WAIT_MS_MAX, max(0, self._last_round_ms + self.options.round_ms - now_ms)) if has_batches else WAIT_MS_MAX
        if not waiting:
            self.target.sleep(min(wait_ms, 100) / 1000)
        for connection in await_readable(waiting, wait_ms) if waiting else ():
            source, leader = waiting[connection]
            if leader in source.long_polls:
                source.receive(leader)
        for source in self.sources:
            source.drop_silent()

    def _run_round(self, shares: list[_Share]) -> None:
        stored: dict[TopicPartition, list[int]] = {}
        for share in shares:
            share.partition.batches, share.partition.in_round = [], True
        for source in self.sources:
            source.send_fetches()  # the brokers read while the target writes
        self._blamed, self._is_writing = None, True
        try:
            self._join(shares)
            sender = self._producer.sender
            sender.on_stored = lambda partition, base_offset, batch: stored.setdefault(partition, []).append(base_offset)
            for share in shares:
                for batch in share.batches:
                    self._producer.append(share.partition.target, bytes(batch.encoded))
            self._producer.flush()
            runs = _runs_behind(shares, stored)
            self._commit_positions(shares, runs)
        except (ClientFailed, RequestRefused) as error:
            self.failed_rounds += 1
            failed = self._producer.sender.failed
            if failed is not None and isinstance(error, RequestRefused) and error.code not in OF_THE_PRODUCER:
                self._blamed = next((share.partition for share in shares if share.partition.target == failed), None)
            if isinstance(error, RequestRefused) and error.code in MISSING_TOPIC:
                for source in self.sources:
                    source.is_stale = True
            self.on_target_failed(error, self._blamed)
            return
        for share, share_runs in zip(shares, runs, strict=True):
            self._on_copied(share, share_runs)

    def _join(self, shares: list[_Share]) -> None:
        """Let the transaction go over the partitions. If that is refused, find the one to blame, and raise."""
        try:
            self._producer.join(share.partition.target for share in shares)
        except RequestRefused as error:
            if error.code not in REFUSED_JOINS:
                raise
            for share in shares:
                self._blamed = share.partition
                self._producer.join([share.partition.target])
            self._blamed = None
            raise

    def _on_copied(self, share: _Share, runs: OffsetRuns) -> None:
        partition = share.partition
        partition.in_round = False
        partition.committed = share.next_offset
        partition.runs = runs
        if partition.is_refused:
            self._notice(f"{partition.target} of the target: writing again")
        if partition.state in (COPYING, RETRYING):
            partition.succeed()
        for batch in share.batches:
            partition.records += batch.records_count
            partition.bytes += len(batch.encoded)
            partition.rebuilt_batches += batch.is_rebuilt

    def _commit_positions(self, shares: list[_Share], runs: list[OffsetRuns]) -> None:
        """Commit the transaction with the positions behind the shares."""
        self._is_writing = True
        by_group: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        for (source, partition, _, next_offset), share_runs in zip(shares, runs, strict=True):
            note = write_note(source.note_of(partition, share_runs))
            by_group.setdefault(source.group_id, {})[partition.target] = CommittedOffset(next_offset, note)
        for group_id, positions in by_group.items():
            self._producer.commit_offsets(group_id, positions)
        self._producer.commit()
        self._is_writing = False
        self.pause.end()
        self._end_problem()
        self.rounds += 1

    # --- groups, notices

    def _maybe_translate(self) -> None:
        now_ms = self.clock.monotonic_ms()
        if now_ms < self._groups_due_ms:
            return
        self._groups_due_ms = now_ms + self.options.groups_ms
        writers = self._writers()
        for source in self.sources:
            if source.options.groups and not source.problem:
                translate_groups(source, self.target, {name: each for name, each in source.partitions.items() if writers[each.target] == 1}, self.on_progress)

    def _writers(self) -> Counter[TopicPartition]:
        """Return how many partitions of sources each partition of the target has."""
        return Counter(each.target for source in self.sources for each in source.partitions.values())

    def _take_notices(self, source: MirrorSource) -> None:
        for text in source.notices:
            self._notice(text)
        source.notices.clear()


def _is_first(partition: MirroredPartition) -> bool:
    """Return whether its position must be committed before anything is copied."""
    return partition.needs_commit and partition.state in (COPYING, RETRYING)


def _runs_behind(shares: list[_Share], stored: dict[TopicPartition, list[int]]) -> list[OffsetRuns]:
    """Return the runs of each share's partition with those of its batches, which the target stored at these offsets (-1: unknown).

    Several sources may share a partition of the target, in the order of the shares."""
    offsets = {target: iter(base_offsets) for target, base_offsets in stored.items()}
    found = []
    for share in shares:
        runs, end = OffsetRuns(share.partition.runs), -1
        for batch in share.batches:
            base_offset = next(offsets[share.partition.target], -1)
            end = base_offset + batch.records_count if base_offset >= 0 else -1
            if base_offset >= 0:
                runs.add(batch.source_offset, base_offset, batch.records_count if batch.is_dense else 1)
        if end >= 0:
            runs.add(share.next_offset, end, 0)
        found.append(runs)
    return found


def _client(options: ClusterOptions, clock: Clock, sleep: Sleep, connect_timeout_ms: int) -> ClusterClient:
    return ClusterClient(
        options.bootstrap,
        client_id="millrace-mirror",
        clock=clock,
        sleep=sleep,
        connect_timeout_ms=connect_timeout_ms,
        request_timeout_ms=15_000,
        retry_ms=5_000,
        security=options.security,
    )
