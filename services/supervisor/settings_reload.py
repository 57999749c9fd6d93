"""Applies a changed settings file to the running box (`millrace config reload`).

The file is read as at the start. If anything is wrong with it, all problems are reported and nothing
changes. Settings that processes read again (`at_once`) and those that the ingests read at their start
go into box.json; the ingests are restarted for the latter, which loses nothing that they have
received. What else differs is named and left as it is: box.json keeps what the other processes were
started with. Weak: certificates are checked by the command only.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.base.settings import Box
from appliance.runtime.directories import shape_problems
from appliance.runtime.disk_orders import with_kept_disks
from appliance.runtime.preflight import write_box
from appliance.runtime.run_options import ReadSenders, RunOptions, resolve_options
from appliance.runtime.settings_watch import LOG_SEVERITY
from appliance.runtime.unit_files import planned_box

RELOAD = "reload"
"""The verb of the order; its name is "dry-run" to change nothing."""
DRY_RUN = "dry-run"
AT_ONCE, INGEST, THE_BOX = "", "ingest", "box"
SENDERS = "[[ingest.listener]] and [[ingest.route]]"
SEARCH_SETTINGS = frozenset({"search.duration.max.ms", "search.memory.bytes", "search.threads"})
"""The process of each search reads them."""
NOT_OF_INGEST = frozenset({"ingest.arena.bytes", "ingest.sender.silent.ms", "ingest.syslog.topic", "ingest.topic.replication.factor"})
"""Settings of ingestion that other processes read, too."""
ALSO_OF_INGEST = frozenset({"max.connections", "message.max.bytes"})
"""Settings that ingests read at their start and the other processes at once."""
READ_AT_START = {
    "console": frozenset(
        {"host.figures.interval.ms", "http.details.allowed.networks", "http.proxy.networks", "http.proxy.user.header", "search.processes.max"}
    ),
    "tabler": frozenset({"tables.compaction.commits"}),
}
"""Settings of one process, which a restart of that process would apply."""
_OPTIONS = ("listen", "advertise", "kafka_port", "syslog_port", "http_port", "ingest_port", "acceptors", "ingests", "zookeeper_members", "state_directory")

_PORTS = tuple(name for name in _OPTIONS if name.endswith("_port"))


class ReloadPlan(NamedTuple):
    """What differs between a running box and its settings file. `waiting`: what needs a restart of
    the whole box."""

    box: Box
    at_once: list[str]
    by_ingest: list[str]
    waiting: list[str]
    by_process: dict[str, list[str]]
    """Process → settings that it reads at its next start."""
    other_sockets: str = ""
    """Why nothing of the tables of senders is applied."""

    @property
    def ingests(self) -> list[str]:
        """The processes to restart."""
        return [f"ingest@{number}" for number in range(self.box.ingests)] if self.by_ingest else []

    @property
    def not_applied(self) -> str:
        """The sentence about tables of senders that wait, with the revoked tokens in them; or ''."""
        if not self.other_sockets:
            return ""
        return f"nothing of {SENDERS} was applied, tokens included: {self.other_sockets} needs a restart of the box"

    def answer(self, file: str) -> dict[str, str]:
        """Return the answer to the order: names, separated by blanks and commas."""
        lists = {"at_once": self.at_once, "by_ingest": self.by_ingest, "ingests": self.ingests, "waiting:box": self.waiting, "not_applied": [self.not_applied]}
        lists |= {f"waiting:{process}": names for process, names in self.by_process.items()}
        return {"file": file, **{name: ", ".join(values) for name, values in lists.items()}}


def at_once_settings() -> frozenset[str]:
    """Return the settings that processes take over while they run."""
    from appliance.cluster.broker_configs import CONNECTIONS_MAX, CREATION_RATE
    from appliance.cluster.topic_configs import TOPIC_CONFIG_ROWS

    defaults = (name for row in TOPIC_CONFIG_ROWS.values() for name in row.broker_settings)
    return frozenset({*defaults, *SEARCH_SETTINGS, CONNECTIONS_MAX, CREATION_RATE, LOG_SEVERITY})


def reader_of(name: str) -> str:
    """Return the kind of process that alone reads a setting, at its start; `AT_ONCE` or `THE_BOX`."""
    if name in at_once_settings() - ALSO_OF_INGEST:
        return AT_ONCE
    if name in ALSO_OF_INGEST:
        return INGEST
    if name.startswith("ingest.") and name not in NOT_OF_INGEST:
        return INGEST
    return next((process for process, names in READ_AT_START.items() if name in names), THE_BOX)


def plan_reload(box: Box, wanted: Box) -> ReloadPlan:
    """Compare a running box with what its settings file makes of it (`planned_box`). Pure."""
    lists: dict[str, list[str]] = {}
    settings = dict(box.settings)
    for name, value in wanted.settings.items():
        if value != box.setting(name):
            reader = reader_of(name)
            lists.setdefault(reader, []).append(name)
            if reader != THE_BOX:
                settings[name] = value
    at_once, by_ingest, waiting = (lists.pop(each, []) for each in (AT_ONCE, INGEST, THE_BOX))
    senders, other_sockets = box.sender_tables, ""
    if wanted.sender_tables != senders:
        other_sockets = " and ".join(_other_sockets(box, wanted))
        if not other_sockets:
            by_ingest.append(SENDERS)
            senders = wanted.sender_tables
        else:
            waiting.append(f"{SENDERS} ({other_sockets})")
    for name in _OPTIONS:
        value = getattr(wanted, name)
        if value != getattr(box, name) and not (name.endswith("_port") and value == 0):
            waiting.append(f"[box] {name.replace('_directory', '').replace('_', '-')}")
    is_changed = settings != box.settings or senders is not box.sender_tables
    changed = box._replace(settings=settings, sender_tables=senders, reloads=box.reloads + 1) if is_changed else box
    return ReloadPlan(changed, at_once, by_ingest, waiting, lists, other_sockets)


def _other_sockets(box: Box, wanted: Box) -> list[str]:
    """What differs between the sockets of listeners that are open and those that are wanted; port 0 is any."""
    old, new = ({each.name: each for each in of.sender_sockets} for of in (box, wanted))
    found = [f"new port {each.port} of listener {_listener(name)}" for name, each in new.items() if name not in old]
    found += [f"the end of listener {_listener(name)}" for name in old if name not in new]
    for name in new.keys() & old.keys():
        if new[name].port not in (0, old[name].port):
            found.append(f"new port {new[name].port} of listener {_listener(name)}")
        elif new[name][:3] != old[name][:3]:
            found.append(f"the other address or transport of listener {_listener(name)}")
    return found


def _listener(socket_name: str) -> str:
    return socket_name.removeprefix("ingest-")


class SettingsReload:
    """Carries out the order for one incarnation of a box. `given`: its log directories as its options
    named them."""

    def __init__(self, options: RunOptions, layout: BoxLayout, given: list[str], read_senders: ReadSenders) -> None:
        self._options = options
        self._layout = layout
        self._given = given
        self._read_senders = read_senders

    def plan(self, box: Box) -> ReloadPlan:
        """Read the file again. Raises RequestRefused with everything that is wrong with it."""
        if not self._options.config:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "this box was started without a settings file; start it with --config FILE")
        resolved, problems = resolve_options(self._options, os.cpu_count() or 1)
        problems += shape_problems(resolved.data, resolved.state)
        taken = {name: getattr(resolved, name) or getattr(box, name) for name in _PORTS}
        senders = self._read_senders(resolved._replace(**taken))
        problems += senders.problems
        if problems:
            raise RequestRefused(ErrorCode.INVALID_CONFIG, "\n".join([*problems, f"nothing was changed; mend {self._options.config}"]))
        given = resolved.data
        resolved, ordered = with_kept_disks(resolved)
        plan = plan_reload(box, planned_box(resolved, box.box, ordered if ordered is not None else box.disks, senders))
        return plan if given == self._given else plan._replace(waiting=[*plan.waiting, "[box] data"])

    def answer(self, box: Box, order: dict[str, str], log: Logger) -> tuple[Box, dict[str, str]]:
        """Carry out an order: return the changed box, which is then in box.json, and the answer for
        the client: what was done, or the error."""
        try:
            plan = self.plan(box)
            answer = plan.answer(os.path.abspath(self._options.config or ""))
            if order.get("name") == DRY_RUN:
                return box, answer
            if plan.not_applied:
                log.warning(plan.not_applied, reason="settings-waiting")
            if plan.box is box:
                return box, answer
            write_box(self._layout, plan.box)
        except RequestRefused as refusal:
            if refusal.code is not ErrorCode.INVALID_CONFIG:
                return box, {"error": refusal.message}
            return box, {"file": os.path.abspath(self._options.config or ""), "problems": refusal.message}
        except OSError as error:
            return box, {"error": f"could not write {self._layout.box_file}: {error.strerror}"}
        log.use_severity(plan.box.text(LOG_SEVERITY))
        changed = [*plan.at_once, *plan.by_ingest, *(name for names in plan.by_process.values() for name in names)]
        log.notice(f"settings reloaded: {', '.join(changed)}", reason="settings-reloaded")
        return plan.box, answer
