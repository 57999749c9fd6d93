"""Every sender that waits for an answer, a box that listens for each, and processes that are killed under them; then a real consumer counts.

`KINDS` is the documented list: by what each sender's replays are recognized, and which are not. A run begins its senders, kills while each of them is at
work, lets them finish, and compares what was confirmed to each with what librdkafka reads, and the counters with both. Moments come from a seed.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lab import client_packages
from lab.certificates import Authority, Certificate
from lab.library_senders import (
    LogstashSender,
    WindowSender,
    bulk_with_ids,
    bulk_without_ids,
    otlp_grpc,
    otlp_http,
    otlp_http_with_key,
)
from lab.program_senders import (
    JournalSender,
    missing_command,
    missing_omelasticsearch,
    npm_fluent,
    omelasticsearch,
    omrelp,
    omrelp_tls,
    winston_elasticsearch,
    winston_loki,
)
from lab.reconcile import Balance, Reconciliation
from lab.request_senders import AckingSender, ChunkSender, gelf_with_key, gelf_without_key, loki_sender, ndjson_sender
from lab.running_box import eventually, listener, start_box
from lab.told_senders import Feed, Kind, Place, Promise, ToldSender

ONCE, AT_LEAST_ONCE = Promise.ONCE, Promise.AT_LEAST_ONCE
_rsyslog = partial(missing_command, "rsyslogd")
KINDS: Sequence[Kind] = (
    Kind("rsyslog-omrelp", "relp", "tcp", ONCE, "the stream of its frames", omrelp, _rsyslog),
    Kind("rsyslog-omrelp-tls", "relp", "tls", ONCE, "the stream of its frames", omrelp_tls, _rsyslog),
    Kind("rsyslog-omelasticsearch", "http", "tcp", ONCE, "`_id` of each item", omelasticsearch, missing_omelasticsearch),
    Kind("fluent-chunks", "fluent", "tcp", ONCE, "the chunk's id", ChunkSender),
    Kind("npm-fluent-logger", "fluent", "tcp", ONCE, "the chunk's id; it forgets what was not acknowledged", npm_fluent, client_packages.missing_js),
    Kind("pylogbeat", "lumberjack", "tcp", ONCE, "the stream of its frames", WindowSender),
    Kind("python-logstash-async", "lumberjack", "tcp", ONCE, "the stream of its frames", LogstashSender),
    Kind("otlp-http", "http", "tcp", AT_LEAST_ONCE, "none", otlp_http),
    Kind("otlp-http-key", "http", "tcp", ONCE, "`Idempotency-Key`", otlp_http_with_key),
    Kind("otlp-grpc", "http", "tcp", AT_LEAST_ONCE, "none", otlp_grpc),
    Kind("elasticsearch-py-ids", "http", "tcp", ONCE, "`_id` of each item", bulk_with_ids),
    Kind("elasticsearch-py", "http", "tcp", AT_LEAST_ONCE, "none", bulk_without_ids),
    Kind("winston-elasticsearch", "http", "tcp", AT_LEAST_ONCE, "none", winston_elasticsearch, client_packages.missing_js),
    Kind("winston-loki", "http", "tcp", AT_LEAST_ONCE, "none", winston_loki, client_packages.missing_js),
    Kind("loki-push-key", "http", "tcp", ONCE, "`Idempotency-Key`", loki_sender),
    Kind("splunk-hec-acks", "http", "tcp", ONCE, "channel and bytes, because it asks `/ack` before it sends", AckingSender),
    Kind(
        "journal-upload",
        "http",
        "tcp",
        ONCE,
        "the cursor of each entry",
        JournalSender,
        partial(missing_command, "systemd-journal-upload", "systemd-journal-remote"),
    ),
    Kind("ndjson-key", "http", "tcp", ONCE, "`Idempotency-Key`", ndjson_sender),
    Kind("gelf-http", "http", "tcp", AT_LEAST_ONCE, "none", gelf_without_key),
    Kind("gelf-http-key", "http", "tcp", ONCE, "`Idempotency-Key`", gelf_with_key),
)
VICTIMS = ("ingest@0", "acceptor@0", "log-writer@d0", "controller")
PARTITIONS = 2
RESTART_SECONDS = 20.0
SETTLE_SECONDS = 90.0


class Finding(NamedTuple):
    """What became of one sender's records."""

    sender: str
    sent: int
    told: int
    there: int
    lost: Sequence[int]
    """Confirmed, and not there."""
    twice: int
    """Records that are there more than once."""
    strangers: Sequence[str]
    """No sender sent them."""
    balance: Balance


