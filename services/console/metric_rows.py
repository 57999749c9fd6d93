"""All metrics of a box. `docs/metrics.md` is generated from these rows.

Rows with a source are shared counters; the console computes the others (`box_metrics`). A partition
has at most five series. Dashboards and alert rules use the names, so they change only with an entry
in the CHANGELOG.
"""

from __future__ import annotations

from services.console.ingest_metrics import INGEST
from services.console.metric_row import COUNTER, GAUGE, MICROSECONDS, MILLISECONDS, MetricRow, counter, gauge, timing

_DISK = ("disk",)
_PROCESS_DISK = ("process", "disk")
_LISTENER = ("process", "listener")
_TOPIC = ("process", "topic")


def _found(name: str, meaning: str, labels: tuple[str, ...] = (), kind: str = GAUGE) -> MetricRow:
    """Return the row of a metric that the console computes."""
    return MetricRow(f"millrace_{name}", kind, meaning, "", labels)


BOX = (
    _found("build", "1; the release is in the label.", ("version",)),
    _found("box", "1; the identity of this box is in the labels.", ("box", "broker_id", "cluster_id")),
    _found("box_start_time_seconds", "When the box was started, Unix time."),
    _found("box_ready", "1 if every process of the box serves (as /readyz says), else 0."),
    _found("alarm", "1 while the console's own check of an alarm of prometheus-alerts.yml holds, else 0.", ("alarm", "severity")),
)

PROCESSES = (
    _found("process_serving", "1 if the process runs, reports that it serves, and sends heartbeats; else 0.", ("process",)),
    _found(
        "process_state",
        "1 for the state that the process is in: not started, starting, recovering, serving, offline, stopping, dead, hung.",
        ("process", "state"),
    ),
    _found("process_start_time_seconds", "When the process was last started, Unix time.", ("process",)),
    counter("process_cpu_seconds", "process.cpu_us", "CPU time since the process was last started, user and system.", scale=MICROSECONDS),
    gauge("process_pss_bytes", "process.pss_bytes", "Its proportional share of memory (PSS, arenas included), read every 10 s; 0 before."),
    gauge("process_resident_bytes", "process.resident_bytes", "Its resident memory; what is shared with other processes counts in full."),
    _found("process_heartbeat_age_seconds", "Time since its duty cycle turned for the last time.", ("process",)),
    gauge("process_compiled", "runtime.compiled", "1 if it uses the compiled modules of the produce path, 0 if it is pure Python."),
    counter("process_starts", "runtime.starts", "Starts of this process since the box started; restarts are one less."),
    gauge("process_failed_starts", "runtime.failed_starts", "Starts in a row that ended before the process served; each delays the next one longer."),
    counter("process_restarts", "supervisor.restarts", "Times that `millrace run` started the process again after it had ended by itself."),
    counter("process_watchdog_kills", "supervisor.watchdog_kills", "Times that the process was killed because it did not turn."),
    counter("process_gc_collections", "runtime.gc_collections", "Rounds of Python's garbage collection."),
    counter("process_gc_pause_seconds", "runtime.gc_pause_us", "Time spent in them.", scale=MICROSECONDS),
    counter("process_threads_refused", "runtime.threads_refused", "Threads that could not be started for lack of memory or tasks; their work is retried."),
    counter("process_shared_memory_losses", "runtime.shared_memory_losses", "Restarts because another program deleted its objects in /dev/shm."),
    counter("process_dropped_log_lines", "log.lines_dropped", "Lines of the log that were dropped because the log did not accept them in time."),
    gauge("process_counters_overflowed", "counters.overflow", "Sum of what found no place of its own in the process's counters; 0 or absent is well."),
)

DISKS = (
    _found("disk_state", "1 for the state that the disk is in: starting, online, full, offline, hung, down (its log-writer).", ("disk", "state")),
    _found("disk_fenced", "1 while its log-writer is fenced and publishes nothing more.", _DISK),
    _found("disk_partitions", "Partitions that are open on the disk.", _DISK),
    _found("disk_probe_age_seconds", "Time since the disk answered a probe (4 KiB and one sync) for the last time.", _DISK),
    _found("disk_recovery_done_bytes", "Bytes that the start of its log-writer has checked so far.", _DISK),
    _found("disk_recovery_bytes", "Bytes that it has to check in all.", _DISK),
    gauge("disk_free_bytes", "disk.free_bytes", "Free space, as its log-writer saw it last.", _DISK),
    gauge("disk_size_bytes", "disk.total_bytes", "Size of the file system.", _DISK),
    gauge("disk_recent_failures", "disk.failures_of_late", "Errors of the disk; ten minutes of service, or another log directory, set it to 0.", _DISK),
    gauge("disk_recent_fences", "disk.fences_of_late", "Times that the disk was fenced; ten minutes of service without a fence set it to 0.", _DISK),
    gauge("disk_waited_fences", "disk.fences_waited_for", "How many of those the back-off has been waited out for.", _DISK),
    gauge("disk_reopen_attempts", "disk.reopen_attempts", "Attempts to open the directory again since it went offline.", _DISK),
    gauge("disk_draining", "controller.disk_draining", "1 while the disk is being emptied and takes no new partitions.", _DISK),
    gauge("disk_partitions_missing", "controller.partitions_missing", "Partitions that should be on the disk and are not open there.", _DISK),
    timing("disk_probe", "disk.probe_us", "How long the disk took for a probe: 4 KiB written and synced.", _DISK),
)

