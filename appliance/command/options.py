"""How options of all commands are declared: a name, a placeholder for the value, a sentence that also states the default.

Weak spot: whether help is drawn depends on the terminal at the time of the import.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from appliance import __version__
from appliance.command.failures import GaveUp, UsageProblem


def parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageProblem(f"--set {text}: write NAME=VALUE, for example --set retention.ms=3600000")
    return name.strip(), value.strip()


IS_DRAWN = sys.stdout.isatty()
"""Help is drawn with boxes on a terminal only, so that `millrace --help | grep` finds whole lines."""


def words(help: str) -> str:
    """Where help is drawn, what stands in brackets would be taken for a colour, and left out."""
    return help.replace("[", "\\[") if IS_DRAWN else help


def option(*names: str, metavar: str | None = None, help: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=words(help), show_default=False, **more)


def argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=words(help), show_default=False)


DataOption = Annotated[
    str | None, option("--data", metavar="DIR", help="Any one data directory of the box. [default: $MILLRACE_DATA, the settings file, ./var]")
]
ConfigOption = Annotated[str | None, option("--config", metavar="FILE", help="Settings file of the box.")]
BootstrapOption = Annotated[str | None, option("--bootstrap", metavar="HOST:PORT", help="A Kafka broker to ask, instead of finding a box.")]
JsonOption = Annotated[bool, option("--json", help="For programs.")]
DryRunOption = Annotated[bool, option("--dry-run", help="Show what would be done, and change nothing.")]
YesOption = Annotated[bool, option("--yes", "-y", help="Do not ask.")]
CommandConfigOption = Annotated[
    str | None,
    option(
        "--command-config",
        metavar="FILE",
        help="Properties file of a Kafka client: security.protocol, sasl.*, ssl.*. For all commands with --bootstrap: $MILLRACE_COMMAND_CONFIG",
    ),
]


WITHOUT_TIMEOUT = frozenset({"send", "load", "stream", "tail"})
"""Commands that run until their input ends, or until they are stopped."""


def add_connection_options(command: Any) -> None:
    """Give each command that has --bootstrap also --command-config and --timeout: what they mean is the same for all."""
    for each in getattr(command, "commands", {}).values():
        add_connection_options(each)
    spellings = {spelling for each in command.params for spelling in each.opts}
    if "--bootstrap" in spellings:
        place = next(at for at, each in enumerate(command.params) if "--bootstrap" in each.opts) + 1
        without = spellings | ({"--timeout"} if command.name in WITHOUT_TIMEOUT else set())
        command.params[place:place] = [each for each in _connection_options() if not without & set(each.opts)]


def _connection_options() -> list[Any]:
    def declare(
        command_config: CommandConfigOption = None,
        timeout: Annotated[
            float | None, option("--timeout", metavar="SECONDS", help="Give up after so many seconds. What was ordered by then may still happen.")
        ] = None,
    ) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(declare)
    made: list[Any] = [each for each in typer.main.get_command(app).params if each.name in ("command_config", "timeout")]
    for each in made:
        each.expose_value = False
        each.callback = _choose_command_config if each.name == "command_config" else _start_timeout
    return made


def _choose_command_config(context: Any, _parameter: Any, value: str | None) -> None:
    from appliance.command import kafka

    kafka.chosen_command_config = value
    context.call_on_close(lambda: setattr(kafka, "chosen_command_config", None))


def _start_timeout(context: Any, parameter: Any, value: float | None) -> None:
    import signal

    if value is None:
        return
    if not 0 < value <= 86_400:
        raise typer.BadParameter("write a number of seconds, above 0 and up to 86400", ctx=context, param=parameter)

    def give_up(_number: int, _frame: Any) -> None:
        raise GaveUp(f"gave up after {value:g} s (--timeout); what was ordered by then may still happen")

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, value)
    context.call_on_close(lambda: signal.setitimer(signal.ITIMER_REAL, 0))


def confirm(question: str, instead: str) -> None:
    """Ask for confirmation. Raises UsageProblem without a yes; `instead` says what to do without a terminal."""
    if not sys.stdin.isatty():
        raise UsageProblem(f"nothing was changed: no terminal to ask for confirmation; {instead}")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageProblem("nothing was changed")


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"millrace {__version__}")
        raise typer.Exit


def options_of_millrace(
    version: Annotated[bool, option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Options before the command."""
