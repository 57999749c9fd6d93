"""All alarms of a box. `systemd/prometheus-alerts.yml` and the runbook in `docs/operate.md` are
generated from these rows, and the console checks the same rows itself.

Weak: thresholds fit a box of cheap disks and are no settings; for others, edit a copy of the rules.
"""

from __future__ import annotations

from services.console.alarm import CRITICAL, HOUR, MINUTE, WARNING, Alarm, AlarmCondition

MANY_RECORDS_BEHIND = 1_000_000
MANY_RECORDS_UNREPLICATED = 100_000

ALARMS: tuple[Alarm, ...] = (
    Alarm(
        "MillraceDown",
        CRITICAL,
        None,
        MINUTE,
        "{instance} does not answer Prometheus",
        "The console or the whole box is down; its alarms are not checked.",
        'up{job="millrace"} == 0',
        check=("`systemctl status millrace-console millrace.target`; is the machine reachable; `curl -s localhost:8080/healthz`."),
        act=(
            "machine down: start it, the box starts by itself. Only the console: `systemctl restart "
            "millrace-console`. Everything: [it does not "
            "start](troubleshooting.md#the-box-does-not-start)."
        ),
    ),
    Alarm(
        "MillraceProcessDown",
        CRITICAL,
        AlarmCondition("millrace_process_serving", "==", 0),
        MINUTE,
        "{process} does not serve",
        "What that process does for its users waits; its state is in millrace_process_state.",
        check="`millrace status` (which process, which state), its last lines in the journal.",
        act=(
            "recovering: wait, the status shows how long. `not mounted`, `offline`: see the disk. "
            "`failed: another release`: `systemctl restart millrace.target`. `stopped`: it was "
            "stopped by hand; start it."
        ),
    ),
    Alarm(
        "MillraceProcessRestarts",
        WARNING,
        AlarmCondition("millrace_process_starts_total", ">", 3, over_seconds=15 * MINUTE),
        0,
        "{process} was started more than three times in 15 minutes",
        "It dies again and again; each time its users wait a moment.",
        check=("`journalctl -u millrace-PROCESS | grep -B5 -A20 'failed with\\|Failed with'`: the reason precedes each end. `oom-kill` means memory."),
        act=(
            "log-writer or log-reader: check the disk. Memory: look for other programs; use fewer or "
            "smaller arenas. Anything else is a defect: keep the journal and report it; roll back if "
            "it came with an upgrade."
        ),
    ),
    Alarm(
        "MillraceWatchdogKill",
        WARNING,
        AlarmCondition("millrace_process_watchdog_kills_total", ">", 0, over_seconds=HOUR),
        0,
        "{process} was killed because it did not turn",
        "It hung: on its disk, on a machine without memory or processor time, or by a mistake of ours.",
        check=(
            'the journal has the stack ("Fatal Python error: Aborted"). In `os.pread`, `fdatasync` '
            "and the like: a disk. Elsewhere: `uptime`, `vmstat 1`; is the machine swapping?"
        ),
        act=("a disk: see there. A machine without processor time or memory: reduce its load. Otherwise report it with the stack."),
    ),
    Alarm(
        "MillraceDiskOffline",
        CRITICAL,
        AlarmCondition("millrace_disk_state", "==", 1, (("state", "offline"),)),
        0,
        "disk {disk} is offline",
        "It failed, or its directory is empty: its partitions are neither written nor read.",
        check="`millrace disk list` (the reason), `dmesg -T`, `smartctl -a`, `findmnt /srv/DISK`.",
        act=("not mounted: mount it. Failed: [replace it](disks.md#replace). It returns by itself when it can be written again."),
    ),
    Alarm(
        "MillraceDiskHung",
        CRITICAL,
        AlarmCondition("millrace_disk_state", "==", 1, (("state", "hung"),)),
        30,
        "disk {disk} hangs",
        "It does not answer: its partitions are neither written nor read until it does.",
        check=("`dmesg -T` (resets, timeouts), `iostat -x 1` (a device at 100 % without any bytes), processes in state D: `ps -eo pid,stat,comm | grep ' D'`."),
        act=(
            "wait for the controller's reset (up to minutes). Otherwise pull the disk and [replace "
            "it](disks.md#replace); neither the command nor the box waits for it."
        ),
    ),
    Alarm(
        "MillraceDiskFencedAgain",
        WARNING,
        AlarmCondition("millrace_disk_recent_fences", ">=", 2),
        0,
        "disk {disk} was fenced again",
        "It is too slow for its load, or dying: producers of its partitions go back and forth with it.",
        check=("`millrace disk list` shows how often; `iostat -x 1`, `smartctl -a` (reallocated, pending sectors), the battery of a RAID controller."),
        act=(
            "reduce its load (`millrace disk drain`), or replace it before it dies. Raise "
            "`log.disk.deadline.ms` only if the disk is known to pause and to be healthy."
        ),
    ),
    Alarm(
        "MillraceDiskSlow",
        WARNING,
        AlarmCondition("millrace_log_writer_append_round_seconds", ">", 0.5, over_seconds=5 * MINUTE, quantile=0.99, by="disk"),
        5 * MINUTE,
        "appends on disk {disk} take longer than half a second (p99)",
        "Producers of its partitions wait; the disk, its cable or its write cache is not what it was.",
        check=(
            "`millrace top` (round p99), `iostat -x 1`, `cat /sys/block/DEV/queue/scheduler` "
            "(mq-deadline), write cache on (`hdparm -W`), other users (`iotop`), a cleaning run or a "
            "move (`millrace status`)."
        ),
        act=("stop other users; move busy partitions; set `disk.io.classes`; replace the disk if it is slow when idle."),
    ),
    Alarm(
        "MillraceDiskFull",
        CRITICAL,
        AlarmCondition("millrace_disk_state", "==", 1, (("state", "full"),)),
        0,
        "disk {disk} is full",
        "Its partitions are read, not written.",
        check="`millrace disk list`, `millrace topic list`; do other programs use it (`du -x`)?",
        act="[A full disk](disks.md#a-full-disk).",
    ),
    Alarm(
        "MillraceDiskFillsUp",
        WARNING,
        AlarmCondition("millrace_disk_free_bytes", "<", 0.1, divided_by="millrace_disk_size_bytes"),
        5 * MINUTE,
        "disk {disk} has less than a tenth of its space free",
        "Soon its oldest records are deleted before their time.",
        check="which topics grow (`millrace top`), and how their retention compares with the disk.",
        act="shorten retention, add a disk or move partitions before MillraceDiskFull.",
    ),
    Alarm(
        "MillraceRecordsDeletedForSpace",
        WARNING,
        AlarmCondition("millrace_retention_shortened_partitions", ">", 0),
        0,
        "records on disk {disk} were deleted before their time, because it runs full",
        "Logs are shorter than `retention.ms` asks; consumers that are far behind have lost records.",
        check="the journal names segments and topics; are consumers behind (`millrace group describe`)?",
        act=(
            "one sender floods: lower its quota (`ingest.sender.bytes.per.second`). Otherwise set "
            "`retention.bytes`, or add a disk. `millrace.retention.protected.ms` protects a topic."
        ),
    ),
    Alarm(
        "MillraceStorageFailures",
        CRITICAL,
        AlarmCondition("millrace_disk_recent_failures", ">", 0),
        0,
        "disk {disk} answered with errors",
        "Its directory was taken offline; what was not synced is read again when it is back.",
        check="the journal (`MILLRACE_DISK=…`, priority err): operation, file, reason; `dmesg -T`.",
        act=("as for [MillraceDiskOffline](#millracediskoffline). Do not trust the disk again without a reason."),
    ),
    Alarm(
        "MillraceDamagedBatches",
        CRITICAL,
        AlarmCondition("millrace_scrub_damages_total", ">", 0, over_seconds=HOUR),
        0,
        "damaged places ({kind}) were found on disk {disk}",
        "Records in closed segments cannot be read as they were written. Where another box has a healthy copy they are repaired within seconds.",
        check=(
            "`millrace status` lists file, offset and kind; `millrace log dump FILE`; `smartctl -a`; "
            "memory errors (`edac-util`, `dmesg`). `journalctl -u 'millrace-log-writer@*' | grep "
            "repaired` shows what was repaired from another box."
        ),
        act=("repaired: watch the disk. Not repaired: [MillraceDamageNotRepaired](#millracedamagenotrepaired). More than one: replace the disk."),
    ),
    Alarm(
        "MillraceRecordsMissing",
        CRITICAL,
        AlarmCondition("millrace_log_writer_lost_offsets", ">", 0),
        0,
        "logs of disk {disk} lack offsets",
        "Their files were cut, emptied or removed beside the log-writer. Replicas on other boxes have the records; without one they are lost.",
        check=("`millrace status` and the journal name the offsets; `ls /srv/DISK/*/*.damaged`; `dmesg -T`; find what changes files there."),
        act=(
            "if the journal says *while the log-writer runs*, restart that log-writer. Without a "
            "replica restore the records from the copies or a backup into another topic. The offsets are not "
            "used again: consumers skip them (`millrace_log_reader_gaps_skipped_total`), or reset if "
            "the log's start is gone. Then remove the copies; the alarm ends with the next start."
        ),
    ),
    Alarm(
        "MillraceOldDirectory",
        CRITICAL,
        AlarmCondition("millrace_log_writer_old_copy", ">", 0),
        0,
        "disk {disk} or the state directory was restored from a copy",
        "What was stored after the copy is missing on this box; its replicas left the in-sync sets and fetch it from other boxes.",
        check="`millrace status`; the journal (`MILLRACE_DISK=…`, priority crit) says which directory is older.",
        act="wait until the replicas are in sync. What had no other replica is lost; its offsets are skipped. The alarm ends with the next start.",
    ),
    Alarm(
        "MillraceRestoredBox",
        CRITICAL,
        AlarmCondition("millrace_controller_restored", ">", 0),
        0,
        "this box was restored from a copy",
        "State directory and disks are older than the cluster remembers. The replicas here left the in-sync sets and fetch what they lack.",
        check="`millrace status`; the journal of `millrace-controller` names both generations.",
        act="wait until the replicas are in sync. What had no other replica is lost. The alarm ends with the next start of the controller.",
    ),
    Alarm(
        "MillraceDamageNotRepaired",
        CRITICAL,
        AlarmCondition("millrace_replica_repairs_left_total", ">", 0, over_seconds=HOUR),
        0,
        "damaged records stay: no other box has a healthy copy that fits",
        "Records in closed segments cannot be read as they were written.",
        check=(
            "the journal of `millrace-replica-fetcher` shows for each place which boxes were asked "
            "and why their copies did not help (compacted differently, damaged too, no other "
            "replica)."
        ),
        act=(
            "copy what consumers still need; the damaged records are lost on this box. If another "
            "box has them: move this replica away and back, or let another replica lead, and drop "
            "this copy."
        ),
    ),
    Alarm(
        "MillracePartitionsNotServed",
        CRITICAL,
        AlarmCondition("millrace_topic_partitions_not_served", ">", 0),
        MINUTE,
        "partitions of topic {topic} are not served",
        "Their producers and consumers wait.",
        check=(
            "`millrace status` shows partitions, disk and reason beside the topic. Without a leader: [MillraceOfflinePartitions](#millraceofflinepartitions)."
        ),
        act=("as for that disk or process. If all topics are affected: `systemctl status millrace-controller millrace-zookeeper`."),
    ),
    Alarm(
        "MillraceOfflinePartitions",
        CRITICAL,
        AlarmCondition("millrace_controller_offline_partitions", ">", 0),
        MINUTE,
        "partitions of the cluster have no leader",
        "They are neither written nor read: no replica that has all records is alive.",
        check=(
            '`millrace status` on any box: topics with "no leader"; `millrace topic describe TOPIC`: the ISR. Only its members have every acknowledged record.'
        ),
        act=(
            "bring one of those boxes or disks back; leadership returns by itself. Only if none will "
            "ever return: `millrace topic elect --unclean` lets a remaining replica lead, and the "
            "records that it lacks are lost."
        ),
    ),
    Alarm(
        "MillraceUnderMinIsr",
        CRITICAL,
        AlarmCondition("millrace_replication_under_min_isr_partitions", ">", 0),
        MINUTE,
        "partitions led by this box have fewer replicas in sync than min.insync.replicas",
        "Producers with acks=all are refused, and so are commits of groups or transactions if it is their topic.",
        check=("`millrace topic describe TOPIC`: which replicas are missing from the ISR; is their box up, are its disk and network healthy?"),
        act=(
            "bring them back; they fetch what they lack and join the ISR again. If they never "
            "return: `millrace topic reassign` to live boxes. A lower `min.insync.replicas` lets "
            "producers continue with fewer copies."
        ),
    ),
    Alarm(
        "MillraceUnderReplicated",
        WARNING,
        AlarmCondition("millrace_replication_under_replicated_partitions", ">", 0),
        5 * MINUTE,
        "partitions led by this box have a replica that is not in sync",
        "They are served, with fewer copies than they should have; the next death may cost records or make them wait.",
        check=(
            "as for [MillraceUnderMinIsr](#millraceunderminisr). Every partition of one box: that "
            "box or its network. Of one disk: that disk. A few of many boxes: "
            "[MillraceReplicationSlow](#millracereplicationslow)."
        ),
        act="as there. Do not stop another box meanwhile.",
    ),
    Alarm(
        "MillraceReplicationSlow",
        WARNING,
        AlarmCondition("millrace_replication_unreplicated_records", ">", MANY_RECORDS_UNREPLICATED),
        5 * MINUTE,
        "a replica in sync does not keep up with a partition that this box leads",
        "Consumers see records late, and producers with acks=all wait; soon the replica leaves the ISR.",
        check=(
            "on the followers: `millrace top` (disk rounds, CPU), network; a reassignment or "
            "catch-up (`millrace_controller_reassignments_under_way`) takes its share of both."
        ),
        act=("a slow disk: [MillraceDiskSlow](#millracediskslow). A reassignment: throttle it. Otherwise the load: more partitions, more boxes."),
    ),
    Alarm(
        "MillracePreferredImbalance",
        WARNING,
        AlarmCondition("millrace_replication_preferred_imbalance", ">", 0),
        30 * MINUTE,
        "other boxes lead partitions that this box should lead",
        "Load is spread unevenly; leadership has not come back after a fail-over.",
        check=(
            "`millrace topic describe TOPIC`: is the first replica of each partition in its ISR? If "
            "not: [MillraceUnderReplicated](#millraceunderreplicated) first."
        ),
        act=(
            "leadership returns by itself every `leader.imbalance.check.interval.seconds` unless "
            "`auto.leader.rebalance.enable` is off; `millrace topic elect` does it now."
        ),
    ),
    Alarm(
        "MillraceReplicasStalled",
        WARNING,
        AlarmCondition("millrace_replica_stalled_partitions", ">", 0),
        5 * MINUTE,
        "copies of partitions on this box make no progress",
        "They are not in sync, and no help when their leader dies.",
        check=(
            '`millrace status`: topics with "does not follow yet", and of which box; the journal of '
            "`millrace-replica-fetcher`: which error, from which leader or disk."
        ),
        act=("repair the leader's box or its network; a disk of this box that is full or offline: as for that disk."),
    ),
    Alarm(
        "MillraceUncleanElection",
        CRITICAL,
        AlarmCondition("millrace_controller_unclean_elections_total", ">", 0, over_seconds=HOUR),
        0,
        "a replica that was not in sync became leader",
        "Records that were acknowledged are lost; consumers may have read what is no longer there.",
        check=("the controller's journal names topic and partition. It was ordered, or the topic has `unclean.leader.election.enable=true`."),
        act=(
            "inform the topic's producers and consumers. Keep the old leader's disk if they need the "
            "lost records. Replicas on more boxes make this unnecessary."
        ),
    ),
    Alarm(
        "MillraceReadRecordsCut",
        CRITICAL,
        AlarmCondition("millrace_log_writer_truncated_below_high_watermark_total", ">", 0, over_seconds=HOUR),
        0,
        "records on disk {disk} that consumers may have read were cut off",
        "The leader does not have them: an unclean election took place, or something is badly wrong.",
        check=("[MillraceUncleanElection](#millraceuncleanelection) at the same time explains it. The journal of the log-writer names partition and offsets."),
        act=("with an unclean election: as there. Without one: stop the box, keep the disks as they are, and report it."),
    ),
    Alarm(
        "MillraceControllerChanges",
        WARNING,
        AlarmCondition("millrace_controller_terms_total", ">", 2, over_seconds=HOUR),
        0,
        "this box became controller more than twice in an hour",
        "The role wanders; while it does, elections wait.",
        check=("[MillraceSessionsExpired](#millracesessionsexpired) on the boxes that had the role; `journalctl -u millrace-controller`."),
        act="as there. A box that often responds too slowly should not carry the most load.",
    ),
    Alarm(
        "MillraceNoController",
        CRITICAL,
        AlarmCondition("millrace_cluster_has_controller", "==", 0),
        MINUTE,
        "the cluster has no controller",
        "Produce and fetch go on where they can; nothing is created or changed, and no leader is elected when a box dies.",
        check=("do the boxes have ZooKeeper sessions ([MillraceZooKeeperLost](#millracezookeeperlost))? `journalctl -u millrace-controller` on each."),
        act=(
            "as for ZooKeeper. With sessions and without a controller for a minute: restart "
            "`millrace-controller` on one box after the other; produce and fetch continue meanwhile."
        ),
    ),
    Alarm(
        "MillraceZooKeeperLost",
        CRITICAL,
        AlarmCondition("millrace_controller_zookeeper_connected", "==", 0),
        MINUTE,
        "this box has no ZooKeeper session",
        "Its partitions go to other boxes when the session has expired; where it is the only replica it goes on.",
        check=("`systemctl status millrace-zookeeper`, or the ensemble in `zookeeper.connect`; can this box reach a majority of it?"),
        act="bring the majority back. The session is resumed or created again without a restart.",
    ),
    Alarm(
        "MillraceZooKeeperHeap",
        WARNING,
        AlarmCondition("millrace_zookeeper_tree_bytes", ">", 0.25, divided_by="millrace_zookeeper_heap_bytes"),
        MINUTE,
        "ZooKeeper's tree takes more than a quarter of its heap",
        "The server ends when its heap is full, and does not start again with the same tree: nothing is created, and no leader is elected.",
        check="`millrace topic list` (how many topics and partitions); `millrace_zookeeper_znodes`.",
        act="raise `zookeeper.heap.mb` and restart `millrace-zookeeper`, one member after the other; delete unused topics; "
        "lower `max.topics` and `max.partitions.per.box`.",
    ),
    Alarm(
        "MillraceCertificateExpires",
        WARNING,
        AlarmCondition("millrace_acceptor_certificate_left_seconds", "<", 14 * 24 * HOUR),
        MINUTE,
        "the certificate of listener {listener} expires within 14 days",
        "After that Kafka clients, and boxes on the listener of boxes, refuse it: open connections stay, no new one is made.",
        check="`millrace doctor` names file and date.",
        act="replace the file (`millrace cluster certificate renew` for boxes); it is loaded within a second.",
    ),
    Alarm(
        "MillraceSessionsExpired",
        WARNING,
        AlarmCondition("millrace_controller_zookeeper_sessions_lost_total", ">", 0, over_seconds=HOUR),
        0,
        "the ZooKeeper session of this box expired",
        "For the cluster the box was dead: its leaderships went elsewhere. Without a real death it was too slow to be heard.",
        check=(
            "was the box, its network or its ZooKeeper member down? Otherwise it sent nothing for "
            "`zookeeper.session.timeout.ms`: memory, CPU (`millrace top`), a paused virtual machine."
        ),
        act=("repair that. If it happens more than now and then, raise the timeout; failover becomes slower by as much."),
    ),
    Alarm(
        "MillraceCoordinatorLoading",
        CRITICAL,
        AlarmCondition("millrace_coordinator_partitions_loading", ">", 0),
        MINUTE,
        "partitions of {topic} are not served yet",
        "Groups or transactions that belong to them wait: the state is still being read, or a replica in sync has not fetched it.",
        check=(
            "`millrace topic describe __consumer_offsets` (or `__transaction_state`): is a member of "
            "the ISR dead or far behind? The journal of `millrace-coordinator` shows loads that fail."
        ),
        act=("bring that replica back; it leaves the ISR by itself after `replica.lag.time.max.ms`. A load that fails: check the disk and its log-reader."),
    ),
    Alarm(
        "MillraceProduceOverBudget",
        WARNING,
        AlarmCondition("millrace_produce_over_budget_total", ">", 0, over_seconds=5 * MINUTE),
        5 * MINUTE,
        "{process} turns batches away, because a disk does not keep up",
        "Producers try again; more comes in than a disk takes.",
        check=("`millrace top`: which disk is behind; is it slow (round p99), or is there simply much to write?"),
        act=("slow: [MillraceDiskSlow](#millracediskslow). Much: spread the topic over more partitions and disks; `disk.budget.bytes` helps with bursts only."),
    ),
    Alarm(
        "MillraceSyslogLinesLost",
        WARNING,
        AlarmCondition("millrace_ingest_lost_lines_total", ">", 0, over_seconds=5 * MINUTE),
        0,
        "{process} could not store lines of listener {listener} ({reason})",
        "Lines that were received are lost, and counted by reason. After a crash senders that wait for an acknowledgement send theirs again.",
        check=("the listener and the reason in the alarm; `millrace ingest status`; the journal of `millrace-ingest@0` names the topic or disk."),
        act=(
            "`overflow`: as for [MillraceProduceOverBudget](#millraceproduceoverbudget); let heavy "
            "UDP senders use TCP or RELP. `too_large`, `no_key`: fix the sender; the table "
            "`[ingest.dead-letter]` keeps such records. `refused`: the journal has the log-writer's "
            "reason. `crash`: [MillraceProcessRestarts](#millraceprocessrestarts); senders that wait "
            "for answers (not with `acks = 0`) send the lines again, although they are counted here. "
            "Lines of other senders are lost."
        ),
    ),
    Alarm(
        "MillraceSyslogWaits",
        CRITICAL,
        AlarmCondition("millrace_ingest_oldest_waiting_seconds", ">", MINUTE),
        0,
        "{process} has nowhere to put lines of senders: no leader has taken a batch of theirs for a minute",
        "Lines wait in memory, then on the state disk; then senders wait, and datagrams are dropped and counted.",
        check=("`millrace topic describe` for the topics of the tables of senders: which partitions have no leader, or one that does not answer?"),
        act=(
            "as for [MillracePartitionsNotServed](#millracepartitionsnotserved). Only datagrams are "
            "lost by waiting; `millrace ingest status --watch` shows the progress."
        ),
    ),
    Alarm(
        "MillraceIngestSpool",
        WARNING,
        AlarmCondition("millrace_ingest_spool_bytes", ">", 0),
        5 * MINUTE,
        "{process} keeps lines of senders on the state disk, because no leader takes them",
        "When it is full (ingest.spool.bytes) senders wait, and datagrams are dropped and counted.",
        check="as for [MillraceSyslogWaits](#millracesyslogwaits); `df` of the state directory.",
        act=("bring the leaders back. Before a planned long outage: raise `ingest.spool.bytes` if the state disk has the space."),
    ),
    Alarm(
        "MillraceSyslogKernelDrops",
        WARNING,
        AlarmCondition("millrace_ingest_kernel_drops_total", ">", 0, over_seconds=5 * MINUTE),
        0,
        "the kernel dropped syslog datagrams before {process} received them",
        "UDP lines are lost: more come than ingest takes, or the receive buffer is too small.",
        check=("`sysctl net.core.rmem_max` (67108864), the socket's buffer (`ss -uamp 'sport = :514'`), CPU of the ingests in `millrace top`."),
        act=("more `ingests` in the settings (then `millrace units apply`), `sysctl --system`; let heavy senders use TCP."),
    ),
    Alarm(
        "MillraceConsumerLag",
        WARNING,
        AlarmCondition("millrace_consumer_group_lag_records", ">", MANY_RECORDS_BEHIND),
        15 * MINUTE,
        "group {group} is more than a million records behind in topic {topic}",
        "It is stopped or too slow; when retention overtakes it, it loses records.",
        check=("`millrace group describe GROUP`: which members, which partitions; is a member missing, or is the producer faster?"),
        act=("inform the owner of the consumer. A reader that is far behind reads from the disk and does not slow others down."),
    ),
    Alarm(
        "MillraceTableFailing",
        WARNING,
        AlarmCondition("millrace_table_failing", "==", 1),
        15 * MINUTE,
        "topic {topic} is not written to its table",
        "The table lags; when retention overtakes it, it lacks records.",
        check="`millrace table describe TOPIC`: the problem.",
        act="what it says: mount the location, free space, bring a deleted table back ([tables](tables.md)).",
    ),
    Alarm(
        "MillraceClocksDisagree",
        WARNING,
        AlarmCondition("millrace_retention_clock_disagreement_seconds", ">", HOUR),
        0,
        "the wall clock was moved by more than an hour since {disk}'s log-writer started",
        "Nothing is deleted by time until the clocks agree again, so disks fill up.",
        check=("`timedatectl`, `chronyc tracking`; the wall clock jumped by more than an hour since the start."),
        act=("correct the clock, then `systemctl restart 'millrace-log-writer@*'`, one after the other. Until then nothing is deleted by age, and disks fill."),
    ),
)

BY_NAME = {alarm.name: alarm for alarm in ALARMS}
assert len(BY_NAME) == len(ALARMS)
