"""The names of severities and facilities (RFC 5424, table 1 and 2; syslog.h), and what else people write for them. Values only."""

from __future__ import annotations

SEVERITY_NAMES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
FACILITY_NAMES = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp", "audit", "alert", "clock"),
    *(f"local{number}" for number in range(8)),
)
assert len(SEVERITY_NAMES) == 8 and len(FACILITY_NAMES) == 24

SEVERITIES = {name: number for number, name in enumerate(SEVERITY_NAMES)} | {"panic": 0, "emergency": 0, "critical": 2, "error": 3, "warn": 4}
FACILITIES = {name: number for number, name in enumerate(FACILITY_NAMES)} | {"security": 4}
