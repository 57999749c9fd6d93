"""Statistics of a log per minute and host: records by severity, most frequent programs and messages.

The default transformation of `millrace stream`: DataFrame in, DataFrame out, for batch and stream.

A record counts in the minute of its own time. If that differs from its arrival by more than `late`, the sender's clock is
off: the record counts in the minute of its arrival, and in `clock_off`. The arrival is the header's, else the record's time,
at most the start of the micro-batch, which Spark stores with the batch's offsets, so a replay computes the same. So a wrong
clock neither hides its own records nor makes those of other hosts late. A value that is no JSON of a syslog record counts
under the host `-`, whole, as a message.

Counts of programs and messages are exact below SKETCH_ENTRIES different ones in a minute of a host, and estimates above,
because a sketch of fixed size stores them (Apache DataSketches' frequent items). A message's template is its text with every
word that contains a digit replaced by `*`.

Weak spots: templates with names (users, paths without digits) stay separate. If old records are read in several
micro-batches (`maxOffsetsPerTrigger`), a record without a header whose clock is ahead makes those of later batches late.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SEVERITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
ERROR_SEVERITY_MAX = 3
"""err and more severe"""
SLACK = "1 minute"
"""How much later than `late` one partition may be read than another."""
TOP_APPS = 20
TOP_MESSAGES = 10
SKETCH_ENTRIES = 3000
TEMPLATE_CHARACTERS = 160
UNKNOWN_HOST = "-"
SOURCE_SCHEMA = "value binary, timestamp timestamp, headers array<struct<key: string, value: binary>>"
"""The needed columns, as Spark writes a schema."""
FIRST_TIME, LAST_TIME = "timestamp'1970-01-01 00:00:00Z'", "timestamp'9999-01-01 00:00:00Z'"
"""A record's time counts only between these, so that no addition to it overflows."""
_ARRIVAL = "cast(get(filter(headers, header -> header.key = 'arrival_ms'), 0).value as string)"
_IS_ARRIVAL = "'^[0-9]{1,14}$'"
"""Another value of the header is ignored."""
_FIELDS = "host string, app string, severity int, message string"
_WORD_WITH_DIGIT = r"[^\s=:,;\"'()\[\]{}<>|]*[0-9][^\s=:,;\"'()\[\]{}<>|]*"


def log_minutes(records: DataFrame, late: str = "2 minutes") -> DataFrame:
    """Return one row for each complete minute and host. `records` are the source's, with headers."""
    from pyspark.sql import functions as f

    counted = _events(records, late).withWatermark("event_time", _sum_of(late, SLACK)).groupBy(f.window("event_time", "1 minute").alias("window"), "host").agg(
        f.count("*").alias("records"),
        f.count_if(f.col("severity") <= ERROR_SEVERITY_MAX).alias("errors"),
        *(f.count_if(f.col("severity") == number).alias(name) for number, name in enumerate(SEVERITIES)),
        f.count_if(f.col("severity").isNull()).alias("no_severity"),
        f.count_if("is_clock_off").alias("clock_off"),
        f.expr(f"approx_top_k(app, {TOP_APPS}, {SKETCH_ENTRIES})").alias("apps"),
        f.expr(f"approx_top_k(template, {TOP_MESSAGES}, {SKETCH_ENTRIES})").alias("messages"),
    )  # fmt: skip
    minute = f.col("window.start")
    names = ("records", "errors", *SEVERITIES, "no_severity", "clock_off")
    return counted.select(
        f.to_date(minute).alias("date"),
        minute.alias("minute"),
        "host",
        *names[:2],
        (f.col("errors") / f.col("records")).alias("error_rate"),
        *names[2:],
        _renamed("apps", "app"),
        _renamed("messages", "template"),
    )


def template_of(message: Column) -> Column:
    """`disk d3 has 12 bad blocks` → `disk * has * bad blocks`"""
    from pyspark.sql import functions as f

    return f.substring(f.regexp_replace(message, _WORD_WITH_DIGIT, "*"), 1, TEMPLATE_CHARACTERS)


def _events(records: DataFrame, late: str) -> DataFrame:
    from pyspark.sql import functions as f

    text = f.col("value").cast("string")
    own = f.expr(f"least(greatest(timestamp, {FIRST_TIME}), {LAST_TIME})")
    arrival = f.expr(f"timestamp_millis(try_cast(if({_ARRIVAL} rlike {_IS_ARRIVAL}, {_ARRIVAL}, null) as bigint))")
    arrived = f.least(f.coalesce(arrival, own), f.current_timestamp())
    return (
        records.select(own.alias("timestamp"), arrived.alias("arrival"), text.alias("text"), f.from_json(text, _FIELDS).alias("syslog"))
        .withColumn("is_clock_off", f.expr(f"timestamp < arrival - interval {late} or timestamp > arrival + interval {late}"))
        .select(
            f.when(f.col("is_clock_off"), f.col("arrival")).otherwise(f.col("timestamp")).alias("event_time"),
            "is_clock_off",
            f.coalesce("syslog.host", f.lit(UNKNOWN_HOST)).alias("host"),
            f.coalesce("syslog.app", f.lit("-")).alias("app"),
            f.col("syslog.severity").alias("severity"),
            template_of(f.coalesce("syslog.message", "text", f.lit(""))).alias("template"),
        )
    )


def _renamed(column: str, item: str) -> Column:
    from pyspark.sql import functions as f

    return f.expr(f"cast({column} as array<struct<{item}: string, count: bigint>>)").alias(column)


def _sum_of(*intervals: str) -> str:
    return " ".join(intervals)


def is_interval(text: str) -> bool:
    """`90 seconds`, `2 minutes`, `1 hour`"""
    return re.fullmatch(r"[1-9][0-9]{0,5} (second|minute|hour)s?", text) is not None
