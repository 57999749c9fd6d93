"""`millrace cluster …`: certificates (`certificate`), and the secret that the boxes of a ZooKeeper ensemble share
(`base/zookeeper_access.py`).

It works on the state directory alone, so a box gets its secret before it starts for the first time.
Weak spot: a box that runs goes on with the secret with which it started.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import typer

from appliance.base.errors import ConfigurationProblems
from appliance.base.zookeeper_access import (
    CONSUMER_USER,
    consumer_password,
    new_secret,
    read_secret,
    replace_secret,
    secret_path,
    secret_problem,
)
from appliance.command import certificate
from appliance.command.failures import UsageProblem
from appliance.command.finding import state_directory
from appliance.command.options import ConfigOption, option
from appliance.command.output import say

StateOption = Annotated[
    str | None,
    option(
        "--state",
        metavar="DIR",
        help="State directory of the box. [default: the settings file's, ./var/state]",
    ),
]
ReplaceOption = Annotated[bool, option("--replace", help="Replace a secret that is there already.")]

_JAAS = """\
Client {{
    org.apache.zookeeper.server.auth.DigestLoginModule required
    username="{user}"
    password="{password}";
}};
"""


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="What the boxes of a cluster share.", no_args_is_help=True, rich_markup_mode=markup)
    app.callback()(lambda: None)
    secret = typer.Typer(help="The secret of the ZooKeeper ensemble.", no_args_is_help=True, rich_markup_mode=markup)
    secret.command("new")(new)
    secret.command("show")(show)
    secret.command("set")(set_secret)
    secret.command("consumer")(consumer)
    app.add_typer(secret, name="secret")
    certificates = typer.Typer(help="An authority for the boxes, and their certificates.", no_args_is_help=True, rich_markup_mode=markup)
    for step in (certificate.init, certificate.issue, certificate.renew, certificate.rotate, certificate.show):
        certificates.command()(step)
    app.add_typer(certificates, name="certificate")
    return app


def new(state: StateOption = None, config: ConfigOption = None, replace: ReplaceOption = False) -> None:
    """Make a random secret for the ensemble and keep it in the state directory of this box.

    Example: sudo millrace cluster secret new
    """
    keep(state_directory(state, config), new_secret(), replace)


def show(state: StateOption = None, config: ConfigOption = None) -> None:
    """Print the secret of this box.

    Example: sudo millrace cluster secret show | ssh root@10.0.0.2 millrace cluster secret set
    """
    print(_secret_of(state_directory(state, config)))


def set_secret(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="A file with the secret. [default: standard input]", show_default=False),
    ] = None,
    state: StateOption = None,
    config: ConfigOption = None,
    replace: ReplaceOption = False,
) -> None:
    """Keep the secret of another box in the state directory of this one.

    Example: millrace cluster secret set /root/secret
    """
    if file is None:
        secret = sys.stdin.readline().strip()
    elif (found := read_secret(file)) is not None:
        secret = found
    else:
        raise UsageProblem(f"{file}: no such file")
    if (problem := secret_problem(secret)) is not None:
        raise UsageProblem(f"{file or 'standard input'}: the secret {problem}")
    keep(state_directory(state, config), secret, replace)


def consumer(state: StateOption = None, config: ConfigOption = None) -> None:
    """Print the JAAS section with which high-level consumers of Kafka 0.8 to 0.10 log in to ZooKeeper.

    Example: millrace cluster secret consumer > consumer.jaas; then java -Djava.security.auth.login.config=consumer.jaas …
    """
    sys.stdout.write(_JAAS.format(user=CONSUMER_USER, password=consumer_password(_secret_of(state_directory(state, config)))))


def keep(state: str, secret: str, replace: bool) -> None:
    """Write the secret; a different one is replaced only if that is wanted."""
    path = secret_path(state)
    former = read_secret(path)
    if former == secret:
        say(f"{path} has this secret already")
        return
    if former is not None and not replace:
        raise UsageProblem(f"{path} has another secret already; give --replace to replace it, on every box of the cluster")
    try:
        os.makedirs(state, mode=0o700, exist_ok=True)
        replace_secret(state, secret)
    except OSError as error:
        raise ConfigurationProblems([f"{path}: cannot write the secret: {error.strerror}; run this as root or as the user of the box"]) from error
    say(f"wrote {path}; it holds from the next start of the box on")


def _secret_of(state: str) -> str:
    secret = read_secret(secret_path(state))
    if secret is None:
        raise UsageProblem(f"there is no {secret_path(state)}; a box alone makes it at its first start, `millrace cluster secret new` makes it for an ensemble")
    return secret
