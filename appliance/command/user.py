"""`millrace user …`: add, list, delete. Users of SASL listeners, as Kafka's `kafka-configs.sh --entity-type users` has them.

A password is read from a terminal, from standard input, or from a file, never from the arguments, which other users of the
machine can see. What is sent are SCRAM credentials derived from it. Weak: a deleted user stays connected until
`connections.max.reauth.ms` has passed.
"""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from appliance.command.failures import UsageProblem
from appliance.command.kafka import open_cluster
from appliance.command.options import BootstrapOption, CommandConfigOption, ConfigOption, DataOption, JsonOption, YesOption, argument, confirm, option
from appliance.command.output import Column, print_table

PASSWORD_LENGTH_MIN = 8
PASSWORD_LENGTH_MAX = 1000

NameArgument = Annotated[str, argument("NAME", "The name of the user; its principal is User:NAME.")]
PasswordFileOption = Annotated[
    str | None, option("--password-file", metavar="FILE", help="Read the password from the first line of FILE. [default: a prompt, or standard input]")
]
MechanismOption = Annotated[list[str] | None, option("--mechanism", metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512. [default: both]")]
IterationsOption = Annotated[int, option("--iterations", metavar="N", help="4096 to 16384; the same for all users. [default: 4096]")]


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="Add, list and delete users.", no_args_is_help=True, rich_markup_mode=markup)
    app.command("add")(add)
    app.command("list")(list_all)
    app.command("delete")(delete)
    return app


def add(
    name: NameArgument,
    password_file: PasswordFileOption = None,
    mechanism: MechanismOption = None,
    iterations: IterationsOption = 4096,
    bootstrap: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Add a user, or give it another password.

    Example: millrace user add alice
    """
    from appliance.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, SCRAM_MECHANISMS

    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise UsageProblem(f"--iterations {iterations}: use {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    unknown = [each for each in mechanism or () if each.upper() not in SCRAM_MECHANISMS]
    if unknown:
        raise UsageProblem(f"--mechanism {unknown[0]}: use one of {', '.join(SCRAM_MECHANISMS)}; PLAIN verifies passwords against these")
    mechanisms = [SCRAM_MECHANISMS[each.upper()] for each in mechanism or SCRAM_MECHANISMS]
    password = read_password(name, password_file)
    with open_cluster(bootstrap, data, config, command_config) as connected:
        from appliance.client.errors import ALTER
        from appliance.client.users import describe_users, set_password

        is_known = bool(describe_users(connected, [name], f"set the password of user {name!r}", ALTER))
        set_password(connected, name, password, mechanisms, iterations)
    print(f"{'changed the password of' if is_known else 'added'} user {name!r}")


def list_all(
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """List users with their mechanisms.

    Example: millrace user list
    """
    with open_cluster(bootstrap, data, config, command_config) as connected:
        from appliance.client.users import describe_users
        from appliance.security.scram import ScramMechanism

        found = [(user.user, ScramMechanism(info.mechanism).label, info.iterations) for user in describe_users(connected) for info in user.credential_infos]
    columns = ("user", "mechanism", "iterations")
    if as_json:
        sys.stdout.write(json.dumps([dict(zip(columns, row, strict=True)) for row in found], indent=2) + "\n")
    else:
        print_table([Column(column) for column in columns], [[user, label, str(count)] for user, label, count in found])


def delete(
    name: NameArgument,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Delete a user: its credentials, not its access control entries.

    Example: millrace user delete alice --yes
    """
    with open_cluster(bootstrap, data, config, command_config) as connected:
        from appliance.client.errors import ALTER
        from appliance.client.users import delete_user, describe_users

        users = describe_users(connected, [name], f"delete user {name!r}", ALTER)
        if not users:
            raise UsageProblem(f"there is no user {name!r}; see `millrace user list`")
        if not yes:
            confirm(f"Delete user {name!r}?", "add --yes")
        delete_user(connected, users[0])
    print(f"deleted user {name!r}")


def read_password(name: str, path: str | None) -> str:
    """Return a new password. Raises UsageProblem for one that is too short, or not typed alike twice."""
    try:
        if path is not None:
            password = (Path(path).read_text().splitlines() or [""])[0]
        elif not sys.stdin.isatty():
            password = sys.stdin.readline().rstrip("\r\n")
        else:
            password = getpass.getpass(f"Password of {name}: ")
            if getpass.getpass("Again: ") != password:
                raise UsageProblem("the passwords differ; nothing was changed")
        password.encode()
    except OSError as error:
        raise UsageProblem(f"--password-file {path}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise UsageProblem("the password is not UTF-8") from error
    if not PASSWORD_LENGTH_MIN <= len(password) <= PASSWORD_LENGTH_MAX or "\0" in password:
        raise UsageProblem(f"the password has {len(password)} characters; it needs {PASSWORD_LENGTH_MIN} to {PASSWORD_LENGTH_MAX}, without NUL")
    return password
