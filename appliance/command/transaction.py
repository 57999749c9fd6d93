"""`millrace transaction …`: list, describe, abort; and those that hang, which no coordinator will ever end."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from appliance.base.clock import SystemClock
from appliance.command.failures import UsageProblem
from appliance.command.kafka import open_cluster
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, JsonOption, YesOption, argument, confirm, option
from appliance.command.output import NOTHING, Column, duration_text, plural, print_table, say

if TYPE_CHECKING:
    from appliance.client.cluster import ClusterClient
    from appliance.client.transactions import ProducerOnPartition

HANGING_MINUTES = 20
"""Transactions may take 15 minutes (transaction.max.timeout.ms); five more are no accident."""


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="List, describe and abort transactions, and find those that hang.", no_args_is_help=True, rich_markup_mode=markup)
    app.command("list")(list_all)
    app.command("describe")(describe)
    app.command("abort")(abort)
    return app


def list_all(
    hanging: Annotated[
        bool, option("--hanging", help="Only those that are open in a partition and that no coordinator knows: they hold read_committed consumers back.")
    ] = False,
    minutes: Annotated[int, option("--minutes", metavar="N", min=0, help=f"How long those must be open. [default: {HANGING_MINUTES}]")] = HANGING_MINUTES,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """List transactional ids and the state of their transactions."""
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.transactions import list_transactions

        if hanging:
            found = _find_hanging(cluster, None, minutes)
            if as_json:
                sys.stdout.write(json.dumps([{**each._asdict(), "partition": str(each.partition)} for each in found], indent=2) + "\n")
            else:
                _print_hanging(found)
            return
        listed = list_transactions(cluster)
    if as_json:
        sys.stdout.write(json.dumps([each._asdict() for each in listed], indent=2) + "\n")
        return
    rows = [[each.transactional_id, str(each.producer_id), each.state, str(each.coordinator)] for each in listed]
    print_table([Column("transactional id"), Column("producer", is_number=True), Column("state"), Column("coordinator", is_number=True)], rows)


def describe(
    transactional_id: Annotated[str, argument("TRANSACTIONAL_ID", "Whose transaction.")],
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show a transactional id's producer, the state of its transaction, how long that goes on, and the partitions it goes over."""
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.transactions import describe_transaction

        found = describe_transaction(cluster, transactional_id)
    if as_json:
        sys.stdout.write(json.dumps({**found._asdict(), "partitions": [str(each) for each in found.partitions]}, indent=2) + "\n")
        return
    age = f"  open for {duration_text(SystemClock.wall_ms() / 1000 - found.start_ms / 1000)}" if found.state == "Ongoing" and found.start_ms >= 0 else ""
    print(
        f"{transactional_id}  {found.state}{age}  producer {found.producer_id} epoch {found.producer_epoch}  timeout {duration_text(found.timeout_ms / 1000)}"
    )
    for partition in found.partitions:
        print(f"  {partition}")


def abort(
    transactional_id: Annotated[str | None, argument("TRANSACTIONAL_ID", "Whose transaction; its producer is fenced.")] = None,
    topic: Annotated[str | None, option("--hanging", metavar="TOPIC", help="Abort what hangs in this topic instead: see `list --hanging`.")] = None,
    minutes: Annotated[int, option("--minutes", metavar="N", min=0, help=f"How long it must hang. [default: {HANGING_MINUTES}]")] = HANGING_MINUTES,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Abort an open transaction, by its transactional id, or what hangs in a topic.

    Example: millrace transaction abort loader-3
    """
    if (transactional_id is None) == (topic is None):
        raise UsageProblem("give a transactional id, or --hanging TOPIC")
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.transactions import abort_in_partition, abort_transaction

        if transactional_id is not None:
            if not yes:
                confirm(f"Abort the transaction of {transactional_id}, and fence its producer?", "add --yes")
            abort_transaction(cluster, transactional_id)
            print(f"aborted the transaction of {transactional_id}; its producer is fenced")
            return
        found = _find_hanging(cluster, topic, minutes)
        if found and not yes:
            _print_hanging(found)
            confirm(f"Abort {plural(len(found), 'transaction')} of topic {topic}?", "add --yes")
        for producer in found:
            abort_in_partition(cluster, producer)
            print(f"aborted the transaction of producer {producer.producer_id} in {producer.partition}")
        if not found:
            say(f"no transaction hangs in topic {topic} for more than {plural(minutes, 'minute')}")


def _find_hanging(cluster: ClusterClient, topic: str | None, minutes: int) -> list[ProducerOnPartition]:
    from appliance.client.transactions import hanging

    topics = [topic] if topic is not None else sorted(cluster.metadata(None).topics)
    return hanging(cluster, topics, minutes * 60_000, SystemClock.wall_ms())


def _print_hanging(found: list[ProducerOnPartition]) -> None:
    columns = [Column("partition"), Column("producer", is_number=True), Column("epoch", is_number=True), Column("from offset", is_number=True)]
    columns.append(Column("last write"))
    now_s = SystemClock.wall_ms() / 1000
    rows = [
        [
            str(each.partition),
            str(each.producer_id),
            str(each.producer_epoch),
            str(each.start_offset),
            f"{duration_text(now_s - each.last_timestamp / 1000)} ago" if each.last_timestamp >= 0 else NOTHING,
        ]
        for each in found
    ]
    print_table(columns, rows)
