"""`millrace acl …`: list, add, remove. Access control entries, as Kafka's `kafka-acls.sh` has them.

An entry allows or denies one operation on the resources of a pattern to one principal from one host. `remove` takes the entries that have all given
properties; it shows them first. Weak spot: without an authorizer (`authorizer.class.name`) there are no lists, and each command says so.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from appliance.command.failures import UsageProblem
from appliance.command.kafka import open_cluster
from appliance.command.options import BootstrapOption, CommandConfigOption, ConfigOption, DataOption, JsonOption, YesOption, confirm, option
from appliance.command.output import Column, plural, print_table
from appliance.security.acl import CLUSTER_NAME, SUPPORTED_OPERATIONS, AclBinding, AclFilter, AclOperation, AclPermission, AclResource, PatternType

if TYPE_CHECKING:
    from collections.abc import Sequence

TopicOption = Annotated[str | None, option("--topic", metavar="NAME", help="Entries on this topic; '*' is all topics.")]
GroupOption = Annotated[str | None, option("--group", metavar="NAME", help="Entries on this consumer group; '*' is all groups.")]
TransactionalIdOption = Annotated[str | None, option("--transactional-id", metavar="NAME", help="Entries on this transactional id; '*' is all.")]
ClusterOption = Annotated[bool, option("--cluster", help="Entries on the cluster itself.")]
PrefixedOption = Annotated[bool, option("--prefixed", help="The name is a prefix.")]
PrincipalOption = Annotated[str | None, option("--principal", metavar="User:NAME", help="Entries of this principal; 'User:*' is all.")]
HostOption = Annotated[str | None, option("--host", metavar="ADDRESS", help="Entries for clients at this address; '*' is all. [add: default *]")]
OperationOption = Annotated[
    list[str] | None, option("--operation", metavar="NAME", help="Read, Write, Create, Delete, Describe, … or All; may be given several times.")
]
DenyOption = Annotated[bool, option("--deny", help="Entries that deny. A denial wins over every permission.")]
DryRunOption = Annotated[bool, option("--dry-run", help="Show what would change, and change nothing.")]


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="List, add and remove access control entries.", no_args_is_help=True, rich_markup_mode=markup)
    app.command("list")(list_all)
    app.command("add")(add)
    app.command("remove")(remove)
    return app


def list_all(
    topic: TopicOption = None,
    group: GroupOption = None,
    transactional_id: TransactionalIdOption = None,
    cluster: ClusterOption = False,
    principal: PrincipalOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """List access control entries: all, or those that apply to a resource or a principal.

    Example: millrace acl list --topic orders
    """
    named = _named(topic, group, transactional_id, cluster)
    wanted = AclFilter(principal=principal) if named is None else AclFilter(*named, PatternType.MATCH, principal)
    with open_cluster(bootstrap, data, config, command_config) as connected:
        from appliance.client.acls import describe_acls

        show(describe_acls(connected, wanted), as_json)


def add(
    principal: Annotated[str, option("--principal", metavar="User:NAME", help="Whom the entry is about; 'User:*' is every principal.")],
    operation: OperationOption = None,
    topic: TopicOption = None,
    group: GroupOption = None,
    transactional_id: TransactionalIdOption = None,
    cluster: ClusterOption = False,
    prefixed: PrefixedOption = False,
    host: HostOption = None,
    deny: DenyOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Allow (or deny) operations on a resource to a principal.

    Example: millrace acl add --principal User:alice --operation Read --topic app- --prefixed --host 10.0.0.7
    """
    named = _named(topic, group, transactional_id, cluster)
    if named is None or not operation:
        raise UsageProblem("say on what, and which operations: --topic, --group, --transactional-id or --cluster, and --operation")
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    permission = AclPermission.DENY if deny else AclPermission.ALLOW
    wanted = [AclBinding(*named, pattern, principal, host or "*", each, permission) for each in operations_of(operation, named[0])]
    with open_cluster(bootstrap, data, config, command_config) as connected:
        from appliance.client.acls import create_acls, describe_acls
        from appliance.client.errors import ALTER

        there = set(describe_acls(connected, AclFilter(), "add access control entries", ALTER))
        missing = [each for each in wanted if each not in there]
        if not dry_run:
            create_acls(connected, wanted)
    show(wanted, as_json)
    if not as_json:
        known = len(wanted) - len(missing)
        print(f"{plural(len(missing), 'ACL')} {'would be ' if dry_run else ''}added" + (f", {known} there already" if known else ""))