PARTITIONS = (
    _found("partition_log_start_offset", "First offset that is kept.", ("topic", "partition", "disk")),
    _found("partition_log_end_offset", "The offset that the next record gets.", ("topic", "partition", "disk")),
    _found("partition_high_watermark", "Consumers read up to here.", ("topic", "partition", "disk")),
    _found("partition_size_bytes", "Size of its log.", ("topic", "partition", "disk")),
    _found("partition_in_sync_replicas", "Replicas in sync, where this box leads.", ("topic", "partition", "disk")),
)
assert len(PARTITIONS) <= 5, "2,000 partitions must not become 20,000 series"

TOPICS = (
    _found("topic_partitions", "Partitions of the topic.", ("topic",)),
    _found("topic_partitions_not_served", "Partitions of the topic without a leader, or led by this box and not open on a disk that works.", ("topic",)),
    counter("topic_sent_bytes", "fetch.topic_bytes", "Record bytes sent to consumers.", ("process", "topic")),
    _found("consumer_group_lag_records", "Records that the group has still to read, over the partitions it has committed an offset for.", ("group", "topic")),
    _found("consumer_group_partitions", "Partitions of the topic that the group has committed an offset for.", ("group", "topic")),
    _found("consumer_groups", "Groups by state.", ("state",)),
)

REPLICATION = (
    _found("cluster_boxes", "Boxes that are registered in the cluster, as this one sees it."),
    _found("cluster_has_controller", "1 if one of them is the controller, else 0."),
    _found("replication_leaders", "Partitions that this box leads."),
    _found("replication_followers", "Partitions that this box follows."),
    _found("replication_under_replicated_partitions", "Partitions led here with a replica that is not in sync."),
    _found("replication_under_min_isr_partitions", "Partitions led here with fewer replicas in sync than min.insync.replicas: acks=all is refused."),
    _found("replication_preferred_imbalance", "Partitions whose first replica is this box and that another box leads."),
    _found("replication_unreplicated_records", "Of the partition led here with the most of them: records that a replica in sync has still to fetch."),
)

PRODUCE = (
    counter("produce_requests", "produce.requests", "Produce requests."),
    counter("produce_batches", "produce.batches", "Record batches in them."),
    counter("produce_bytes", "produce.bytes", "Bytes of record batches that were handed to log-writers."),
    counter("produce_refused_batches", "produce.refused_batches", "Batches answered with an error."),
    counter("produce_over_budget", "produce.over_budget", "Batches turned away with a retriable error because their disk does not keep up."),
    counter("produce_lost_to_log_writer_death", "produce.lost_to_log_writer_death", "Batches answered with a retriable error because the log-writer died."),
    counter("produce_answered_for_hung_disk", "produce.answered_for_hung_disk", "Batches answered with a retriable error because their disk hangs."),
    counter("produce_timed_out", "produce.timed_out_in_log_writer", "Batches answered too late for the client's own time-out."),
    counter("produce_offered_again", "produce.offered_again", "Batches offered to a log-writer a second time."),
    counter("produce_verifications", "produce.verifications", "Questions to the transaction coordinator before a transaction's first batch."),
    counter("produce_converted_sets", "produce.converted_sets", "Message sets of clients older than Kafka 0.11 that were converted."),
    timing("produce_latency", "produce.latency_us", "From the whole request to its answer."),
)

