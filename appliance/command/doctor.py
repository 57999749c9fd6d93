"""`millrace doctor`: is this machine fit for the box, and is the box that runs on it well placed? A line each: ok, warning or problem, and what to do.

Works with and without a running box: a running one is looked at as it is (its `box.json`), else as `millrace run` with the same options would start it.
Nothing is changed. Weak spot: what load does to a machine is not looked at; that is what `millrace top` shows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from appliance.base.clock import SystemClock
from appliance.base.errors import MillraceError
from appliance.command.failures import EXIT_FAILED, UsageProblem
from appliance.command.findings import OK, PROBLEM, WARNING, Finding, from_sentence
from appliance.command.options import JsonOption, option
from appliance.command.output import plural

if TYPE_CHECKING:
    from appliance.base.settings import Box
    from appliance.cluster.metadata_image import MetadataImage
    from appliance.command.finding import FoundBox


class Patient(NamedTuple):
    """`problems`: what is wrong with the options themselves."""

    box: Box
    is_running: bool
    problems: list[str]
    disk_states: Mapping[str, str] = MappingProxyType({})
    """Of a running box: what it says of its disks, by name."""
    settings_file: str = ""
    image: MetadataImage | None = None
    """Of a running box: the cluster as it sees it."""


def doctor(
    data: Annotated[list[str] | None, option("--data", metavar="DIR", help="A data directory; may be given several times. [default: as for run]")] = None,
    state: Annotated[str | None, option("--state", metavar="DIR", help="The state directory. [default: ./var/state]")] = None,
    listen: Annotated[str | None, option("--listen", metavar="HOST", help="Address to listen on. [default: 127.0.0.1]")] = None,
    advertise: Annotated[str | None, option("--advertise", metavar="HOST", help="Name or address that clients receive. [default: as for run]")] = None,
    kafka_port: Annotated[int | None, option("--kafka-port", metavar="PORT", help="For Kafka clients. [default: 9092]")] = None,
    syslog_port: Annotated[int | None, option("--syslog-port", metavar="PORT", help="For syslog. [default: 5514]")] = None,
    http_port: Annotated[int | None, option("--http-port", metavar="PORT", help="For the console, metrics and health checks. [default: 8080]")] = None,
    ingest_port: Annotated[int | None, option("--ingest-port", metavar="PORT", help="For senders by HTTP. [default: 8081]")] = None,
    zookeeper: Annotated[str | None, option("--zookeeper", metavar="HOST:PORT,…", help="An ensemble to use. [default: one of our own]")] = None,
    zookeeper_members: Annotated[list[str] | None, option("--zookeeper-members", metavar="ID=HOST,…", help="The ensemble of the boxes themselves.")] = None,
    broker_id: Annotated[int | None, option("--broker-id", metavar="N", help="Number of this box in its cluster.")] = None,
    config: Annotated[str | None, option("--config", metavar="FILE", help="Settings file of the box.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check machine, disks, addresses and ports; exit code 1 if there is a problem.

    A running box with one of the data directories is looked at as it runs; else what `millrace run` with these options would meet.
    """
    from appliance.runtime.run_options import RunOptions

    options = RunOptions(data=data or None, state=state, listen=listen, advertise=advertise, kafka_port=kafka_port, syslog_port=syslog_port,
                         http_port=http_port, ingest_port=ingest_port, zookeeper=zookeeper, zookeeper_members=zookeeper_members or None, broker_id=broker_id,
                         config=config)  # fmt: skip
    patient = find_patient(options)
    findings = examine(patient)
    if as_json:
        document = {"running": patient.is_running, "findings": [finding._asdict() for finding in findings]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        print_findings(patient, findings)
    if any(finding.level == PROBLEM for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def find_patient(options: object) -> Patient:
    """The running box, else the one that would be started."""
    from appliance.base.layout import name_disks
    from appliance.base.settings import Box
    from appliance.base.zookeeper_access import tls_file_problems
    from appliance.base.zookeeper_member import connect_string
    from appliance.command.box_status import image_of
    from appliance.command.finding import SYSTEM_SETTINGS_FILE, find_running_box
    from appliance.runtime.directories import in_use_problem, is_supervisor, shape_problems, writable_problem
    from appliance.runtime.run_options import RunOptions, resolve_options
    from appliance.security.tls_contexts import file_problems
    from appliance.senders.table_checks import read_sender_table

    assert isinstance(options, RunOptions)
    try:
        found = find_running_box(options.data[0] if options.data else None, options.config)
        if is_supervisor(int(found.box["pid"]), found.layout):
            box = Box.from_document({**found.box})
            file = options.config or (SYSTEM_SETTINGS_FILE if box.managed_by == "systemd" else "")
            return Patient(box, True, [], _disk_states(found), file, image_of(found.layout))
    except (UsageProblem, TypeError, OSError, ValueError):
        pass  # no box of this release; what is wrong with the settings file is said below
    resolved, problems = resolve_options(options, os.cpu_count() or 1)
    senders = read_sender_table(resolved)
    problems += [*senders.problems, *(senders.certificate_check() if senders.certificate_check is not None else [])]
    problems += [*file_problems(resolved.listeners, resolved.settings), *tls_file_problems(resolved.settings)]
    box = Box(
        box="", broker_id=resolved.broker_id or 1, disks=name_disks(resolved.data), state_directory=resolved.state, listen=resolved.listen,
        advertise=resolved.advertise, kafka_port=resolved.kafka_port, syslog_port=resolved.syslog_port, http_port=resolved.http_port,
        ingest_port=resolved.ingest_port, sender_tables=senders.tables, sender_sockets=list(senders.sockets), listeners=resolved.listeners,
        acceptors=resolved.acceptors, ingests=resolved.ingests,
        zookeeper=resolved.zookeeper or connect_string(resolved.zookeeper_members, resolved.broker_id or 0), embedded_zookeeper=resolved.runs_zookeeper,
        zookeeper_members=[member.text for member in resolved.zookeeper_members], settings=resolved.settings,
    )  # fmt: skip
    problems += shape_problems(resolved.data, resolved.state)
    state_problem = writable_problem(resolved.state, "--state") or in_use_problem(resolved.state, "--state")
    file = resolved.old_table or resolved.settings_file
    return Patient(box, False, problems + ([state_problem] if state_problem else []), settings_file=file)


def _disk_states(found: FoundBox) -> dict[str, str]:
    from appliance.command.box_status import describe_disks, read_shared_memory

    disks = found.box["disks"]
    try:
        reading = read_shared_memory(found.layout, [disk["name"] for disk in disks], SystemClock())
    except (MillraceError, OSError):
        return {}  # only root and the box's user may ask it
    return {disk.name: disk.state for disk in describe_disks(disks, reading)}


def examine(patient: Patient) -> list[Finding]:
    """Everything, however much is wrong."""
    from appliance.command.doctor_disks import judge_states, look_at_disks
    from appliance.command.doctor_machine import look_at_machine, look_at_secrets
    from appliance.command.doctor_network import look_at_cluster, look_at_network

    clock = SystemClock()
    findings = [from_sentence("options", sentence) for sentence in patient.problems]
    findings += look_at_machine(patient.box, patient.is_running, clock)
    findings += look_at_secrets(patient.box, patient.settings_file)
    findings += look_at_disks(patient.box.disks, patient.is_running, clock)
    findings += judge_states(patient.disk_states)
    if patient.image is not None:
        findings += look_at_cluster(patient.image, patient.box)
    try:
        findings += look_at_network(patient.box, patient.is_running)
    except (MillraceError, ValueError) as error:
        findings.append(from_sentence("options", str(error)))  # an address of the options that is none; said above as well
    return findings


def print_findings(patient: Patient, findings: Sequence[Finding]) -> None:
    what = "running" if patient.is_running else "not running; looked at as `millrace run` would start it"
    print(f"box of {', '.join(disk.path for disk in patient.box.disks)}: {what}\n")
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        _print_line(f"{finding.level:<7}", f"  {finding.subject:<{width}}  {finding.words}" + (f"; {finding.advice}" if finding.advice else ""), finding.level)
    print(f"\n{summary(findings)}")


def summary(findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level == level for finding in findings) for level in (OK, WARNING, PROBLEM)}
    return f"{counts[OK]} ok, {plural(counts[WARNING], 'warning')}, {plural(counts[PROBLEM], 'problem')}"


def _print_line(mark: str, rest: str, level: str) -> None:
    if not sys.stdout.isatty():
        print(mark + rest)
        return
    colour = {OK: "32", WARNING: "33", PROBLEM: "1;31"}[level]
    print(f"\x1b[{colour}m{mark}\x1b[0m{rest}")
