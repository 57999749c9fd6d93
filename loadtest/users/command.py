"""`python -m loadtest users MIX`: locust with the options that most runs want, against a box that is named or one that is started for it.

Knows locust only as a program: it is started, not imported. Every option that is not its own goes on to it, and so to the locustfile.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtest.machine import ROOT
from loadtest.users.mixes import MIXES, parse_mix
from loadtest.users.options import add_options
from loadtest.users.targets import addresses_of

SPAWN_RATE_MAX = 100
EXIT_NOT_STARTED = 2
EPILOG = """\
{options}
Any other option goes to locust (.venv/bin/locust --help). For example
  python -m loadtest users live --box logs.example --users 50 --seconds 60 --p99-max produce=50,consume=500
exit codes: 0 counts add up and limits are kept, 1 records or lines are missing or too many, 2 not started, 3 a limit was not kept."""


def main(arguments: Sequence[str], say: Callable[[str], None]) -> int:
    parser = build_parser()
    options, others = parser.parse_known_args(list(arguments))
    try:
        parse_mix(options.mix)
        if options.box:
            addresses_of(options.box)
    except ValueError as error:
        parser.error(str(error))
    if options.box:
        return run_locust(locust_arguments(options, options.box, others))
    return run_with_own_box(options, others, say)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest users",
        description="Users that produce, consume in groups and send syslog; their counts are compared with the box's at the end.",
        epilog=EPILOG.format(options=load_options()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("mix", metavar="MIX", nargs="?", default="live", help=f"{', '.join(MIXES)}, or a list such as produce=4,consume=1 [default: live]")
    parser.add_argument("--box", metavar="HOST[:PORT]", help="a running box, by its Kafka address [default: one is started, and stopped afterwards]")
    parser.add_argument("--users", type=int, default=50, metavar="N", help="of all kinds together [default: 50]")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="N", help="how long, from when all users have begun [default: 60]")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="that the users run in; -1: one for each core [default: 2]")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write report.html, load_*.csv and load_verdict.json there")
    return parser


def load_options() -> str:
    """The load test's own options as --help shows them; locust's --help comes before it has read a locustfile, and knows none of them."""
    parser = argparse.ArgumentParser(add_help=False, usage=argparse.SUPPRESS)
    add_options(parser)
    return parser.format_help()


def locust_arguments(options: argparse.Namespace, host: str, others: Sequence[str]) -> list[str]:
    arguments = ["--locustfile", str(ROOT / "loadtest/locustfile.py"), "--headless", "--only-summary", "--loglevel", "WARNING"]
    arguments += ["--host", f"kafka://{host}", "--mix", options.mix, "--users", str(options.users)]
    port = str(free_port())
    arguments += ["--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--master-port", port]
    arguments += ["--spawn-rate", str(min(SPAWN_RATE_MAX, options.users)), "--load-seconds", f"{options.seconds:g}", "--processes", str(options.processes)]
    if options.report:
        options.report.mkdir(parents=True, exist_ok=True)
        arguments += ["--html", str(options.report / "report.html"), "--csv", str(options.report / "load")]
    return [*arguments, *others]


def free_port() -> int:
    """For master and workers to talk by. Another process may take it before they do; locust ends then, and says so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_locust(arguments: Sequence[str]) -> int:
    """In a process of its own, whose sockets it changes. Ctrl-C reaches it, too, and ends it in its own way."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-m", "locust", *arguments], env=environment)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def run_with_own_box(options: argparse.Namespace, others: Sequence[str], say: Callable[[str], None]) -> int:
    from lab.running_box import start_box  # it needs what a box needs

    with tempfile.TemporaryDirectory(prefix="millrace-users-") as scratch:
        try:
            box = start_box(Path(scratch) / "box")
        except AssertionError as failed:
            say(str(failed))
            return EXIT_NOT_STARTED
        say(f"a box of our own at {box.kafka}, ready after {box.ready_seconds:.1f} s")
        ports = ["--syslog-port", str(box.syslog.port), "--http-port", str(box.http.port)]
        try:
            code = run_locust(locust_arguments(options, box.bootstrap, [*ports, *others]))
        finally:
            ended = box.stop()
        if ended:
            say(f"the box ended with {ended}\n{box.messages}")
        return code or int(bool(ended))