FETCH = (
    counter("fetch_requests", "fetch.requests", "Fetch requests."),
    counter("fetch_bytes", "fetch.range_bytes", "Record bytes in answers."),
    counter("fetch_sendfile_bytes", "fetch.sendfile_bytes", "Of those, bytes that left straight from a file."),
    counter("fetch_waited", "fetch.parked", "Fetches that had to wait for records."),
    counter("fetch_hastened", "fetch.hastened", "Parked fetches of followers that ended because the follower asked again."),
    counter("fetch_follower_bytes", "fetch.follower_bytes", "Of the record bytes in answers, those for followers."),
    counter("fetch_follower_progress", "fetch.follower_progress", "Partitions of followers' fetches that were reported to the log-writer."),
    counter("fetch_follower_damages", "fetch.follower_damages", "Times that followers said that what they were sent was damaged; the place is looked at."),
    counter("fetch_unassigned_followers", "fetch.unassigned_followers", "Partitions that a box fetched as a follower without being a replica."),
    counter("fetch_errors", "fetch.errors", "Fetches in whose answer a partition has an error."),
    gauge("fetch_sessions", "fetch.sessions", "Fetch sessions that are open (KIP-227)."),
    gauge("fetch_session_partitions", "fetch.session_partitions", "Partitions in them."),
    counter("fetch_session_evictions", "fetch.session_evictions", "Sessions that were evicted for new ones."),
    counter("fetch_session_errors", "fetch.session_errors", "Fetches refused because of their session."),
    counter("fetch_incremental", "fetch.incremental", "Fetches that named only what had changed."),
    counter("fetch_cold_reads", "fetch.cold_reads", "Pieces that were not in the page cache and were asked from a log-reader."),
    counter("fetch_cold_bytes", "fetch.cold_bytes", "Bytes of them."),
    counter("fetch_cold_rest_bytes", "fetch.cold_rest_bytes", "Bytes of answers that had begun to leave and were finished from a log-reader."),
    counter("fetch_cold_failures", "fetch.cold_failures", "Pieces that could not be read."),
    counter("fetch_converted_bytes", "fetch.converted_bytes", "Bytes converted for clients older than Kafka 0.11."),
    timing("fetch_latency", "fetch.latency_us", "From the whole request to its answer, without the time in which it waited for records."),
    timing("fetch_latency_with_wait", "fetch.latency_with_wait_us", "The same with that time."),
)

ACCEPTOR = (
    gauge("acceptor_connections", "acceptor.connections", "Client connections that are open.", _LISTENER),
    counter("acceptor_accepted_connections", "acceptor.connections_accepted", "Client connections accepted.", _LISTENER),
    counter("acceptor_closed_connections", "acceptor.closed", "Client connections closed, by reason.", ("process", "reason")),
    counter("acceptor_audit_events", "acceptor.audit_events", "Audit events: logins, denials, administrative changes."),
    counter("acceptor_audit_written", "acceptor.audit_written", "Of those, records written to `__millrace_audit`."),
    counter("acceptor_audit_dropped", "acceptor.audit_dropped", "Audit events that could not be written to `__millrace_audit` in time; the log has them."),
    counter("acceptor_closed_untold", "acceptor.closed_untold", "Of those, connections without a log message of their own."),
    counter("acceptor_authentications", "acceptor.authentications", "Logins by SASL, repeated ones of a connection too.", _LISTENER),
    counter("acceptor_authentications_failed", "acceptor.authentications_failed", "Logins by SASL that failed.", _LISTENER),
    counter("acceptor_token_keys_failed", "acceptor.token_keys_failed", "Keys of bearer tokens that could not be read.", _LISTENER),
    counter("acceptor_accept_failures", "acceptor.accept_failures", "Connections that the kernel refused to hand over.", _LISTENER),
    counter("acceptor_received_bytes", "acceptor.received_bytes", "Bytes received.", _LISTENER),
    counter(
        "acceptor_refused_without_lease",
        "acceptor.refused_without_lease",
        "Partitions refused to consumers because ZooKeeper has not answered this box for too long.",
    ),
    counter(
        "acceptor_refused_inter_broker_requests",
        "acceptor.inter_broker_refused",
        "Requests that only boxes send each other, refused: from an address, with a certificate or as a user that is no box's, or under a broker epoch "
        "that is not registered.",
        ("process", "reason"),
    ),
    gauge(
        "acceptor_certificate_left_seconds",
        "acceptor.certificate_seconds_left",
        "Seconds until the certificate of a listener expires; 0: it has expired.",
        ("process", "listener"),
    ),
    gauge("acceptor_waiting_requests", "acceptor.parked", "Requests that wait: for records, replicas, or another process."),
    gauge("acceptor_arena_used_bytes", "acceptor.arena_used_bytes", "Bytes of the arena that hold requests."),
    gauge("acceptor_held_bytes", "acceptor.held_bytes", "Bytes on the heap that connections hold."),
    counter("acceptor_arena_full", "acceptor.arena_full", "Times that a request had to wait for free space in the arena."),
    counter(
        "acceptor_throttled_requests", "acceptor.throttled_requests", "Requests of clients above a quota, which got a throttle time.", ("process", "quota")
    ),
    counter("acceptor_throttle_seconds", "acceptor.throttle_ms", "Throttle times that clients got.", ("process", "quota"), scale=MILLISECONDS),
    gauge("acceptor_muted_connections", "acceptor.connections_muted", "Connections that are not read, because their clients are above a quota."),
    counter("metadata_requests", "metadata.requests", "Metadata requests."),
    counter("list_offsets_requests", "list_offsets.requests", "ListOffsets requests."),
    counter("delete_records_requests", "delete_records.requests", "DeleteRecords requests."),
    counter("offset_for_leader_epoch_requests", "offset_for_leader_epoch.requests", "OffsetForLeaderEpoch requests."),
    counter("write_txn_markers", "write_txn_markers.markers", "Transaction markers that other brokers asked for."),
)

