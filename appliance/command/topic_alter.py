"""`millrace topic alter`: more partitions, other settings, another replication factor.

Settings go all together: if one of them is refused, nothing has changed. Beside settings, the broker is first asked whether it would add the
partitions. The replication factor comes last, as a reassignment that may be watched. Weak spot: these are several requests, so partitions and replicas may
still fail after the settings were taken; it is said then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Literal

from appliance.base.errors import ErrorCode, MillraceError, RequestRefused
from appliance.command.disk_drain import bytes_of
from appliance.command.failures import PartlyDone, UsageProblem
from appliance.command.kafka import open_cluster, require_topic_name
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, argument, option, parse_setting
from appliance.command.output import plural

if TYPE_CHECKING:
    from appliance.client.cluster import ClusterClient


def alter(
    name: Annotated[str, argument("NAME", "The topic.")],
    partitions: Annotated[
        int | None, option("--partitions", "-p", metavar="N", min=1, help="New number of partitions; never fewer than there are. Keys may move to others.")
    ] = None,
    replication_factor: Annotated[
        int | None, option("--replication-factor", metavar="N", min=1, help="New number of copies of each partition, spread over racks and free space.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        option("--set", metavar="NAME=VALUE", help="A topic setting by Kafka's name, such as retention.ms=3600000; may be given several times."),
    ] = None,
    unset: Annotated[list[str] | None, option("--unset", metavar="NAME", help="Take a setting back to its default; may be given several times.")] = None,
    table: Annotated[
        Literal["delta", "iceberg", "none"] | None,
        option("--table", help="Keep the topic as a table of Delta or Iceberg, or no longer; as --set millrace.table.format=…"),
    ] = None,
    table_location: Annotated[
        str | None,
        option(
            "--table-location",
            metavar="DIR",
            help="Directory, or s3://BUCKET/PATH, that gets the table, as DIR/NAME; below one of the setting tables.locations.",
        ),
    ] = None,
    throttle: Annotated[str | None, option("--throttle", metavar="BYTES/S", help="How fast each box may receive new copies: 50000000, 50M, 50MiB.")] = None,
    no_wait: Annotated[bool, option("--no-wait", help="Do not watch new copies being made.")] = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Change a topic's settings, add partitions to it, or change how many copies of each there are.

    Example: millrace topic alter orders --partitions 8 --set retention.ms=86400000 --unset min.insync.replicas
    """
    require_topic_name(name)
    chosen = {"millrace.table.format": table, "millrace.table.location": table_location}
    values = {key: value for key, value in chosen.items() if value is not None} | dict(parse_setting(text) for text in setting or [])
    defaults = list(dict.fromkeys(text.strip() for text in unset or []))
    require_something_to_do(partitions, values, defaults, replication_factor)
    bytes_per_second = None if throttle is None else bytes_of(throttle)
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.admin import add_partitions, alter_topic_settings, topic_settings

        if defaults:
            # Brokers answer success if an unset setting does not exist; a misspelt name must not look successful.
            require_known_settings(name, defaults, topic_settings(cluster, name).names)
        if partitions is not None and (values or defaults):
            add_partitions(cluster, name, partitions, validate_only=True)
        if values or defaults:
            alter_topic_settings(cluster, name, values, defaults)
            changes = [f"{key}={value}" for key, value in values.items()] + [f"{key} back to its default" for key in defaults]
            print(f"altered topic {name}: {', '.join(changes)}")
        if partitions is not None:
            try:
                add_partitions(cluster, name, partitions)
            except MillraceError as error:
                if values or defaults:
                    raise PartlyDone(f"the settings are altered, but the partitions are not: {error}") from error
                raise
            print(f"altered topic {name}: {plural(len(cluster.topic(name, complete=False).partitions), 'partition')}")
        if replication_factor is not None:
            try:
                change_replication_factor(cluster, name, replication_factor, bytes_per_second, no_wait)
            except MillraceError as error:
                if values or defaults or partitions is not None:
                    raise PartlyDone(f"the rest is altered, but the replication factor is not: {error}") from error
                raise


def change_replication_factor(cluster: ClusterClient, name: str, replication_factor: int, throttle: int | None, no_wait: bool) -> None:
    from appliance.client.boxes import elect_leaders
    from appliance.cluster.box_balance import plan_replication_factor
    from appliance.command.cluster_view import look_at_cluster
    from appliance.command.topic_reassign import carry_out

    view = look_at_cluster(cluster)
    if not any(topic == name for topic, _ in view.partitions):
        raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    rooms = view.open_rooms()
    if replication_factor > len(rooms):
        words = f"{replication_factor} copies need as many boxes; {plural(len(rooms), 'box')} run{'s' if len(rooms) == 1 else ''}".replace("boxs", "boxes")
        raise RequestRefused(ErrorCode.INVALID_REPLICATION_FACTOR, words)
    made = plan_replication_factor(view.held({name}), rooms, replication_factor)
    carry_out(cluster, view, made, False, throttle, no_wait, {name})
    moved = [(change.topic, change.partition) for change in made.changes if change.replicas[0] != change.former[0]]
    if moved and not no_wait:
        elected = elect_leaders(cluster, moved, False)
        led = [refusal for refusal in elected.values() if refusal is None or refusal.code is ErrorCode.ELECTION_NOT_NEEDED]  # leadership returned by itself
        print(f"{plural(len(led), 'partition')} led by another box now")


def require_known_settings(topic: str, names: Iterable[str], known: Collection[str]) -> None:
    """UsageProblem for a name that is no setting of a topic."""
    if unknown := [name for name in names if name not in known]:
        near = get_close_matches(unknown[0], known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageProblem(f"--unset: topic {topic} has no setting {', '.join(unknown)}{hint}")


def require_something_to_do(partitions: int | None, values: dict[str, str], defaults: list[str], replication_factor: int | None = None) -> None:
    """UsageProblem for nothing at all, a name that is none, and a setting that is both set and unset."""
    if "" in defaults or any("=" in name for name in defaults):
        raise UsageProblem("--unset: write the name of a setting alone, for example --unset retention.ms")
    if both := sorted(values.keys() & set(defaults)):
        raise UsageProblem(f"--set and --unset both name {', '.join(both)}; give one of them")
    if partitions is None and not values and not defaults and replication_factor is None:
        raise UsageProblem("nothing to change: give --partitions N, --replication-factor N, --set NAME=VALUE, --unset NAME or --table FORMAT")