def remove(
    principal: PrincipalOption = None,
    operation: OperationOption = None,
    topic: TopicOption = None,
    group: GroupOption = None,
    transactional_id: TransactionalIdOption = None,
    cluster: ClusterOption = False,
    prefixed: PrefixedOption = False,
    host: HostOption = None,
    deny: DenyOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Remove the access control entries that have all these properties.

    Example: millrace acl remove --principal User:alice --topic app- --prefixed --dry-run
    """
    named = _named(topic, group, transactional_id, cluster)
    if named is None and principal is None:
        raise UsageProblem("say which: a resource (--topic, --group, --transactional-id, --cluster), a --principal, or both")
    resource, name = named if named is not None else (AclResource.ANY, None)
    pattern = PatternType.ANY if named is None else PatternType.PREFIXED if prefixed else PatternType.LITERAL
    operations: Sequence[AclOperation] = operations_of(operation, resource) if operation else [AclOperation.ANY]
    permission = AclPermission.DENY if deny else AclPermission.ANY
    filters = [AclFilter(resource, name, pattern, principal, host, each, permission) for each in operations]
    with open_cluster(bootstrap, data, config, command_config) as connected:
        from appliance.client.acls import delete_acls, describe_acls
        from appliance.client.errors import ALTER

        found = sorted({each for wanted in filters for each in describe_acls(connected, wanted, "remove access control entries", ALTER)})
        if not found:
            raise UsageProblem("no access control entry has all these properties; see `millrace acl list`")
        show(found, as_json)
        if not dry_run:
            if not yes:
                confirm(f"Remove {plural(len(found), 'ACL')}?", "add --yes, or --dry-run to look only")
            delete_acls(connected, filters)
    if not as_json:
        print(f"{plural(len(found), 'ACL')} {'would be ' if dry_run else ''}removed")


def _named(topic: str | None, group: str | None, transactional_id: str | None, cluster: bool) -> tuple[AclResource, str] | None:
    """The resource that options name; None for none of them. Raises UsageProblem for several."""
    given = [(AclResource.TOPIC, topic), (AclResource.GROUP, group), (AclResource.TRANSACTIONAL_ID, transactional_id)]
    named = [(resource, name) for resource, name in given if name is not None] + [(AclResource.CLUSTER, CLUSTER_NAME)] * cluster
    if len(named) > 1:
        raise UsageProblem("name one resource: --topic, --group, --transactional-id or --cluster")
    return named[0] if named else None


def operations_of(names: Sequence[str], resource: AclResource) -> list[AclOperation]:
    """Operations by Kafka's names, in any spelling (`DescribeConfigs`, `DESCRIBE_CONFIGS`). Raises UsageProblem."""
    known = SUPPORTED_OPERATIONS[resource] if resource in SUPPORTED_OPERATIONS else frozenset(AclOperation) - {AclOperation.UNKNOWN, AclOperation.ANY}
    by_name = {each.name.replace("_", ""): each for each in (*known, AclOperation.ALL)}
    found = []
    for name in names:
        operation = by_name.get(name.upper().replace("_", "").replace("-", ""))
        if operation is None:
            raise UsageProblem(f"--operation {name}: use one of {', '.join(sorted(operation_text(each) for each in by_name.values()))}")
        found.append(operation)
    return list(dict.fromkeys(found))


def operation_text(operation: AclOperation) -> str:
    return "".join(part.capitalize() for part in operation.name.split("_"))


def show(bindings: Sequence[AclBinding], as_json: bool) -> None:
    columns = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
    rows = [
        [
            each.resource.name.lower(),
            each.name,
            each.pattern.name.lower(),
            each.principal,
            each.host,
            operation_text(each.operation),
            each.permission.name.lower(),
        ]
        for each in sorted(bindings)
    ]
    if as_json:
        sys.stdout.write(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2) + "\n")
    else:
        print_table([Column(name) for name in columns], rows)