SOURCES = (
    counter("source_ring_full", "source.ring_full", "Times that the ring to a disk's log-writer was full.", _PROCESS_DISK),
    counter("source_log_writer_deaths", "source.log_writer_deaths", "Times that a disk's log-writer hung up.", _PROCESS_DISK),
    counter("source_completed_records", "source.completed_records", "Records of completions that an ingest has taken.", _PROCESS_DISK),
    gauge("ingest_open_channels", "ingest.open_channels", "1: an ingest has a channel to the log-writer.", _PROCESS_DISK),
    counter("source_failed_greetings", "source.failed_greetings", "Times that a log-writer did not answer HELLO.", _PROCESS_DISK),
    counter("log_reader_questions", "log_reader.questions", "Questions to a disk's log-reader.", _PROCESS_DISK),
    counter("log_reader_unanswered", "log_reader.unanswered", "Of those, questions without an answer in time.", _PROCESS_DISK),
)

LOG_WRITER = (
    counter("log_writer_records", "log_writer.records", "Records that partitions appended as leaders; no duplicates.", _DISK),
    counter("log_writer_bytes", "log_writer.bytes", "Bytes appended, as leaders and as followers; no duplicates.", _DISK),
    counter("log_writer_batches", "log_writer.batches", "Batches that partitions appended as leaders; no duplicates.", _DISK),
    counter("log_writer_appends", "log_writer.append_calls", "Writes that appended them.", _DISK),
    counter("log_writer_refused", "log_writer.refused", "Batches refused.", _DISK),
    gauge(
        "log_writer_lost_offsets",
        "log_writer.lost_offsets",
        "Offsets that logs lacked at the start, because their files were changed beside the log-writer.",
        _DISK,
    ),
    gauge("log_writer_old_copy", "log_writer.old_copy", "1: the log directory, 2: the state directory was older than the other remembered.", _DISK),
    counter("log_writer_storage_failures", "log_writer.storage_failures", "Errors of the disk, each of which took the directory offline.", _DISK),
    counter("log_writer_completed_records", "log_writer.completed_records", "Records that were completed for an ingest.", ("disk", "source")),
    counter("log_writer_dropped_of_dead_sources", "log_writer.dropped_of_dead_sources", "Descriptors dropped because their sender had died.", _DISK),
    counter(
        "log_writer_refused_sources",
        "log_writer.refused_sources",
        "Processes whose HELLO was refused, or whose channel was closed for what they stored.",
        _DISK,
    ),
    counter("log_writer_replica_appends", "log_writer.replica_appends", "Writes of what leaders sent.", _DISK),
    counter("log_writer_replica_bytes", "log_writer.replica_bytes", "Bytes of them.", _DISK),
    counter("log_writer_replica_appends_corrupt", "log_writer.replica_appends_corrupt", "What leaders sent and was refused, being torn or damaged.", _DISK),
    counter("log_writer_batches_repaired", "log_writer.batches_repaired", "Damaged batches that were repaired with another box's copy.", _DISK),
    counter("log_writer_truncations", "log_writer.truncations", "Times that a follower's log was cut because its leader's had gone on differently.", _DISK),
    counter(
        "log_writer_truncated_below_high_watermark",
        "log_writer.truncated_below_high_watermark",
        "Those that took what consumers may have seen: after an unclean election.",
        _DISK,
    ),
    counter("log_writer_progress", "log_writer.progress", "Fetches of followers that leaders took into account.", _DISK),
    counter("log_writer_progress_dropped", "log_writer.progress_dropped", "Those that came too late, or from no replica.", _DISK),
    counter("log_writer_deletions_timed_out", "log_writer.deletions_timed_out", "DeleteRecords whose time was over before every follower had followed.", _DISK),
    counter("log_writer_isr_wishes", "log_writer.isr_wishes", "Changes of in-sync sets that leaders asked for.", _DISK),
    counter("log_writer_indexes_rebuilt", "log_writer.indexes_rebuilt", "Index files made anew.", _DISK),
    timing("log_writer_append_round", "log_writer.append_round_us", "A round: descriptors taken, batches written, completions published.", _DISK),
    counter("flush_rounds", "flush.rounds", "Rounds in which all that was appended was synced.", _DISK),
    counter("flush_round_seconds", "flush.round_us", "Time spent in them.", _DISK, scale=MICROSECONDS),
    counter("flush_batch_rounds", "flush.batch_rounds", "Syncs that acknowledgements waited for.", _DISK),
    counter("flush_batch_rounds_by_syncfs", "flush.batch_rounds_by_syncfs", "Of those, syncs of the whole file system.", _DISK),
    timing("flush_batch_round", "flush.batch_round_us", "How long they took.", _DISK),
    counter("retention_rounds", "retention.rounds", "Rounds of retention.", _DISK),
    counter("retention_rounds_without_time", "retention.rounds_without_time", "Rounds that deleted nothing by time because the clocks disagree.", _DISK),
    gauge(
        "retention_clock_disagreement_seconds",
        "retention.clock_disagreement_ms",
        "How far wall clock and monotonic clock have moved apart since the start.",
        _DISK,
        scale=MILLISECONDS,
    ),
    counter("retention_segments", "retention.segments", "Segments deleted, by policy: log_start_offset, size, time, free_space_reserve.", ("disk", "policy")),
    counter("retention_bytes", "retention.bytes", "Bytes of them.", ("disk", "policy")),
    gauge("retention_departing_files", "retention.departing_files", "Deleted files that still take space: they go in slices.", _DISK),
    gauge(
        "retention_shortened_partitions",
        "retention.shortened_partitions",
        "Partitions whose oldest record is younger than retention.ms asks, because the free-space reserve took older ones.",
        _DISK,
    ),
    gauge("retention_reserve_missing_bytes", "retention.reserve_missing_bytes", "Bytes missing to the free-space reserve.", _DISK),
    counter("retention_removals_without_checkpoint", "retention.removals_without_checkpoint", "Removals on a full disk, before their checkpoint.", _DISK),
    counter("retention_delete_records", "retention.delete_records", "Logs shortened by DeleteRecords.", _DISK),
    counter("cleaner_runs", "cleaner.runs", "Runs of compaction.", _DISK),
    counter("cleaner_failures", "cleaner.failures", "Runs that failed.", _DISK),
    gauge("cleaner_running", "cleaner.running", "1 while a run is under way.", _DISK),
    gauge("cleaner_uncleanable_logs", "cleaner.uncleanable_logs", "Logs that cannot be compacted.", _DISK),
    counter("cleaner_read_bytes", "cleaner.read_bytes", "Bytes read.", _DISK),
    counter("cleaner_written_bytes", "cleaner.written_bytes", "Bytes written.", _DISK),
    counter("cleaner_dropped_records", "cleaner.dropped_records", "Records that were left out.", _DISK),
    counter("cleaner_swapped_segments", "cleaner.swapped_segments", "Segments swapped in.", _DISK),
    timing("cleaner_swap", "cleaner.swap_us", "How long a swap kept the append loop.", _DISK),
    counter("summaries_made", "summaries.made", "Summaries of segments made for searches.", _DISK),
    counter("summaries_failures", "summaries.failures", "Runs that ended before they had made all.", _DISK),
    counter("summaries_read_bytes", "summaries.read_bytes", "Bytes read for them.", _DISK),
    counter("summaries_written_bytes", "summaries.written_bytes", "Bytes of them.", _DISK),
    counter("moves_begun", "moves.begun", "Moves of a partition to this disk that began.", _DISK),
    counter("moves_failures", "moves.failures", "Moves that failed and began again.", _DISK),
    counter("moves_promoted", "moves.promoted", "Moves that ended with this disk serving the partition.", _DISK),
    gauge("moves_copying", "moves.copying", "Moves that are copying now.", _DISK),
    counter("moves_given_away", "moves.given_away", "Partitions given to another disk.", _DISK),
)

