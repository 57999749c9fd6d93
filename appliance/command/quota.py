"""`millrace quota …`: list, set, remove. Quotas of users, client ids and addresses, as Kafka's `kafka-configs.sh` has them.

`'*'` is the default of its kind: the quota of each user, client id or address that has none of its own. Weak: a client id that is
called `*` cannot be named.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Literal

import typer

from appliance.command.disk_drain import bytes_of
from appliance.command.failures import UsageProblem
from appliance.command.kafka import open_cluster
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, JsonOption, argument, option
from appliance.command.output import NOTHING, Column, plural, print_table
from appliance.security.quotas import ADDRESS_QUOTA_KEYS, QUOTA_KEYS, WHOLE_QUOTAS

DEFAULT = "*"

UserOption = Annotated[str | None, option("--user", metavar="NAME", help="Quotas of this user; '*' is each without its own.")]
ClientIdOption = Annotated[str | None, option("--client-id", metavar="NAME", help="Quotas of this client id; '*' is each without its own.")]
AddressOption = Annotated[str | None, option("--address", metavar="ADDRESS", help="Quotas of this IP address; '*' is each without its own.")]


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="List, set and remove quotas of clients.", no_args_is_help=True, rich_markup_mode=markup)
    app.command("list")(list_all)
    app.command("set")(set_quotas)
    app.command("remove")(remove)
    return app


def list_all(
    user: UserOption = None,
    client_id: ClientIdOption = None,
    address: AddressOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """List quotas: all, or those of a user, client id or address.

    Example: millrace quota list --user alice
    """
    entity = entity_of(user, client_id, address)
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.quotas import describe_quotas

        found = describe_quotas(cluster, entity)
    if as_json:
        sys.stdout.write(json.dumps([each._asdict() for each in found], indent=2) + "\n")
        return
    kinds = ("user", "client-id", "ip")
    rows = [
        [*(DEFAULT if each.entity.get(kind, NOTHING) is None else str(each.entity.get(kind, NOTHING)) for kind in kinds), key, f"{value:.15g}"]
        for each in found
        for key, value in sorted(each.values.items())
    ]
    print_table([Column("user"), Column("client id"), Column("address"), Column("quota"), Column("value", is_number=True)], rows)


def set_quotas(
    settings: Annotated[list[str], argument("NAME=VALUE", f"Quotas: {', '.join((*QUOTA_KEYS, *ADDRESS_QUOTA_KEYS))}. Bytes also as 50M or 50MiB.")],
    user: UserOption = None,
    client_id: ClientIdOption = None,
    address: AddressOption = None,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Set quotas of a user, a client id, both together, or an address; others of it stay.

    Example: millrace quota set --user alice producer_byte_rate=10MiB request_percentage=50
    """
    entity = entity_of(user, client_id, address, is_required=True)
    values: dict[str, float | None] = dict(quota_of(text, address is not None) for text in settings)
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.quotas import alter_quotas

        alter_quotas(cluster, entity, values)
    print(f"set {', '.join(f'{key}={value:.15g}' for key, value in values.items())} of {words_of(entity)}")


def remove(
    names: Annotated[list[str] | None, argument("[NAME]", "The quotas. [default: all that it has]")] = None,
    user: UserOption = None,
    client_id: ClientIdOption = None,
    address: AddressOption = None,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Remove quotas of a user, client id, both together, or an address.

    Example: millrace quota remove --user alice producer_byte_rate
    """
    entity = entity_of(user, client_id, address, is_required=True)
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.quotas import alter_quotas, describe_quotas

        there = next((each.values for each in describe_quotas(cluster, entity) if each.entity == entity), {})
        absent = [name for name in names or () if name not in there]
        if absent or not there:
            raise UsageProblem(f"{words_of(entity)} has no quota{f' {absent[0]}' if absent else ''}; see `millrace quota list`")
        removed = list(dict.fromkeys(names or sorted(there)))
        alter_quotas(cluster, entity, dict.fromkeys(removed))
    print(f"removed {plural(len(removed), 'quota')} of {words_of(entity)}: {', '.join(removed)}")


def entity_of(user: str | None, client_id: str | None, address: str | None, is_required: bool = False) -> dict[str, str | None]:
    """Return names by Kafka's types; None: the default. Raises UsageProblem."""
    given = {"user": user, "client-id": client_id, "ip": address}
    entity = {kind: None if name == DEFAULT else name for kind, name in given.items() if name is not None}
    if is_required and not entity:
        raise UsageProblem("say whose: --user, --client-id, both, or --address")
    if "ip" in entity and len(entity) > 1:
        raise UsageProblem("--address goes with neither --user nor --client-id")
    return entity


def quota_of(text: str, is_address: bool) -> tuple[str, float]:
    """Return name and value. Raises UsageProblem."""
    name, equals, value = (part.strip() for part in text.partition("="))
    known = ADDRESS_QUOTA_KEYS if is_address else QUOTA_KEYS
    if not equals or name not in known:
        raise UsageProblem(f"{text}: write NAME=VALUE; {'an address' if is_address else 'a user or client id'} has {', '.join(known)}")
    if name.endswith("byte_rate"):
        return name, float(bytes_of(value))
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf") or (name in WHOLE_QUOTAS and number != int(number)):
        raise UsageProblem(f"{text}: the value is no {'whole ' if name in WHOLE_QUOTAS else ''}number above 0")
    return name, number


def words_of(entity: dict[str, str | None]) -> str:
    """Return `user alice, client id app`, `each user`."""
    kinds = {"user": "user", "client-id": "client id", "ip": "address"}
    return ", ".join(f"each {kinds[kind]}" if name is None else f"{kinds[kind]} {name}" for kind, name in entity.items())
