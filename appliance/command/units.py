"""`millrace units …`: what the settings mean for the systemd units of this machine's box.

install.sh says `units apply` for you, and so do `millrace disk add | remove | replace`. After an edit of the settings it is yours to say. Also to be run as
`python -m appliance.command.units`. Weak spot: it starts and stops nothing; what is changed holds from the next start on.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from appliance.command.failures import run_app
from appliance.command.finding import SYSTEM_SETTINGS_FILE
from appliance.command.options import option

SettingsOption = Annotated[str, option("--config", "--settings", metavar="FILE", help=f"Settings file. [default: {SYSTEM_SETTINGS_FILE}]")]
RootOption = Annotated[str, option("--root", metavar="DIR", help="Write below this directory, and leave systemd alone. [default: /]")]


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="Make systemd's units follow the settings.", no_args_is_help=True, rich_markup_mode=markup)
    app.command("apply")(apply)
    app.command("list")(list_units)
    app.command("remove")(remove)
    return app


def apply(config: SettingsOption = SYSTEM_SETTINGS_FILE, root: RootOption = "/") -> None:
    """Write addresses, disks, mounts and numbers of processes into drop-ins of the units. Says what it changed; nothing if all is well."""
    from appliance.command.unit_installation import install_units, plan_of_settings, systemctl

    _, plan = plan_of_settings(config, root)
    done = install_units(plan, root)
    for line in done:
        print(line)
    if done and root == "/":
        if gone := [line.rpartition("/")[2] for line in done if line.startswith("removed ") and line.endswith(".socket")]:
            systemctl("stop", *gone)  # no process serves it from the next start on: a connection must be refused and not wait
        systemctl("daemon-reload")


def list_units(config: SettingsOption = SYSTEM_SETTINGS_FILE) -> None:
    """Print every service of the box, one a line."""
    from appliance.command.unit_installation import plan_of_settings

    print("\n".join(plan_of_settings(config)[1].units))


def remove(root: RootOption = "/") -> None:
    """Remove what apply wrote."""
    from appliance.command.unit_installation import remove_units, systemctl

    done = remove_units(root)
    for line in done:
        print(line)
    if done and root == "/":
        systemctl("daemon-reload")


def main() -> None:
    run_app(build_app(None))


if __name__ == "__main__":
    main()
