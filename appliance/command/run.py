"""`millrace run`: hands over to the supervisor, which becomes this very process, so nothing of the
command line stays in memory.

The supervisor's preflight says everything that is wrong at once. Numbers are taken as text here,
because typer would stop at the first that is none and hide the other problems; what is no number is
handed over as a problem. Weak spot: an option that does not exist is typer's to refuse, and stops
alone.
"""

from __future__ import annotations

from typing import Annotated

from appliance.base.errors import MillraceError
from appliance.command.options import option
from appliance.command.output import say


def run(
    data: Annotated[
        list[str] | None, option("--data", metavar="DIR", help="A log directory, one per disk; may be given several times. [default: ./var/d0 and ./var/d1]")
    ] = None,
    state: Annotated[
        str | None, option("--state", metavar="DIR", help="ZooKeeper's data and the box's identity; never inside a data directory. [default: ./var/state]")
    ] = None,
    listen: Annotated[str | None, option("--listen", metavar="HOST", help="Address to listen on. [default: 127.0.0.1]")] = None,
    advertise: Annotated[str | None, option("--advertise", metavar="HOST", help="Name or address that clients receive. [default: loopback]")] = None,
    kafka_port: Annotated[str | None, option("--kafka-port", metavar="PORT", help="For Kafka clients; 0 takes a free one. [default: 9092]")] = None,
    syslog_port: Annotated[str | None, option("--syslog-port", metavar="PORT", help="For syslog, UDP and TCP; 0 takes a free one. [default: 5514]")] = None,
    http_port: Annotated[
        str | None, option("--http-port", metavar="PORT", help="For the console, metrics and health checks; 0 takes a free one. [default: 8080]")
    ] = None,
    ingest_port: Annotated[str | None, option("--ingest-port", metavar="PORT", help="For senders by HTTP; 0 takes a free one. [default: 8081]")] = None,
    acceptors: Annotated[str | None, option("--acceptors", metavar="N", help="Processes that serve Kafka clients. [default: one per four cores]")] = None,
    zookeeper: Annotated[str | None, option("--zookeeper", metavar="HOST:PORT,…", help="An ensemble to use. [default: one of our own]")] = None,
    zookeeper_members: Annotated[
        list[str] | None,
        option("--zookeeper-members", metavar="ID=HOST,…", help="The ensemble that the boxes of a cluster run together: broker id and address of each."),
    ] = None,
    broker_id: Annotated[str | None, option("--broker-id", metavar="N", help="Number of this box in its cluster. [default: as its state says, or 1]")] = None,
    rack: Annotated[str | None, option("--rack", metavar="NAME", help="Where this box stands: broker.rack. [default: not said]")] = None,
    config: Annotated[str | None, option("--config", metavar="FILE", help="Settings file (TOML).")] = None,
) -> None:
    """Run the appliance in the foreground; Ctrl-C ends it cleanly.

    When it serves it prints: millrace ready kafka=HOST:PORT syslog=HOST:PORT http=HOST:PORT
    ingest=HOST:PORT
    """
    from appliance.base.settings import read_settings_file
    from appliance.runtime.run_options import RunOptions, exec_supervisor

    texts = {"kafka_port": kafka_port, "syslog_port": syslog_port, "http_port": http_port, "ingest_port": ingest_port}
    texts |= {"acceptors": acceptors, "broker_id": broker_id}
    numbers, problems = parse_numbers(texts)
    options = RunOptions(
        data=data or None,
        state=state,
        listen=listen,
        advertise=advertise,
        kafka_port=numbers.get("kafka_port"),
        syslog_port=numbers.get("syslog_port"),
        http_port=numbers.get("http_port"),
        ingest_port=numbers.get("ingest_port"),
        acceptors=numbers.get("acceptors"),
        zookeeper=zookeeper,
        zookeeper_members=zookeeper_members or None,
        broker_id=numbers.get("broker_id"),
        rack=rack,
        config=config,
        problems=problems or None,
    )
    if config is not None and read_settings_file(config).old_table:
        _convert(config)
    exec_supervisor(options)


def _convert(settings_file: str) -> None:
    """Move the table of senders of release 0.1 into the settings file. If that fails, the
    supervisor reads the old table, or reports what is wrong.
    """
    from appliance.command.config_check import convert_settings

    try:
        say(f"millrace: {convert_settings(settings_file)}")
    except MillraceError as error:
        say(f"millrace: {error}")


def parse_numbers(texts: dict[str, str | None]) -> tuple[dict[str, int], list[str]]:
    """The options given as numbers, and a problem for each that is none. A port that is none counts
    as 0, so that the default's being taken is not held against it.
    """
    numbers, problems = {}, []
    for name, text in texts.items():
        if text is None:
            continue
        try:
            numbers[name] = int(text)
        except ValueError:
            problems.append(f"--{name.replace('_', '-')} is {text!r}; it must be a whole number")
            if name.endswith("_port"):
                numbers[name] = 0
    return numbers, problems
