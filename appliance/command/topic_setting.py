"""`--set NAME=VALUE` of `millrace topic create` and `alter`. Whether there is such a setting the broker knows."""

from __future__ import annotations

from appliance.command.failures import UsageProblem


def parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageProblem(f"--set {text}: write NAME=VALUE, for example --set retention.ms=3600000")
    return name.strip(), value.strip()
