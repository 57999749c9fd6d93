"""The load test's own options of locust's command line, in groups of their own in --help. Knows argparse only.

Values reach workers on other machines with locust's spawn message, so all are plain numbers and texts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from loadtest.users.limits import Limits, parse_p99
from loadtest.users.mixes import KINDS, MIXES, parse_mix
from loadtest.users.targets import addresses_of

DEFAULT_MIX = "live"


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--host` is locust's own."""
    box = parser.add_argument_group("the box (beside --host kafka://HOST:9092)")
    box.add_argument("--syslog-port", type=int, default=514, metavar="N", help="its syslog port, UDP and TCP; ./install.sh run has 5514 [default: %(default)s]")
    box.add_argument("--syslog-host", default="", metavar="HOST", help="if it is not the host of --host")
    box.add_argument("--http-port", type=int, default=8080, metavar="N", help="its HTTP port, for /metrics [default: %(default)s]")
    box.add_argument("--metrics-url", default="", metavar="URL", help="if it is not http://HOST:HTTP-PORT/metrics")
    box.add_argument("--syslog-topic", default="syslog", metavar="NAME", help="where its syslog lines go (ingest.syslog.topic) [default: %(default)s]")
    box.add_argument("--others-write", action="store_true", help="others use the box meanwhile: more records than were sent are shown, and are no failure")
    load = parser.add_argument_group("the load")
    mix_help = f"{', '.join(MIXES)}, or a list such as produce=4,consume=1; kinds: {', '.join(KINDS)} [default: %(default)s]"
    load.add_argument("--mix", type=checked(parse_mix), default=DEFAULT_MIX, metavar="MIX", help=f"users and their weights: {mix_help}")
    load.add_argument(
        "--load-seconds",
        type=float,
        default=0.0,
        metavar="N",
        help="end so long after all users have begun; locust's --run-time counts from before that [default: no end of ours]",
    )
    load.add_argument("--topic", default="", metavar="NAME", help="produce into this one, made if it is not there [default: a new one for each run]")
    load.add_argument("--partitions", type=positive, default=4, metavar="N", help="of a topic that is made [default: %(default)s]")
    load.add_argument("--record-bytes", type=positive, default=1000, metavar="N", help="size of a record's value [default: %(default)s]")
    load.add_argument(
        "--batch-records", type=positive, default=100, metavar="N", help="records that a producer sends at a time, and waits for [default: %(default)s]"
    )
    load.add_argument(
        "--produce-rate",
        type=float,
        default=2.0,
        metavar="N",
        help="such batches a second and user; 0: as fast as they are acknowledged [default: %(default)s]",
    )
    load.add_argument("--acks", choices=("all", "1", "0"), default="all", help="what a producer waits for; all makes it idempotent [default: %(default)s]")
    load.add_argument("--compression", choices=("none", "gzip", "snappy", "lz4", "zstd"), default="none", help="of producers [default: %(default)s]")
    load.add_argument("--linger-ms", type=float, default=5.0, metavar="MS", help="librdkafka's linger.ms [default: %(default)s]")
    load.add_argument("--answer-seconds", type=positive, default=30, metavar="N", help="a record that has no answer by then has failed [default: %(default)s]")
    load.add_argument("--groups", type=positive, default=1, metavar="N", help="consumer groups; each reads all that the run writes [default: %(default)s]")
    load.add_argument("--group-protocol", choices=("classic", "consumer"), default="classic", help="consumer: KIP-848 [default: %(default)s]")
    load.add_argument("--poll-records", type=positive, default=1000, metavar="N", help="at most so many records a call of a consumer [default: %(default)s]")
    load.add_argument("--line-bytes", type=positive, default=300, metavar="N", help="size of a syslog line [default: %(default)s]")
    load.add_argument("--batch-lines", type=positive, default=10, metavar="N", help="lines that a sender sends at a time [default: %(default)s]")
    load.add_argument(
        "--syslog-rate",
        type=float,
        default=10.0,
        metavar="N",
        help="such batches a second and user; 0: as fast as the kernel takes them [default: %(default)s]",
    )
    judged = parser.add_argument_group("limits and the end (exit code 1: counts do not add up; 3: a limit was not kept)")
    judged.add_argument(
        "--failures-max", type=float, default=0.0, metavar="RATIO", help="share of requests that may fail; 0.01 is one in a hundred [default: %(default)s]"
    )
    p99_help = "99th percentile of a kind of request, such as produce=50; several with commas"
    judged.add_argument("--p99-max", type=checked(parse_limits), default="", metavar="KIND=MS", help=p99_help)
    judged.add_argument("--drops-max", type=float, default=None, metavar="RATIO", help="share of UDP lines that the kernel may drop [default: any]")
    judged.add_argument(
        "--patience", type=float, default=15.0, metavar="SECONDS", help="give up when the counts have not moved for so long at the end [default: %(default)s]"
    )
    # Chosen by the master for all processes.
    for name in ("--run-id", "--consumed-topics"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)


def parse_limits(text: str) -> tuple[tuple[str, float], ...]:
    return tuple(parse_p99(part) for part in text.split(",") if part)


def limits_of(options: argparse.Namespace) -> Limits:
    return Limits(options.failures_max, parse_limits(options.p99_max), options.drops_max)


def checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    """An argparse type: the text itself, if `parse` takes it. Texts cross to other machines, what they mean does not."""

    def check(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return text

    return check


def positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def problems(options: argparse.Namespace) -> list[str]:
    """What is wrong with options that are right each by itself."""
    found = []
    if not options.host:
        found.append("name the box: --host kafka://HOST:9092")
    else:
        try:
            addresses_of(options.host)
        except ValueError as error:
            found.append(f"--host: {error}")
    limited = {kind for kind, _ in parse_limits(options.p99_max)}
    absent = sorted(limited - set(parse_mix(options.mix)))
    if absent:
        found.append(f"--p99-max: the mix {options.mix} has no {', '.join(absent)}")
    return found
