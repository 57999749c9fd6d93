"""Every alarm of a box. `systemd/prometheus-alerts.yml` is made from these rows, and the console looks at the same ones by itself.

What to check and to do is told in the runbook, `systemd/README.md`, under the alarm's name. Owned by nobody. Weak spot: thresholds fit a box of cheap disks and
are not settings; who wants others edits a copy of the rules.
"""

from __future__ import annotations

from appliance.console.alarm import CRITICAL, HOUR, MINUTE, WARNING, Alarm, Condition

MANY_RECORDS_BEHIND = 1_000_000

ALARMS: tuple[Alarm, ...] = (
    Alarm(
        "MillraceDown",
        CRITICAL,
        None,
        MINUTE,
        "{instance} does not answer Prometheus",
        "The console or the whole box is down; nobody watches it.",
        'up{job="millrace"} == 0',
    ),
    Alarm(
        "MillraceProcessDown",
        CRITICAL,
        Condition("millrace_process_serving", "==", 0),
        MINUTE,
        "{process} does not serve",
        "What that process does for its users waits; its state is in millrace_process_state.",
    ),
    Alarm(
        "MillraceProcessRestarts",
        WARNING,
        Condition("millrace_process_starts_total", ">", 3, over_seconds=15 * MINUTE),
        0,
        "{process} was started more than three times in 15 minutes",
        "It dies again and again; each time its users wait a moment.",
    ),
    Alarm(
        "MillraceWatchdogKill",
        WARNING,
        Condition("millrace_process_watchdog_kills_total", ">", 0, over_seconds=HOUR),
        0,
        "{process} was killed because it did not turn",
        "It hung: on its disk, on a machine without memory or processor time, or by a mistake of ours.",
    ),
    Alarm(
        "MillraceDiskOffline",
        CRITICAL,
        Condition("millrace_disk_state", "==", 1, (("state", "offline"),)),
        0,
        "disk {disk} is offline",
        "It failed, or its directory is empty: its partitions are neither written nor read.",
    ),
    Alarm(
        "MillraceDiskHung",
        CRITICAL,
        Condition("millrace_disk_state", "==", 1, (("state", "hung"),)),
        30,
        "disk {disk} hangs",
        "It does not answer: its partitions are neither written nor read until it does.",
    ),
    Alarm(
        "MillraceDiskFencedAgain",
        WARNING,
        Condition("millrace_disk_recent_fences", ">=", 2),
        0,
        "disk {disk} was fenced again",
        "It is too slow for its load, or dying: producers of its partitions go back and forth with it.",
    ),
    Alarm(
        "MillraceDiskSlow",
        WARNING,
        Condition("millrace_log_writer_append_round_seconds", ">", 0.5, over_seconds=5 * MINUTE, quantile=0.99, by="disk"),
        5 * MINUTE,
        "appends on disk {disk} take longer than half a second (p99)",
        "Producers of its partitions wait; the disk, its cable or its write cache is not what it was.",
    ),
    Alarm(
        "MillraceDiskFull",
        CRITICAL,
        Condition("millrace_disk_state", "==", 1, (("state", "full"),)),
        0,
        "disk {disk} is full",
        "Its partitions are read, not written.",
    ),
    Alarm(
        "MillraceDiskFillsUp",
        WARNING,
        Condition("millrace_disk_free_bytes", "<", 0.1, divided_by="millrace_disk_size_bytes"),
        5 * MINUTE,
        "disk {disk} has less than a tenth of its space free",
        "Soon its oldest records are deleted before their time.",
    ),
    Alarm(
        "MillraceRecordsDeletedForSpace",
        WARNING,
        Condition("millrace_retention_segments_total", ">", 0, (("policy", "free_space_reserve"),), over_seconds=HOUR),
        0,
        "records on disk {disk} were deleted before their time, because it runs full",
        "Consumers that are far behind have lost records; retention promises more than the disk holds.",
    ),
    Alarm(
        "MillraceStorageFailures",
        CRITICAL,
        Condition("millrace_log_writer_storage_failures_total", ">", 0, over_seconds=15 * MINUTE),
        0,
        "disk {disk} answered with errors",
        "Its directory was taken offline; what was not synced is read again when it is back.",
    ),
    Alarm(
        "MillraceDamagedBatches",
        CRITICAL,
        Condition("millrace_scrub_damages_total", ">", 0, over_seconds=HOUR),
        0,
        "damaged places ({kind}) were found on disk {disk}",
        "Records in closed segments cannot be read as they were written; there is no second copy.",
    ),
    Alarm(
        "MillracePartitionsNotServed",
        CRITICAL,
        Condition("millrace_topic_partitions_not_served", ">", 0),
        MINUTE,
        "partitions of topic {topic} are not served",
        "Their producers and consumers wait.",
    ),
    Alarm(
        "MillraceProduceOverBudget",
        WARNING,
        Condition("millrace_produce_over_budget_total", ">", 0, over_seconds=5 * MINUTE),
        5 * MINUTE,
        "{process} turns batches away, because a disk does not keep up",
        "Producers try again; more comes in than a disk takes.",
    ),
    Alarm(
        "MillraceSyslogLinesLost",
        WARNING,
        Condition("millrace_ingest_lost_lines_total", ">", 0, over_seconds=5 * MINUTE),
        0,
        "{process} could not store syslog lines ({reason})",
        "Lines that were received are lost, and counted by reason.",
    ),
    Alarm(
        "MillraceSyslogKernelDrops",
        WARNING,
        Condition("millrace_ingest_kernel_drops_total", ">", 0, over_seconds=5 * MINUTE),
        0,
        "the kernel dropped syslog datagrams before {process} received them",
        "UDP lines are lost: more come than ingest takes, or the receive buffer is too small.",
    ),
    Alarm(
        "MillraceConsumerLag",
        WARNING,
        Condition("millrace_consumer_group_lag_records", ">", MANY_RECORDS_BEHIND),
        15 * MINUTE,
        "group {group} is more than a million records behind in topic {topic}",
        "It is stopped or too slow; when retention overtakes it, it loses records.",
    ),
    Alarm(
        "MillraceClocksDisagree",
        WARNING,
        Condition("millrace_retention_clock_disagreement_seconds", ">", HOUR),
        0,
        "the wall clock was moved by more than an hour since {disk}'s log-writer started",
        "Nothing is deleted by time until the clocks agree again, so disks fill up.",
    ),
)

BY_NAME = {alarm.name: alarm for alarm in ALARMS}
assert len(BY_NAME) == len(ALARMS)