LOG_READER = (
    counter("log_reader_answers", "log_reader.answers", "Answers, by kind of question.", ("disk", "kind")),
    timing("log_reader_answer", "log_reader.answer_us", "How long they took.", ("disk", "kind")),
    counter("log_reader_gaps_skipped", "log_reader.gaps_skipped", "Fetches that were led over lost offsets (`lost-offsets`).", _DISK),
    counter("log_reader_errors", "log_reader.errors", "Questions that met an error of the disk.", _DISK),
    counter("log_reader_reads", "log_reader.reads", "Reads of cold data.", _DISK),
    counter("log_reader_read_bytes", "log_reader.read_bytes", "Bytes of them.", _DISK),
    timing("log_reader_read", "log_reader.read_us", "How long they took.", _DISK),
    counter("log_reader_coalesced", "log_reader.coalesced", "Questions that shared another one's read.", _DISK),
    counter("log_reader_read_ahead", "log_reader.read_ahead", "Pieces read before they were requested.", _DISK),
    counter("log_reader_failed_reads", "log_reader.failed_reads", "Reads that failed.", _DISK),
    gauge("log_reader_waiting_reads", "log_reader.reads_waiting", "Reads that wait for the disk.", _DISK),
    gauge("log_reader_held_slots", "log_reader.held_slots", "Pieces of its memory that acceptors hold.", _DISK),
    counter("scrub_passes", "scrub.passes", "Times that every closed segment was read and checked.", _DISK),
    counter("scrub_segments", "scrub.segments", "Segments checked.", _DISK),
    counter("scrub_bytes", "scrub.bytes", "Bytes checked.", _DISK),
    counter("scrub_looks", "scrub.looks", "Places checked because a damaged batch was found there.", _DISK),
    counter("scrub_damages", "scrub.damages", "Damaged places found, by kind.", ("disk", "kind")),
)

