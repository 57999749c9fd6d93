"""The metrics of ingestion; `metric_rows` lists them. A line is a record of any sender, syslog or
not.

For each listener: received = stored + duplicate + lost + in flight. What was refused, and what the
kernel dropped, was never received. Weak: the series of a reason exists only after its first event.
"""

from __future__ import annotations

from services.console.metric_row import GAUGE, MILLISECONDS, MetricRow, counter, gauge, timing

_LISTENER = ("process", "listener")
_REASON = ("process", "listener", "reason")

INGEST = (
    counter("ingest_received_lines", "ingest.received", "Lines received; each is stored, was stored before, or is counted as lost.", _LISTENER),
    counter("ingest_received_bytes", "ingest.input_bytes", "Bytes received from senders.", _LISTENER),
    counter("ingest_stored_lines", "ingest.stored", "Lines stored.", _LISTENER),
    counter("ingest_acknowledged_lines", "ingest.acknowledged", "Lines acknowledged to their sender; plain syslog has no acknowledgements.", _LISTENER),
    gauge("ingest_appended_lines", "ingest.appended", "Lines that a leader has appended and its followers have not.", _LISTENER),
    counter("ingest_duplicate_lines", "ingest.duplicate", "Lines that were stored before: a sender sent them again.", _LISTENER),
    counter(
        "ingest_lost_lines",
        "ingest.counted",
        "Lines received and not stored, by reason: overflow, too_large, refused, no_key, unauthorized, damaged, shutdown, crash.",
        _REASON,
    ),
    counter(
        "ingest_refused_messages",
        "ingest.refused",
        "Refused before they were lines, by reason: malformed, too_large, unauthorized, busy, timed_out, no_topic, no_input, forbidden_topic, "
        "cross_site, unknown_host, incomplete, over_quota.",
        _REASON,
    ),
    counter("ingest_copied_lines", "ingest.copies", "Copies stored in further topics, dead letters too.", _LISTENER),
    gauge("ingest_in_flight_lines", "ingest.in_flight", "Lines on their way."),
    gauge("ingest_oldest_waiting_seconds", "ingest.oldest_waiting_ms", "How long the oldest batch waits for a leader that takes it.", scale=MILLISECONDS),
    counter("ingest_resent_lines", "ingest.resent", "Lines offered again after a log-writer died."),
    counter("ingest_moved_lines", "ingest.moved", "Lines that went to another partition because their disk did not take them."),
    counter("ingest_kernel_drops", "ingest.kernel_drops", "Datagrams that the kernel dropped before they were received.", _LISTENER),
    gauge("ingest_kernel_drops_seen", "ingest.kernel_drops_seen", "The kernel's own count for the socket, as it was seen last.", _LISTENER),
    gauge("ingest_udp_socket_cookie", "ingest.udp_socket_cookie", "Which socket that count belongs to.", _LISTENER),
    gauge("ingest_udp_receive_buffer_bytes", "ingest.udp_receive_buffer_bytes", "Receive buffer of the UDP socket.", _LISTENER),
    counter("ingest_truncated_lines", "ingest.truncated", "Lines that were cut because they are too long.", _LISTENER),
    counter("ingest_unparsed_lines", "ingest.unparsed", "Lines that could not be read; they are stored as they came.", _LISTENER),
    counter(
        "ingest_resynchronised_framings", "ingest.framing_resynchronised", "Times that octet counting was lost on a connection and found again.", _LISTENER
    ),
    MetricRow("millrace_ingest_senders", GAUGE, "Senders (addresses) that were heard since the box started.", "", ()),
    MetricRow("millrace_ingest_silent_senders", GAUGE, "Those of them that were not heard for ingest.sender.silent.ms.", "", ()),
    gauge("ingest_connections", "ingest.connections", "Sender connections that are open."),
    counter("ingest_accepted_connections", "ingest.connections_accepted", "Sender connections accepted."),
    counter("ingest_closed_connections", "ingest.closed", "Sender connections closed by us, by reason.", ("process", "reason")),
    counter("ingest_handed_over_connections", "ingest.connections_handed_over", "Sender connections given to the ingest that serves their address."),
    counter("ingest_kept_connections", "ingest.connections_kept", "Sender connections of another ingest that was away for too long."),
    counter("ingest_paused_connections", "ingest.connections_paused", "Times that a sender was slowed down."),
    counter("ingest_over_quota_connections", "ingest.connections_over_quota", "Times that a sender was slowed down by its quota."),
    counter("ingest_throttled_tls_handshakes", "ingest.tls_handshakes_throttled", "TLS handshakes that waited: tls.handshakes.per.second."),
    counter("ingest_crowded_connections", "ingest.connections_crowded", "Times that a sender of a large frame waited, because all together were too much."),
    counter("ingest_accept_failures", "ingest.accept_failures", "Sender connections that the kernel refused to hand over."),
    gauge("ingest_unfinished_bytes", "ingest.unfinished_bytes", "Bytes of frames and requests that are not whole."),
    gauge("ingest_held_bytes", "ingest.held_bytes", "Bytes of records that are held back until it is known whether they are stored, about."),
    counter("ingest_batches", "ingest.batches", "Record batches made of lines."),
    counter("ingest_batch_bytes", "ingest.batch_bytes", "Bytes of them."),
    counter("ingest_disk_over_budget", "ingest.disk_over_budget", "Times that a disk took no more for a while."),
    counter("ingest_batches_elsewhere", "ingest.batches_elsewhere", "Batches sent to other boxes, which lead their partitions."),
    counter("ingest_producer_ids", "ingest.producer_ids", "Producer ids taken, one per partition and start."),
    counter("ingest_producer_epochs_raised", "ingest.producer_epochs_raised", "Times that a batch was refused for good, and its producer id went on anew."),
    gauge("ingest_spool_bytes", "ingest.spool_bytes", "Bytes on the state disk that wait for a leader."),
    counter("ingest_spool_batches", "ingest.spool_batches", "Batches that went to the state disk, because no leader could be reached."),
    counter("ingest_spool_damages", "ingest.spool_damages", "Batches that were damaged there, and are lost."),
    counter("ingest_spool_failures", "ingest.spool_failures", "Times that the state disk did not take a batch; it waited in memory."),
    gauge("ingest_replay_identities", "ingest.replay_identities", "Units (chunks, requests, frames) that a replay would be recognised of."),
    gauge("ingest_replay_journal_bytes", "ingest.replay_journal_bytes", "Size of the journal of them on the state disk."),
    counter("ingest_replay_journal_failures", "ingest.replay_journal_failures", "Times that it was not written: a replay after a crash may be stored twice."),
    counter("ingest_replay_journal_damages", "ingest.replay_journal_damages", "Damaged places found in it."),
    counter("ingest_replay_batches_found", "ingest.replay_batches_found", "Batches of the previous incarnation that were looked up at their leader."),
    counter("ingest_replay_batches_found_stored", "ingest.replay_batches_found_stored", "Those of them that were stored."),
    gauge("ingest_partitions_led", "ingest.partitions_led", "Partitions of the topics of senders that this box leads."),
    counter("ingest_dead_disks", "ingest.dead_disks", "Times that a disk was left out because it does not serve."),
    timing("ingest_batch", "ingest.batch_us", "From a batch's first line to its place in the log."),
)
