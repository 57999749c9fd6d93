"""Runs the beginning and the end of a test, in the master (or in the one process there is): topic, groups and a first look; then rest, settling, a last
look, and the comparison.

Workers receive a phase and answer with their ledgers, four times a second. Nothing is waited for longer than counts keep moving. Weak spot: a
worker that has died is known by its ledger, which never becomes quiet; so the end takes the whole patience then.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

import gevent

from appliance.base.errors import MillraceError
from loadtest.users.box_view import MetadataCache
from loadtest.users.crew import CLOSE_SECONDS, Phase
from loadtest.users.ledger import Totals, add_documents
from loadtest.users.limits import RequestFigures, exceeded
from loadtest.users.options import limits_of
from loadtest.users.reconciliation import Expected, Look, Reconciliation, StoredRange, reconcile
from loadtest.users.targets import addresses_of, metrics_url
from loadtest.users.verdict import Verdict

LOOK_SECONDS = 0.2
WRITERS = frozenset({"produce"})
SENDERS = frozenset({"syslog-udp", "syslog-tcp"})


class Conductor:
    """One for the master's whole run; a test begins with `begin` and ends with `finish`."""

    def __init__(self, options: Any, kinds: set[str], tell_phase: Callable[[Phase], None], workers: Callable[[], int]) -> None:
        self.options = options
        self._kinds = kinds
        self._tell_phase = tell_phase
        self._workers = workers
        self._view = MetadataCache(addresses_of(options.host), metrics_url(options))
        self._wants_topic = not options.topic
        self.documents: dict[str, dict[str, Any]] = {}
        self._before = Look({}, None)
        self._expected = Expected("", "", (), ())
        self._reconciliation: Reconciliation | None = None
        self._troubles: list[str] = []

    # --- the beginning

    def begin(self) -> None:
        """Topic, groups, and the look that all is counted from. Raises MillraceError where the box does not answer."""
        options = self.options
        self.documents.clear()
        self._reconciliation, self._troubles = None, []
        options.run_id = f"lt{secrets.token_hex(3)}"
        if self._wants_topic:
            options.topic = f"loadtest-{options.run_id}"
        produces, sends, consumes = bool(self._kinds & WRITERS), bool(self._kinds & SENDERS), "consume" in self._kinds
        if produces or not sends:
            self._view.ensure_topic(options.topic, options.partitions)
        topics = tuple([options.topic] * (produces or not sends) + [options.syslog_topic] * sends)
        options.consumed_topics = ",".join(topics)
        groups = tuple(f"{options.run_id}-g{number}" for number in range(options.groups)) if consumes else ()
        self._expected = Expected(options.topic if produces else "", options.syslog_topic if sends else "", groups, topics, options.others_write)
        self._before = self._view.look(topics, with_books=sends)
        if not produces and not sends:
            # A run that only reads, reads all that is there.
            starts = {partition: StoredRange(known.log_start_offset, known.log_start_offset) for partition, known in self._before.stored.items()}
            self._before = Look(starts, None)
        self._view.begin_groups(groups, self._before.stored)

    def add_trouble(self, words: str) -> None:
        """Something that makes the run worth nothing, whatever the counts say."""
        self._troubles.append(words)

    @property
    def totals(self) -> Totals:
        return add_documents(self.documents.values())

    # --- the end

    def finish(self, say: Callable[[str], None]) -> None:
        """Senders rest, consumers read on, until everything adds up or nothing moves any more; then all clients are closed."""
        self._tell_phase(Phase.DRAIN)
        say("the load is over; waiting until everything is stored, counted and consumed …")
        trouble = self._settle()
        if trouble:
            self._troubles.append(trouble)
        self._tell_phase(Phase.CLOSE)
        deadline = time.monotonic() + CLOSE_SECONDS
        while (workers := self._workers()) and not (self.totals.are_closed and self.totals.processes >= workers) and time.monotonic() < deadline:
            gevent.sleep(LOOK_SECONDS)
        self._judge_commits()

    def _settle(self) -> str:
        """Looks until it balances; what was in the way, in words, if that is not all in the reconciliation."""
        moved_at, last = time.monotonic(), None
        while True:
            trouble = ""
            totals = self.totals
            try:
                look = self._view.look(self._expected.consumed_topics, with_books=bool(self._expected.syslog_topic))
            except MillraceError as error:
                look, trouble = None, f"the box did not answer at the end: {error}"
            if look is not None:
                self._reconciliation = reconcile(self._expected, totals, self._before, look)
                if self._all_are_quiet(totals) and self._reconciliation.balances:
                    return ""
            if not self._all_are_quiet(totals):
                trouble = trouble or "processes were stopped, or died, before they had reported all their counts"
            if not self._workers():
                return trouble
            state = (totals, look)
            if state != last:
                moved_at, last = time.monotonic(), state
            elif time.monotonic() - moved_at > self.options.patience:
                return trouble
            gevent.sleep(LOOK_SECONDS)

    def _all_are_quiet(self, totals: Totals) -> bool:
        """A worker that has reported nothing yet is not: its records would be missed, or, where it has none, a worker that never began would go unnoticed."""
        return totals.are_quiet and totals.processes >= self._workers()

    def _judge_commits(self) -> None:
        """When its members have left, a group has committed what it consumed."""
        if not self._expected.groups or self._reconciliation is None or not self._reconciliation.balances or self._expected.others_write:
            return
        try:
            left = self._view.uncommitted(self._expected.groups, self._view.stored(self._expected.consumed_topics))
        except MillraceError as error:
            self._troubles.append(f"the box did not tell the groups' offsets: {error}")
        else:
            self._troubles += [f"{group} consumed all, but {count:,} records are not committed" for group, count in left.items() if count]

    def verdict(self, figures: list[RequestFigures]) -> Verdict:
        """Once the last figures are there."""
        totals = self.totals
        dropped = self._dropped(totals)
        limits = exceeded(limits_of(self.options), figures, totals.lines_sent.get("udp", 0), dropped)
        return Verdict(self._reconciliation, limits, self._troubles)

    def _dropped(self, totals: Totals) -> int:
        rows = self._reconciliation.rows if self._reconciliation else ()
        return sum(row.counted for row in rows if row.flow.startswith("lines by udp"))

    def close(self) -> None:
        self._view.close()