CONTROLLER = (
    counter(
        "controller_refused",
        "controller.refused",
        "Topics, growths of topics and changes of configs refused because of a bound of the cluster.",
        ("process", "bound"),
    ),
    gauge("controller_zookeeper_connected", "controller.zookeeper_connected", "1 while the ZooKeeper session is connected."),
    gauge("zookeeper_znodes", "zookeeper.znodes", "Nodes of ZooKeeper's tree, as the server of this box reports them."),
    gauge("zookeeper_tree_bytes", "zookeeper.tree_bytes", "Estimated heap of that tree: names and data, and 500 bytes for each node."),
    gauge("zookeeper_heap_bytes", "zookeeper.heap_bytes", "Heap of that server (zookeeper.heap.mb)."),
    counter("controller_zookeeper_sessions_lost", "controller.zookeeper_sessions_lost", "Sessions that expired."),
    counter("controller_zookeeper_suspensions", "controller.zookeeper_suspensions", "Times that the connection was lost."),
    gauge("controller_is_controller", "controller.is_controller", "1 on the box that has the controller's role."),
    counter("controller_acls_altered", "controller.acls_altered", "Access control entries that this box added or removed."),
    counter("controller_users_altered", "controller.users_altered", "SCRAM credentials that this box set or removed."),
    counter("controller_tokens_altered", "controller.tokens_altered", "Delegation tokens that this box created, changed or removed."),
    counter("controller_late_state_writes", "controller.late_state_writes", "Writes that the disk of the state directory did not answer in time."),
    gauge("controller_restored", "controller.restored", "1: this box is older than the cluster remembers; it was restored from a copy."),
    counter("controller_quotas_altered", "controller.quotas_altered", "Client quotas that this box set or removed, by entity."),
    counter("controller_terms", "controller.terms", "Times that this box became controller."),
    gauge("controller_offline_partitions", "controller.offline_partitions", "Partitions of the cluster without a leader; 0 on boxes that are not controller."),
    counter(
        "controller_elections",
        "controller.elections",
        "Leaderships given to another replica, by reason: death of a box, a disk, a box that stops.",
        ("process", "reason"),
    ),
    counter("controller_unclean_elections", "controller.unclean_elections", "Leaderships given to a replica that lacks acknowledged records."),
    counter("controller_elections_ordered", "controller.elections_ordered", "Leaderships assigned by an election that was requested."),
    counter("controller_leaderships_returned", "controller.leaderships_returned", "Leaderships that went back to the first replica."),
    counter("controller_isr_shrinks", "controller.isr_shrinks", "Replicas that left an ISR of a partition led here."),
    counter("controller_isr_expands", "controller.isr_expands", "Replicas that joined one."),
    counter("controller_isr_wishes_refused", "controller.isr_wishes_refused", "Changes of an ISR that came too late, or for a replica that was gone."),
    counter("controller_replicas_hosted", "controller.replicas_hosted", "Replicas that this box took over since it started."),
    counter("controller_replicas_given_up", "controller.replicas_given_up", "Replicas that it deleted because they are elsewhere now."),
    gauge("controller_reassignments_under_way", "controller.reassignments_under_way", "Partitions that are being moved to other boxes."),
    counter("controller_reassignments_finished", "controller.reassignments_finished", "Partitions that were."),
    gauge("controller_topics", "controller.topics", "Topics in the image."),
    gauge("controller_image_generation", "controller.image_generation", "Generation of the metadata image."),
    counter("controller_requests", "controller.requests", "Requests from acceptors."),
    counter("controller_passed_on_requests", "controller.requests_passed_on", "Requests of clients that were passed on to the controller of another box."),
    counter("controller_unreadable_requests", "controller.requests_unreadable", "Requests that could not be read."),
    counter("controller_forbidden_requests", "controller.requests_forbidden", "Orders about disks from a user that may not give them."),
    counter("controller_timed_out_requests", "controller.requests_timed_out", "Requests that took too long."),
    counter("controller_refused_coordinator_requests", "controller.coordinator_requests_refused", "Requests of the coordinator that were refused."),
    counter("controller_disk_commands", "controller.disk_commands", "Commands to log-writers."),
    counter("controller_refused_disk_commands", "controller.disk_commands_refused", "Commands that a log-writer refused."),
    counter("controller_topics_created", "controller.topics_created", "Topics created."),
    counter("controller_topics_deleted", "controller.topics_deleted", "Topics deleted."),
    counter("controller_partitions_created", "controller.partitions_created", "Partitions added to topics."),
    counter("controller_configs_altered", "controller.configs_altered", "Changes of configs."),
    counter("controller_producer_id_blocks", "controller.producer_id_blocks", "Blocks of producer ids leased."),
    gauge("controller_moves", "controller.moves", "Moves of partitions that stand."),
    counter("controller_moves_ordered", "controller.moves_ordered", "Moves ordered."),
    counter("controller_moves_cancelled", "controller.moves_cancelled", "Moves cancelled."),
    counter("controller_moves_done", "controller.moves_done", "Moves done."),
    counter("controller_hand_overs_taken_back", "controller.hand_overs_taken_back", "Hand-overs of a moved partition that were taken back."),
    timing("controller_hand_over", "controller.hand_over_us", "How long producers of a moved partition were kept."),
)

