"""`millrace group …`: list, describe, lag, reset-offsets, delete."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from appliance.base.errors import RequestRefused
from appliance.command.failures import UsageProblem
from appliance.command.group_reset import reset_offsets
from appliance.command.kafka import open_cluster
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, JsonOption, YesOption, argument, confirm, option, parse_setting
from appliance.command.output import NOTHING, Column, cell, count_text, print_table, say

if TYPE_CHECKING:
    from appliance.base.model import TopicPartition
    from appliance.client.cluster import ClusterClient

GroupArgument = Annotated[str, argument("GROUP", "The group.")]


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(
        help="List, describe and delete consumer groups, see how far behind they are, set their offsets and settings.",
        no_args_is_help=True,
        rich_markup_mode=markup,
    )
    app.command("list")(list_all)
    app.command("describe")(describe)
    app.command("alter")(alter)
    app.command("lag")(lag)
    app.command("reset-offsets")(reset_offsets)
    app.command("delete")(delete)
    return app


def list_all(as_json: JsonOption = False, bootstrap: BootstrapOption = None, data: DataOption = None, config: ConfigOption = None) -> None:
    """List consumer groups."""
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.groups import list_groups

        groups = list_groups(cluster)
    if as_json:
        sys.stdout.write(json.dumps([group._asdict() for group in groups], indent=2) + "\n")
        return
    rows = [[group.group_id, group.state or NOTHING, group.group_type or NOTHING, group.protocol_type or NOTHING, str(group.coordinator)] for group in groups]
    print_table([Column("group"), Column("state"), Column("protocol"), Column("kind"), Column("coordinator", is_number=True)], rows)


def describe(
    group: GroupArgument, as_json: JsonOption = False, bootstrap: BootstrapOption = None, data: DataOption = None, config: ConfigOption = None
) -> None:
    """Show a group's state and members, what each of them reads, how far behind it is, and the settings of its own."""
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.groups import describe_group, group_progress

        described = describe_group(cluster, group)
        progress = group_progress(cluster, group, described)
        settings = _own_settings(cluster, group)
    if as_json:
        document = {**described._asdict(), "members": [member._asdict() for member in described.members], "partitions": progress, "settings": settings}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    assignor = f"  assignor {cell(described.assignor)}" if described.assignor else ""
    print(f"group {group}  {described.state}  {described.group_type} protocol{assignor}")
    for name, value in settings.items():
        print(f"set: {name}={cell(value)}")
    rows = [
        [member.member_id, member.group_instance_id or NOTHING, member.client_id, member.client_host, _partitions_text(member.partitions)]
        for member in described.members
    ]
    print_table([Column("member"), Column("instance"), Column("client"), Column("host"), Column("reads")], rows)
    _print_progress(progress)
    _explain_mirrors([group])


def _own_settings(cluster: ClusterClient, group: str) -> dict[str, str]:
    """Return what is set for a group itself; nothing where the broker does not know settings of groups, or does not tell them."""
    from appliance.client.groups import group_settings
    from appliance.protocol.config_apis import ConfigSource

    with suppress(RequestRefused):
        return {each.name: each.value or "" for each in group_settings(cluster, group) if each.config_source == ConfigSource.GROUP}
    return {}


def alter(
    group: GroupArgument,
    setting: Annotated[
        list[str] | None,
        option("--set", metavar="NAME=VALUE", help="A setting by Kafka's name, such as share.auto.offset.reset=earliest; may be given several times."),
    ] = None,
    unset: Annotated[list[str] | None, option("--unset", metavar="NAME", help="Take a setting back to its default; may be given several times.")] = None,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Change the settings of a group, which need not exist yet; groups of the classic protocol have none.

    Example: millrace group alter workers --set share.auto.offset.reset=earliest
    """
    values, defaults = dict(parse_setting(text) for text in setting or []), list(dict.fromkeys(unset or []))
    if (not values and not defaults) or values.keys() & set(defaults):
        raise UsageProblem("say what to change: --set NAME=VALUE, --unset NAME, and each name once")
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.groups import alter_group_settings, group_settings

        known = {each.name for each in group_settings(cluster, group)}
        if absent := [name for name in defaults if name not in known]:
            raise UsageProblem(f"--unset: groups have no setting {absent[0]}; there are {', '.join(sorted(known))}")
        alter_group_settings(cluster, group, values, defaults)
    changes = [f"{name}={value}" for name, value in values.items()] + [f"{name} back to its default" for name in defaults]
    print(f"altered group {group}: {', '.join(changes)}")


def lag(
    groups: Annotated[list[str] | None, argument("GROUP", "The groups. [default: all]")] = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show how many records each group has still to read, partition by partition."""
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.groups import describe_group, group_progress, list_groups

        names = groups or [group.group_id for group in list_groups(cluster)]
        found = [row for name in names for row in group_progress(cluster, name, describe_group(cluster, name))]
    if as_json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return
    _print_progress(found, names_groups=True)
    behind = sum(row["lag"] or 0 for row in found)
    say(f"{count_text(behind)} records behind in all")
    _explain_mirrors(names)


def _explain_mirrors(groups: Iterable[str]) -> None:
    """A mirror's group has no lag that could be computed here."""
    from appliance.client.groups import MIRROR_PREFIX

    for name in groups:
        if name.startswith(MIRROR_PREFIX):
            say(f"{name}: a mirror's positions, which are offsets of its source; for its lag: millrace mirror status")


def _print_progress(rows: list[dict[str, Any]], names_groups: bool = False) -> None:
    columns = [Column("topic"), Column("partition", is_number=True), Column("committed", is_number=True), Column("end offset", is_number=True)]
    columns += [Column("lag", is_number=True), Column("member")]
    cells = [
        [
            row["topic"],
            str(row["partition"]),
            *(NOTHING if row[name] is None else str(row[name]) for name in ("committed_offset", "end_offset", "lag", "member")),
        ]
        for row in rows
    ]
    if names_groups:
        columns.insert(0, Column("group"))
        cells = [[row["group"], *line] for row, line in zip(rows, cells, strict=True)]
    print_table(columns, cells)


def _partitions_text(partitions: tuple[TopicPartition, ...]) -> str:
    by_topic: dict[str, list[str]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(str(number))
    return "  ".join(f"{topic}:{','.join(numbers)}" for topic, numbers in by_topic.items()) or NOTHING


def delete(
    groups: Annotated[list[str], argument("GROUP", "The groups; they must have no members.")],
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Delete groups and their offsets."""
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.groups import delete_group

        if not yes:
            confirm(f"Delete {', '.join(groups)} and all their offsets?", "add --yes")
        for group in groups:
            delete_group(cluster, group)
            print(f"deleted group {group}")
