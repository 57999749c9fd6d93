"""What `millrace ingest status` and `millrace config check` print about senders."""

from __future__ import annotations

from appliance.command.output import NOTHING, Column, cell, count_text, duration_text, plain_table, plural
from appliance.senders.accounting import LossReason
from appliance.senders.conditions import FACILITY_NAMES, SEVERITY_NAMES, RouteCondition
from appliance.senders.ingest_figures import IngestFigures, ListenerFigures
from appliance.senders.listener import Protocol, ProxyMode
from appliance.senders.sender_accounts import OTHERS, SenderFigures
from appliance.senders.sender_tables import TableReading

SILENT_SHOWN = 10
ACKNOWLEDGING = (Protocol.RELP, Protocol.FLUENT, Protocol.LUMBERJACK, Protocol.HTTP)
"""Protocols with acknowledgements: their senders send again what was not acknowledged."""
_COUNTS = ("received", "stored", "duplicate", "lost", "refused", "dropped", "in flight")


def status_text(figures: IngestFigures, before: IngestFigures | None, with_senders: bool, seconds: float = 1.0) -> str:
    """Return all figures as text; with records a second if there are figures of `before`."""
    columns = [Column("listener"), Column("protocol"), Column("address"), *(Column(title, is_number=True) for title in _COUNTS)]
    columns += [Column("per second", is_number=True)] if before is not None else []
    earlier = {listener.name: listener.ledger.received for listener in before.listeners} if before is not None else {}
    rows = [_listener_row(listener) + _rate(listener, earlier, before is not None, seconds) for listener in figures.listeners]
    text = plain_table(columns, rows)
    text += "".join(f"{words}\n" for listener in figures.listeners for words in _remarks(listener))
    total = figures.total
    sums = {"stored": total.stored, "duplicate": total.duplicate, "lost": total.counted, "in flight": max(0, total.in_flight)}
    text += f"\n{count_text(total.received)} received = " + " + ".join(f"{count_text(count)} {what}" for what, count in sums.items())
    text += f"; {plural(figures.connections, 'connection')}, {plural(len([known for known in figures.senders if known.host != OTHERS]), 'sender')}\n"
    if figures.closed:
        text += f"connections that were turned away or broken off: {', '.join(f'{count_text(count)} {reason}' for reason, count in figures.closed.items())}\n"
    if with_senders and figures.senders:
        text += "\n" + senders_text(figures.senders, figures.now_ms)
    return text + silent_text(figures)


def _listener_row(listener: ListenerFigures) -> list[str]:
    ledger = listener.ledger
    counts = [ledger.received, ledger.stored, ledger.duplicate, ledger.counted, sum(listener.refused.values()), listener.kernel_drops, max(0, ledger.in_flight)]
    return [listener.name, listener.protocol, listener.place, *map(count_text, counts)]


def _rate(listener: ListenerFigures, earlier: dict[str, int], is_wanted: bool, seconds: float) -> list[str]:
    return [count_text(max(0, listener.ledger.received - earlier.get(listener.name, 0)) / seconds)] if is_wanted else []


def _remarks(listener: ListenerFigures) -> list[str]:
    """Return why records were lost or refused, and what was unusual."""
    parts = [f"{count_text(count)} lost: {_reason_text(listener, reason)}" for reason, count in sorted(listener.counted.items())]
    parts += [f"{count_text(count)} refused: {reason}" for reason, count in sorted(listener.refused.items())]
    odd = {"kept unparsed": listener.unparsed, "cut short": listener.truncated, "copies in further topics": listener.copies}
    parts += [f"{count_text(count)} {what}" for what, count in odd.items() if count]
    return [f"{listener.name}: {', '.join(parts)}"] if parts else []


def _reason_text(listener: ListenerFigures, reason: str) -> str:
    is_crash = reason == LossReason.CRASH
    return f"{reason} (what was not acknowledged, senders that wait send again)" if is_crash and listener.protocol.split()[0] in ACKNOWLEDGING else reason


def senders_text(senders: list[SenderFigures], now_ms: int) -> str:
    """Return one row for each sender, the busiest first."""
    counted = [Column(title, is_number=True) for title in ("received", "stored", "duplicate", "refused")]
    columns = [Column("sender"), *counted, Column("last heard"), Column("to")]
    rows = []
    for known in senders:
        counts = [known.received, known.stored, known.duplicate, known.refused]
        rows.append([known.host, *map(count_text, counts), f"{duration_text(known.silent_ms(now_ms) / 1000)} ago", ", ".join(known.listeners) or NOTHING])
    return plain_table(columns, rows)


def silent_text(figures: IngestFigures) -> str:
    """Return the silent senders, longest first."""
    if not figures.silent:
        return ""
    shown = [f"{cell(known.host)} ({duration_text(known.silent_ms(figures.now_ms) / 1000)})" for known in figures.silent[:SILENT_SHOWN]]
    more = f" and {len(figures.silent) - SILENT_SHOWN} more" if len(figures.silent) > SILENT_SHOWN else ""
    return f"\nsilent: {', '.join(shown)}{more}\n"


def senders_view(reading: TableReading) -> str:
    """Return listeners and routes as the tables of a settings file mean them."""
    columns = [Column("listener"), Column("protocol"), Column("listens at"), Column("topic"), Column("key"), Column("acks"), Column("options")]
    default = ",".join(reading.routes.default.topics)
    rows = []
    for listener in reading.listeners:
        address = f"{listener.address or '(box)'}:{listener.port}"
        options = {"raw": listener.raw, "key required": listener.is_key_required, "client certificates": listener.client_ca}
        options |= {"tokens": listener.tokens, "shared key": listener.shared_key, f"proxy {listener.proxy}": listener.proxy is not ProxyMode.NO}
        options |= {"web pages": listener.allow_origin, "topics": listener.topics or any(token.topics for token in listener.tokens)}
        options |= {"principal": listener.principal or any(token.principal for token in listener.tokens)}
        names = [name for name, value in options.items() if value]
        acks = "all" if listener.acks < 0 else str(listener.acks)
        protocol = f"{listener.protocol} {listener.transport}"
        rows.append([listener.name, protocol, address, listener.topic or default, listener.key.text, acks, ", ".join(names) or NOTHING])
    text = plain_table(columns, rows) + "\n"
    for number, route in enumerate(reading.routes.routes, 1):
        key = "" if route.key is None else f", key {route.key.text}" + (" (required)" if route.is_key_required else "")
        text += f"{number}. {' '.join(map(_condition_text, route.conditions))} -> {','.join(route.topics)}{key}\n"
    dead_letter = reading.routes.dead_letter
    return text + f"default -> {default}; " + (f"dead letters -> {dead_letter}\n" if dead_letter else "dead letters are only counted\n")


def _condition_text(condition: RouteCondition) -> str:
    names = {"severity": SEVERITY_NAMES, "facility": FACILITY_NAMES}.get(condition.subject.kind)
    values = [str(value) if names is None or isinstance(value, str) else names[value] for value in condition.values]
    return ("min-" if condition.is_at_most else "") + ".".join(filter(None, condition.subject)) + "=" + ",".join(values)
