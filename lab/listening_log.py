"""A logger whose words a test can read; nothing is written anywhere."""

from __future__ import annotations

from appliance.base.logging import Logger, Severity


class ListeningLog(Logger):
    """`lines` in order."""

    def __init__(self) -> None:
        super().__init__("test", Severity.CRITICAL)
        self.lines: list[str] = []

    def log(self, severity: Severity, text: str, **fields: object) -> None:
        self.lines.append(text)

    def critical(self, text: str, **fields: object) -> None:
        self.log(Severity.CRITICAL, text)

    def error(self, text: str, **fields: object) -> None:
        self.log(Severity.ERROR, text)

    def warning(self, text: str, **fields: object) -> None:
        self.log(Severity.WARNING, text)

    def notice(self, text: str, **fields: object) -> None:
        self.log(Severity.NOTICE, text)
