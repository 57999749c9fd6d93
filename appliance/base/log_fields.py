"""The fields that a log line may carry beside its text, and what they mean. One list: journald gets them as `MILLRACE_…`, docs/messages.md has it.

Owned by nobody. A field is for programs and filters (`journalctl MILLRACE_DISK=d0`); what a person needs stands in the text as well. Weak spot: journald
indexes every value that it meets, so what differs in each line (an offset, a duration) belongs into the text alone.
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
"""Name as in a call, `log.warning(…, disk="d0")` → meaning."""

STANDARD_FIELDS: dict[str, str] = {
    "MESSAGE": "the text, which is complete without any field; a stack is part of it",
    "PRIORITY": "the severity as a number",
    "SYSLOG_IDENTIFIER": "`millrace-` and the process, which is its unit's name: `journalctl -t millrace-log-writer@d0`",
    "CODE_FILE, CODE_LINE, CODE_FUNC": "the place in the code",
}
"""What each line has of journald's own fields."""
