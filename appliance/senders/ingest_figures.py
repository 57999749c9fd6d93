"""What the ingests of a box have counted, by listener and by sender, from shared memory and from
their files of senders.

Pure, except for reading those. A sender is silent after `ingest.sender.silent.ms` without a record.
Weak: counters and files are read one after the other while records arrive, so `in flight` may be
wrong by some records; the files are on tmpfs, so silence before the box started is unknown; senders
above the limit of an ingest are not listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from appliance.base.layout import BoxLayout
from appliance.base.settings import Box
from appliance.senders.accounting import Ledger, labels_of, listeners_of, read_ledger
from appliance.senders.listener import Listener
from appliance.senders.sender_accounts import OTHERS, SenderFigures, add_figures, read_senders, senders_file
from appliance.shm.counters import read_counters

INGEST = "ingest@"


class KnownSenders(NamedTuple):
    """The senders of a box over all its ingests."""

    all: list[SenderFigures]
    """The busiest first, `OTHERS` last."""
    silent: list[SenderFigures]
    """Longest first."""
    limit_ms: int
    now_ms: int

    @property
    def known_count(self) -> int:
        return sum(known.host != OTHERS for known in self.all)

    def document(self) -> dict[str, Any]:
        silent = [{"host": known.host, "silent_ms": known.silent_ms(self.now_ms)} for known in self.silent]
        return {"known": self.known_count, "silent_limit_ms": self.limit_ms, "silent": silent}


def look_at_senders(layout: BoxLayout, process_names: Sequence[str], limit_ms: int, now_ms: int) -> KnownSenders:
    """Read the files of the ingests among these processes."""
    ingests = [name for name in process_names if name.startswith(INGEST)]
    senders = add_figures(known for name in ingests for known in read_senders(senders_file(layout, name)))
    silent = [known for known in senders if known.host != OTHERS and known.silent_ms(now_ms) >= limit_ms]
    return KnownSenders(senders, sorted(silent, key=lambda known: known.last_seen_ms), limit_ms, now_ms)


Values = Mapping[str, int]
"""Counters by label, summed over the ingests."""
ORDINARY_ENDS = ("ended", "relp-closed")
_SUMS = ("acknowledged", "copies", "input_bytes", "unparsed", "truncated", "kernel_drops")


class ListenerFigures(NamedTuple):
    """One listener since the box started. Received = stored + duplicate + `counted` + in flight;
    `refused` and kernel drops were never received.
    """

    name: str
    protocol: str
    place: str
    ledger: Ledger
    acknowledged: int
    copies: int
    input_bytes: int
    unparsed: int
    truncated: int
    kernel_drops: int
    counted: dict[str, int]
    refused: dict[str, int]

    def document(self) -> dict[str, Any]:
        ledger = self.ledger
        sums = {"received": ledger.received, "stored": ledger.stored, "duplicate": ledger.duplicate, "in_flight": ledger.in_flight}
        return {name: value for name, value in self._asdict().items() if name != "ledger"} | sums


class IngestFigures(NamedTuple):
    """All figures, read at one time."""

    listeners: list[ListenerFigures]
    total: Ledger
    connections: int
    senders: list[SenderFigures]
    silent: list[SenderFigures]
    closed: dict[str, int]
    """Connections that ingest refused or closed, by reason, without ordinary ends. What their
    senders sent last may not have been received.
    """
    now_ms: int


def gather(layout: BoxLayout, box: Box, silent_ms: int | None, now_ms: int) -> IngestFigures:
    """Read the figures of every ingest of the box. `silent_ms` None: the setting."""
    names = [name for name in box.process_names() if name.startswith(INGEST)]
    values = add_values(snapshot.values for name in names if (snapshot := read_counters(layout, name)) is not None)
    limit_ms = box.integer("ingest.sender.silent.ms") if silent_ms is None else silent_ms
    senders = look_at_senders(layout, names, limit_ms, now_ms)
    from appliance.senders.sender_tables import tables_of  # the status of a box needs it not

    listeners = describe_listeners(tables_of(box).listeners, box, values)
    return IngestFigures(listeners, read_ledger(values), _sum(values, "ingest.connections", None), senders.all, senders.silent, _closed(values), now_ms)


def add_values(values: Iterable[Values]) -> dict[str, int]:
    """Add up the counters of several processes."""
    summed: dict[str, int] = {}
    for process_values in values:
        for label, value in process_values.items():
            summed[label] = summed.get(label, 0) + value
    return summed


def describe_listeners(listeners: Iterable[Listener], box: Box, values: Values) -> list[ListenerFigures]:
    """Describe the box's listeners in their order, then removed ones that still have counters."""
    ports = {sock.name: sock.port for sock in box.sender_sockets}
    known = {listener.name: listener for listener in listeners}
    described = []
    for name in [*known, *(name for name in listeners_of(values) if name not in known)]:
        listener = known.get(name)
        protocol = place = "-"
        if listener is not None:
            protocol = f"{listener.protocol} {listener.transport}"
            address = listener.address or box.listen
            place = f"{f'[{address}]' if ':' in address else address}:{ports.get(listener.fd_name, listener.port)}"
        acknowledged, copies, input_bytes, unparsed, truncated, kernel_drops = (_sum(values, f"ingest.{counter}", name) for counter in _SUMS)
        counted, refused = _by_reason(values, "ingest.counted", name), _by_reason(values, "ingest.refused", name)
        ledger = read_ledger(values, name)
        described.append(ListenerFigures(name, protocol, place, ledger, acknowledged, copies, input_bytes, unparsed, truncated, kernel_drops, counted, refused))
    return described


def _sum(values: Values, counter: str, listener: str | None) -> int:
    return sum(value for label, value in values.items() if label.partition("{")[0] == counter and listener in (None, labels_of(label)[1].get("listener")))


def _by_reason(values: Values, counter: str, listener: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for label, value in values.items():
        name, labels = labels_of(label)
        if name == counter and labels.get("listener") == listener and value:
            found[labels.get("reason", "")] = found.get(labels.get("reason", ""), 0) + value
    return found


def _closed(values: Values) -> dict[str, int]:
    found: dict[str, int] = {}
    for label, value in sorted(values.items()):
        name, labels = labels_of(label)
        if name == "ingest.closed" and value and labels["reason"] not in ORDINARY_ENDS:
            found[labels["reason"]] = value
    return found


def document_of(figures: IngestFigures, with_senders: bool) -> dict[str, Any]:
    """Return what `--json` prints."""
    total = figures.total
    document: dict[str, Any] = {
        "received": total.received,
        "stored": total.stored,
        "duplicate": total.duplicate,
        "counted": total.counted,
        "in_flight": total.in_flight,
        "resent": total.resent,
        "connections": figures.connections,
        "closed": figures.closed,
        "listeners": [listener.document() for listener in figures.listeners],
        "silent": [_sender(known, figures.now_ms) for known in figures.silent],
    }
    return document | {"senders": [_sender(known, figures.now_ms) for known in figures.senders]} if with_senders else document


def _sender(known: SenderFigures, now_ms: int) -> dict[str, Any]:
    return known._asdict() | {"silent_ms": known.silent_ms(now_ms)}
