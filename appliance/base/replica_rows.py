"""The settings of the replica-fetcher; `setting_rows` lists them. Names and defaults are Kafka's,
except for the arena.

Weak: a batch larger than the arena could never be copied, so `Box.replica_arena_bytes` may exceed
the setting.
"""

from __future__ import annotations

from appliance.base.setting_row import GIB, HOUR, INT32_MAX, KIB, MIB, SECOND, SettingRow

REPLICA_ROWS = (
    SettingRow(
        "replica.fetcher.arena.bytes",
        64 * MIB,
        "bytes",
        "shared memory for batches on their way from other boxes to the log-writers; at least twice socket.request.max.bytes",
        "memory, taken when the cluster has another box",
        4 * MIB,
        64 * GIB,
    ),
    SettingRow("replica.fetch.max.bytes", MIB, "bytes", "most that is fetched of one partition at once", "others of that leader wait longer", KIB, INT32_MAX),
    SettingRow(
        "replica.fetch.response.max.bytes",
        10 * MIB,
        "bytes",
        "most that is fetched of one leader at once; never more than a quarter of the arena",
        "arena space for each leader",
        64 * KIB,
        INT32_MAX,
    ),
    SettingRow(
        "replica.fetch.wait.max.ms",
        500,
        "ms",
        "how long a leader may keep a fetch for which it has nothing",
        "high watermarks of followers lag",
        1,
        60 * SECOND,
    ),
    SettingRow("replica.fetch.min.bytes", 1, "bytes", "what a leader waits for before it answers a fetch", "acks=all waits longer", 1, INT32_MAX),
    SettingRow(
        "replica.fetch.backoff.ms",
        1 * SECOND,
        "ms",
        "longest pause after an error of a partition; the first is 20 ms, and each doubles it",
        "partitions with trouble lag",
        20,
        HOUR,
    ),
    SettingRow(
        "replica.socket.timeout.ms", 30 * SECOND, "ms", "how long a leader may take for an answer", "a leader that hangs is asked anew later", SECOND, HOUR
    ),
)
