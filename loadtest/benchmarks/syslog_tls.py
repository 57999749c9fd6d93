"""Syslog over TLS from loggen until every line is stored; the rest as in `syslog_tcp`.

Weak spot: loggen writes every line as a TLS record of its own, which is the most work a line can make; a relay that fills its records costs less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lab.certificates import Authority
from lab.running_box import Address, RunningBox, listener
from loadtest.benchmark import Figure
from loadtest.benchmarks.syslog_tcp import SyslogTcp

LISTENER = "tls"


@dataclass(frozen=True)
class SyslogTls(SyslogTcp):
    name: ClassVar[str] = "syslog_tls"
    title: ClassVar[str] = "loggen sends RFC 5424 lines of 300 B over 4 TLS connections, a record each, as fast as it can; the time runs until all are stored."
    figures: ClassVar[tuple[Figure, ...]] = (SyslogTcp.figures[0]._replace(at_least=70_000), *SyslogTcp.figures[1:])
    plugin: ClassVar[list[str]] = ["--use-ssl"]

    def box_arguments(self, directory: Path) -> Mapping[str, Any]:
        made = Authority(directory).sign("localhost", "DNS:localhost")
        tls = listener(LISTENER, "syslog", "tls", certificate=str(made.certificate), private_key=str(made.private_key))
        return {"senders": {"listener": [tls]}}

    def address(self, box: RunningBox) -> Address:
        return box.sender(LISTENER)