class SenderSite:
    """A box with a listener and a topic for each kind, and its certificates."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        server = self.authority.sign("localhost", "DNS:localhost")
        self.certificate = self.authority.sign("relay.example.com")
        senders = {"listener": [_listener(kind, self.authority, server) for kind in KINDS]}
        self.box = start_box(directory / "box", disks=1, settings={"ingest.syslog.partitions": PARTITIONS}, senders=senders)
        self._runs = 0

    def sender(self, kind: Kind, per_second: int) -> ToldSender:
        """A new one, whose records no other sender sends."""
        self._runs += 1
        word = f"{kind.name}-{self._runs}"
        return kind.make(Place(self.box.sender(kind.name), kind.name, word, self.directory, self.authority, self.certificate), Feed(per_second))

    def stop(self) -> None:
        assert self.box.stop() == 0, self.box.messages
        assert self.box.leftovers() == []


def _listener(kind: Kind, authority: Authority, server: Certificate) -> dict[str, object]:
    common = listener(kind.name, kind.protocol, kind.transport, topic=kind.name)
    if kind.transport != "tls":
        return common
    certificate, private_key = str(server.certificate), str(server.private_key)
    return common | {"certificate": certificate, "private-key": private_key, "client-ca": str(authority.certificate)}


@contextmanager
def sending(site: SenderSite, kinds: Iterable[Kind], per_second: int) -> Iterator[SenderRun]:
    """Senders at work; what still runs at the end is ended."""
    run = SenderRun(site, list(kinds), per_second)
    try:
        yield run
    finally:
        run.close()


class SenderRun:
    """`kill` as often as wanted, then `finish`."""

    def __init__(self, site: SenderSite, kinds: Sequence[Kind], per_second: int) -> None:
        self._box = site.box
        self._kinds = {kind.name: kind for kind in kinds}
        self._books = Reconciliation(site.box, *self._kinds)
        self._acknowledged = self._all_acknowledged()
        self._senders = {kind.name: site.sender(kind, per_second) for kind in kinds}
        self._has_killed_ingest = False
        for sender in self._senders.values():
            sender.start()

    def close(self) -> None:
        for sender in self._senders.values():
            sender.feed.end()
        self._close_senders()
        self._books.close()

    def _close_senders(self) -> None:
        for sender in self._senders.values():
            sender.begin_close()
        for sender in self._senders.values():
            sender.close()

    # -- while they send

    def kill(self, victims: Sequence[str], chance: random.Random, most: int = 200) -> None:
        """kill -9 of these at once, when every sender has been acknowledged some more, by chance up to `most`; returns when they serve again."""
        self.await_progress(chance, most)
        pids = self._box.pids()
        for name in victims:
            self._box.kill(name)
        self._has_killed_ingest = self._has_killed_ingest or "ingest@0" in victims
        for name in victims:
            self._box.await_restart(name, pids[name], RESTART_SECONDS)

    def await_progress(self, chance: random.Random, most: int) -> None:
        """Until each sender was answered for so many records more."""
        wanted = {name: acknowledged + chance.randint(1, most) for name, acknowledged in self._acknowledged.items()}

        def lagging() -> list[str]:
            now = self._all_acknowledged()
            return [f"{name} ({now[name]} of {count})" for name, count in wanted.items() if now[name] < count]

        deadline = time.monotonic() + SETTLE_SECONDS
        while behind := lagging():
            failed = [sender.failure for sender in self._senders.values() if sender.failure]
            assert not failed, "\n".join(failed)
            assert time.monotonic() < deadline, f"not acknowledged within {SETTLE_SECONDS:g} s: {', '.join(behind)}"
            time.sleep(0.005)
        self._acknowledged = self._all_acknowledged()

    def _all_acknowledged(self) -> dict[str, int]:
        values = self._box.counters("ingest@0").values
        return {name: values.get(f'ingest.acknowledged{{listener="{name}"}}', 0) for name in self._kinds}

    # -- at the end

    def finish(self) -> list[Finding]:
        """Let all finish, and see what is there."""
        for sender in self._senders.values():
            sender.feed.end()
        for sender in self._senders.values():
            sender.finish(SETTLE_SECONDS)
        self._await_told()
        self._close_senders()
        balances = self._await_settled()
        counted = self._counted()
        return [self._finding(name, counted[name], balances[name]) for name in self._senders]

    def _await_told(self) -> None:
        """Until nothing is missing, or the time is over: rsyslog may still be at it."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            counted = self._counted()
            if all(sender.text(number) in counted[name] for name, sender in self._senders.items() for number in sender.told):
                return
            time.sleep(0.05)

    def _counted(self) -> dict[str, Counter[str]]:
        return {name: Counter(_text(document["message"]) for document in documents) for name, documents in self._books.all_records().items()}

    def _await_settled(self) -> dict[str, Balance]:
        """The balances, when nothing is in flight."""

        def settled() -> dict[str, Balance]:
            balances = self._books.balances()
            return balances if not any(balances[name].in_flight for name in self._kinds) else {}

        found: dict[str, Balance] = eventually(settled, "nothing is in flight", SETTLE_SECONDS)
        return found

    def _finding(self, name: str, there: Counter[str], balance: Balance) -> Finding:
        sender = self._senders[name]
        sent = {sender.text(number) for number in range(sender.feed.given)}
        lost = [number for number in sorted(sender.told) if sender.text(number) not in there]
        twice = sum(count > 1 for count in there.values())
        return Finding(name, len(sent), len(sender.told), there.total(), lost, twice, sorted(there.keys() - sent), balance)

    def judge(self, findings: Sequence[Finding]) -> None:
        """Fail unless the promise of each sender's protocol was kept, and the counters agree with what is there.

        Counters: what a dead ingest had in flight is split between `stored` and `crash` right in the sum, by listener perhaps not; and what was appended and
        not read by any process may be counted as `crash`."""
        for finding in findings:
            assert not finding.lost, f"confirmed and not there: {finding}"
            assert not finding.strangers, f"no sender sent it: {finding}"
            if self._kinds[finding.sender].promise is ONCE:
                assert not finding.twice, f"stored twice: {finding}"
            assert finding.balance.acknowledged >= finding.told, f"confirmed, and not counted as acknowledged: {finding}"
        written, counted, there = (
            sum(column) for column in zip(*((f.balance.stored + f.balance.copies, f.balance.counted, f.there) for f in findings), strict=True)
        )
        words = f"{written} stored, {counted} counted, {there} in the topics: {findings}"
        assert written <= there <= written + counted, words
        assert self._has_killed_ingest or not counted, words


def _text(message: str) -> str:
    """Word and number: winston-loki puts a blank behind, rsyslog one before."""
    return " ".join(message.split()[:2])