REPLICA_FETCHER = (
    gauge("replica_partitions", "replica_fetcher.partitions", "Partitions that are copied from other boxes."),
    gauge("replica_stalled_partitions", "replica_fetcher.stalled_partitions", "Partitions among them that wait because of an error."),
    counter("replica_fetches", "replica_fetcher.fetches", "Fetches sent to leaders."),
    counter("replica_lost_fetches", "replica_fetcher.lost_fetches", "Fetches without an answer: the connection was lost, or could not be made."),
    counter("replica_sessions", "replica_fetcher.sessions", "Fetch sessions begun."),
    counter("replica_hastened", "replica_fetcher.hastened", "Fetches that were sent because a new partition could not wait for the one that was parked."),
    counter("replica_fetched_bytes", "replica_fetcher.fetched_bytes", "Bytes of intact batches that were fetched."),
    counter("replica_appends", "replica_fetcher.appends", "Appends offered to log-writers; those that only tell a high watermark count."),
    counter("replica_truncations", "replica_fetcher.truncations", "Copies that were cut because they differ from their leader's log."),
    counter("replica_restarts", "replica_fetcher.restarts", "Copies that were dropped and begun anew, because their leader has nothing as old any more."),
    counter("replica_corrupt_batches", "replica_fetcher.corrupt_batches", "Batches that came damaged from a leader and were fetched again."),
    counter("replica_repairs_left", "replica_fetcher.repairs_left", "Damaged places that no other box has a fitting, healthy copy of."),
    counter("replica_errors", "replica_fetcher.errors", "Errors that leaders and log-writers answered.", ("process", "error")),
)

COORDINATOR = (
    counter("coordinator_requests", "coordinator.requests", "Requests about groups and transactions."),
    counter("coordinator_unreadable_requests", "coordinator.requests_unreadable", "Requests that could not be read."),
    counter(
        "coordinator_requests_while_cut_off",
        "coordinator.requests_while_cut_off",
        "Requests that waited until this box was sure to lead, because ZooKeeper had not answered for too long.",
    ),
    counter(
        "coordinator_refused",
        "coordinator.refused",
        "Groups, members, topic expressions and transactional ids refused because of a bound of this box.",
        ("process", "bound"),
    ),
    counter(
        "coordinator_share_records",
        "coordinator.share_records",
        "Records of share groups: acquired, of those delivered again, acknowledged, expired; and refused acknowledgements.",
        ("process", "event"),
    ),
    counter("coordinator_unconfirmed_requests", "coordinator.unconfirmed_requests", "Of those, requests refused because it was not sure in time."),
    gauge("coordinator_waiting_requests", "coordinator.waiting", "Requests that wait for an answer."),
    counter("coordinator_appends", "coordinator.appends", "Appends to a state topic.", ("process", "topic")),
    counter("coordinator_failed_appends", "coordinator.failed_appends", "Appends that failed.", ("process", "topic")),
    counter("coordinator_loaded_records", "coordinator.loaded_records", "Records read at loads of state partitions.", ("process", "topic")),
    counter("coordinator_failed_loads", "coordinator.failed_loads", "Loads that failed.", ("process", "topic")),
    counter("coordinator_skipped_records", "coordinator.skipped_records", "Records that a load left out, as they could not be read.", ("process", "topic")),
    gauge("coordinator_partitions", "coordinator.partitions", "State partitions that this box leads.", ("process", "topic")),
    gauge(
        "coordinator_partitions_loading",
        "coordinator.partitions_loading",
        "Those of them that are not served yet: being read, or read and not replicated.",
        ("process", "topic"),
    ),
    timing("coordinator_load", "coordinator.load_us", "How long a load took.", ("process", "topic")),
    counter("coordinator_producer_ids", "coordinator.producer_ids", "Producer ids given."),
    counter("coordinator_markers", "coordinator.markers", "Transaction markers written."),
    counter("coordinator_failed_markers", "coordinator.failed_markers", "Markers that had to be tried again."),
)

