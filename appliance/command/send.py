"""`millrace send`: lines of stdin become records of a topic."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from appliance.base.clock import SystemClock
from appliance.base.errors import MillraceError, RequestRefused
from appliance.command.failures import UsageProblem
from appliance.command.kafka import open_cluster, require_topic_name
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, argument, option
from appliance.command.output import bytes_text, count_text, duration_text, plural, say

if TYPE_CHECKING:
    from appliance.client.producer import RecordProducer

READ_BYTES = 1 << 18
LINGER_MS = 20
HAND_OVER_MS = 100
PROGRESS_MS = 200
DELIVERY_TIMEOUT_MS = 60_000


class Acks(StrEnum):
    """Which replicas must have a record before it counts as sent. Only with `all` a retry never stores a record twice."""

    ALL = "all"
    LEADER = "1"
    NONE = "0"


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


_ACKS = {Acks.ALL: -1, Acks.LEADER: 1, Acks.NONE: 0}


class SendFailed(MillraceError):
    """Some records may not have arrived; the text says how many did."""


def send(
    name: Annotated[str, argument("TOPIC", "The topic; created if the box creates topics by itself.")],
    key_separator: Annotated[
        str | None, option("--key-separator", "-K", metavar="TEXT", help="What is before the first TEXT in a line is the record's key.")
    ] = None,
    acks: Annotated[Acks, option("--acks", help="Wait for all in-sync replicas (no line is stored twice), the leader only, or no reply.")] = Acks.ALL,
    compression: Annotated[Compression, option("--compression", "-z", help="Codec of the batches.")] = Compression.NONE,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Send each line of standard input as one record."""
    require_topic_name(name)
    if key_separator == "":
        raise UsageProblem("--key-separator must not be empty; for a tab write --key-separator $'\\t'")
    separator = None if key_separator is None else key_separator.encode()
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.producer import BatchProducer, RecordProducer, new_identity
        from appliance.records.compression import Codec

        identity = new_identity(cluster) if acks is Acks.ALL else None
        batches = BatchProducer(cluster, identity, acks=_ACKS[acks], delivery_timeout_ms=DELIVERY_TIMEOUT_MS)
        batches.on_notice = lambda notice: say(f"millrace: {notice}")
        producer = RecordProducer(batches, name, codec=Codec[compression.name])
        try:
            Sending(producer, separator, sys.stderr.isatty()).run(read_chunks(sys.stdin.fileno()))
        finally:
            producer.close()


class Sending:
    """One run of the command: lines to records, progress for a person, the sum at the end."""

    def __init__(self, producer: RecordProducer, separator: bytes | None, show_progress: bool) -> None:
        self._producer = producer
        self._separator = separator
        self._show_progress = show_progress
        self._clock = SystemClock()
        self._started_ms = self._clock.monotonic_ms()
        self._shown_ms = self._started_ms
        self._size_bytes = 0

    def run(self, chunks: Iterator[bytes]) -> None:
        try:
            self._send_all(chunks)
            self._producer.flush()
        except KeyboardInterrupt:
            # What was typed so far is meant; a second Ctrl-C ends the waiting too.
            self._producer.flush()
        except RequestRefused as error:
            raise SendFailed(f"{error.message}; {self._how_far()}") from error
        except MillraceError as error:
            raise SendFailed(f"{error}; {self._how_far()}") from error
        finally:
            self._end_progress()
        self._say_sum()

    def _send_all(self, chunks: Iterator[bytes]) -> None:
        rest = b""
        for chunk in chunks:
            if not chunk:
                self._producer.hand_over()
                self._maybe_show_progress()
                continue
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            self._send_lines(lines)
            self._size_bytes += len(chunk)
            self._maybe_show_progress()
        if rest:
            self._send_lines([rest])

    def _send_lines(self, lines: list[bytes]) -> None:
        send_record = self._producer.send
        if self._separator is None:
            for line in lines:
                send_record(line)
            return
        for line in lines:
            key, found, value = line.partition(self._separator)
            if found:
                send_record(value, key)
            else:
                send_record(line)

    def _seconds(self) -> float:
        return max(self._clock.monotonic_ms() - self._started_ms, 1) / 1000

    def _maybe_show_progress(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._show_progress and now_ms - self._shown_ms >= PROGRESS_MS:
            self._shown_ms = now_ms
            acknowledged = self._producer.acknowledged
            text = f"{plural(acknowledged, 'record')}  {count_text(acknowledged / self._seconds())}/s  {bytes_text(self._size_bytes)}"
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def _end_progress(self) -> None:
        if self._show_progress:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _how_far(self) -> str:
        return f"{count_text(self._producer.acknowledged)} of {plural(self._producer.sent, 'record')} were acknowledged"

    def _say_sum(self) -> None:
        seconds = self._seconds()
        count = self._producer.acknowledged
        took = f"{seconds:.1f}s" if seconds < 60 else duration_text(seconds)
        rate = f"{count_text(count / seconds)} records/s, {bytes_text(self._size_bytes / seconds)}/s"
        say(f"sent {plural(count, 'record')} ({bytes_text(self._size_bytes)}) to {self._producer.topic} in {took}: {rate}")


def read_chunks(descriptor: int) -> Iterator[bytes]:
    """What comes, as it comes; b"" when nothing came for LINGER_MS, or after HAND_OVER_MS anyway, so that a slow pipe's lines do not wait."""
    clock = SystemClock()
    lingering = False
    handed_over_ms = clock.monotonic_ms()
    while True:
        ready, _, _ = select.select([descriptor], [], [], LINGER_MS / 1000 if lingering else None)
        if ready:
            chunk = os.read(descriptor, READ_BYTES)
            if not chunk:
                return
            yield chunk
            lingering = True
        now_ms = clock.monotonic_ms()
        if not ready or now_ms - handed_over_ms > HAND_OVER_MS:
            lingering = False
            handed_over_ms = now_ms
            yield b""
