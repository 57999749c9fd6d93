"""How options of all commands are declared: a name, what stands for the value, a sentence. Defaults are said in the sentence, by meaning."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def option(*names: str, metavar: str | None = None, help: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, show_default=False, **more)


def argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False)


DataOption = Annotated[
    str | None, option("--data", metavar="DIR", help="Any one data directory of the box. [default: $MILLRACE_DATA, the settings file, ./var]")
]
ConfigOption = Annotated[str | None, option("--config", metavar="FILE", help="Settings file of the box.")]
BootstrapOption = Annotated[str | None, option("--bootstrap", metavar="HOST:PORT", help="A Kafka broker to ask, instead of finding a box.")]
TopicArgument = Annotated[str, argument("TOPIC", "The topic.")]