UNLISTED = MetricRow(
    "millrace_unlisted", GAUGE, "A shared counter that has no metric of its own: our mistake, but not a silent one.", "", ("process", "counter")
)
HOST_FIGURES = (
    counter("host_figures_records", "host_figures.records", "Records about the machine that were written to their topic."),
    counter("host_figures_failures", "host_figures.failures", "Times that they could not be read or written; what was read is kept and tried again."),
    counter("host_figures_dropped", "host_figures.dropped", "Records that were dropped because too many waited."),
)
TABLES = (
    gauge("tables", "tables.tables", "Topics that this box keeps as tables."),
    _found("table_commits", "Commits of the table by this box, since it started.", ("topic",), COUNTER),
    _found("table_records", "Records in them.", ("topic",), COUNTER),
    _found("table_bad_records", "Of these, records that did not fit the columns and are kept whole with the reason.", ("topic",), COUNTER),
    _found("table_lost_records", "Offsets that the table lacks: retention was faster, a batch is damaged, a log lost records.", ("topic",), COUNTER),
    _found("table_written_bytes", "Size of the files of its commits.", ("topic",), COUNTER),
    _found("table_compacted_files", "Small files that were merged into larger ones.", ("topic",), COUNTER),
    _found("table_failures", "Runs that failed and are tried again.", ("topic",), COUNTER),
    _found("table_conflicts", "Commits that failed because another writer was faster; nothing of them is in the table.", ("topic",), COUNTER),
    _found("table_failing", "1 while the table is not written, or a partition of it, else 0; `millrace table list` says why.", ("topic",)),
    _found("table_lag_records", "Offsets of partitions led here that the table does not have yet.", ("topic",)),
    _found("table_last_commit_seconds", "When this box committed last since it started, Unix time; 0 if it did not.", ("topic",)),
)
SCRAPE = (
    counter("alerts_sent", "alerts.sent", "Alarms, begun, repeated or over, that the server of `alerts.url` took."),
    counter("alerts_failures", "alerts.failures", "Requests to it that failed and are tried again; the page of alarms says why."),
    counter("alerts_dropped", "alerts.dropped", "Alarms that were not sent to it: too many waited, or an end was refused for an hour."),
    counter("console_state_failures", "console.state_failures", "Times that a file in `STATE/console` could not be read or written; tried again each minute."),
    counter("console_state_damaged", "console.state_damaged", "Files there that were damaged; what was readable was taken, the file is kept as NAME.damaged."),
    _found("console_scrape_seconds", "How long the console took for the scrape before this one."),
    counter(
        "console_refused_requests",
        "console.refused",
        "Refused requests, by reason: cross_site, unknown_host (web pages of other sites), change (not allowed), busy, failed (see the log); of users: "
        "login (none), role (too small), token (not of this login), logins (too many at a time), proxy_header (a user named by no proxy of the box).",
        ("process", "reason"),
    ),
    counter("console_logins", "console.logins", "Users that logged in to the console by password."),
    counter("console_login_failures", "console.login_failures", "Refused logins to the console; the log of acceptors names users and addresses."),
    counter(
        "console_closed_connections",
        "console.closed",
        "Connections of the console that it closed, by reason: header-timeout, answer-timeout, connection-limit.",
        ("process", "reason"),
    ),
    UNLISTED,
)

GROUPS: dict[str, tuple[MetricRow, ...]] = {
    "The box": BOX,
    "Processes": PROCESSES,
    "Disks": DISKS,
    "Partitions": PARTITIONS,
    "Topics and groups": TOPICS,
    "Replication": REPLICATION,
    "Produce": PRODUCE,
    "Fetch": FETCH,
    "Connections of Kafka clients": ACCEPTOR,
    "Between processes": SOURCES,
    "Log-writers": LOG_WRITER,
    "Log-readers": LOG_READER,
    "Ingestion": INGEST,
    "Controller": CONTROLLER,
    "Replica-fetcher": REPLICA_FETCHER,
    "Coordinator": COORDINATOR,
    "Tables": TABLES,
    "The machine's figures": HOST_FIGURES,
    "The console itself": SCRAPE,
}
ROWS: tuple[MetricRow, ...] = tuple(row for rows in GROUPS.values() for row in rows)
BY_SOURCE: dict[str, MetricRow] = {row.source: row for row in ROWS if row.source}
BY_NAME: dict[str, MetricRow] = {row.name: row for row in ROWS}
assert len(BY_NAME) == len(ROWS) and len(BY_SOURCE) == sum(bool(row.source) for row in ROWS)
