"""The fields of a log message beside its text. journald receives them as `MILLRACE_…`;
docs/messages.md lists them.

Fields are for programs and filters (`journalctl MILLRACE_DISK=d0`); the text contains all that a
person needs. Weak: journald indexes each distinct value, so what differs in each message (an
offset, a duration) belongs only in the text.
"""

from __future__ import annotations

PREFIX = "MILLRACE_"

LOG_FIELDS: dict[str, str] = {
    "process": "the process that reports it: `log-writer@d0`; every line has it",
    "disk": "name of the disk (log directory) that the line is about",
    "topic": "name of the topic",
    "partition": "number of the partition; `topic` stands beside it",
    "peer": "another process of the box that the line is about, as in `process`",
    "listener": "name of a listener of the ingestion endpoint",
    "client": "address of a client connection, `host:port`",
    "principal": "the authenticated user; no line has it before there are users",
    "reason": "one word for why or which: a label as counters have it (reason, policy, kind), or an alarm's name",
    "lines_untold": "how many lines like this one were left out",
}
"""Meaning by name as in a call: `log.warning(…, disk="d0")`."""

STANDARD_FIELDS: dict[str, str] = {
    "MESSAGE": "the text, which is complete without any field; a stack is part of it",
    "PRIORITY": "the severity as a number",
    "SYSLOG_IDENTIFIER": "`millrace-` and the process, which is its unit's name: `journalctl -t millrace-log-writer@d0`",
    "CODE_FILE, CODE_LINE, CODE_FUNC": "the place in the code",
}
"""journald's own fields in each message."""
