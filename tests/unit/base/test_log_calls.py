"""Every log call in the tree: known severities and fields, a text, and no field that only looks like one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from appliance.base.logging import LOG_FIELDS, Severity

ROOT = Path(__file__).parent.parent.parent.parent
SEVERITIES = {severity.name.lower() for severity in Severity} | {"log"}
SPREAD = ("_asdict()",)
"""What may be spread into a call: the fields of a TopicPartition, which are `topic` and `partition`."""


pytestmark = pytest.mark.slow


@cache
def log_calls() -> list[tuple[str, ast.Call]]:
    calls = []
    for folder in ("appliance", "services"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if re.search(r"\blog\.\w+\(|_log\.\w+\(", text) else ():
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value).endswith("log"):
                    if node.func.attr in SEVERITIES:
                        calls.append((f"{path.relative_to(ROOT)}:{node.lineno}", node))
    return calls


def test_there_are_calls_to_look_at() -> None:
    assert len(log_calls()) > 80


def test_a_call_has_documented_fields_only() -> None:
    for place, call in log_calls():
        for keyword in call.keywords:
            if keyword.arg is None:
                assert ast.unparse(keyword.value).endswith(SPREAD), place
            else:
                assert keyword.arg in LOG_FIELDS, f"{place}: {keyword.arg} is no field; say it in the text, or add it to LOG_FIELDS and docs/messages.md"


def test_a_partition_never_stands_without_its_topic() -> None:
    for place, call in log_calls():
        names = {keyword.arg for keyword in call.keywords}
        assert "topic" in names or "partition" not in names, place


def test_a_text_begins_as_a_sentence_of_the_story_does() -> None:
    """No capital, no full stop: the process stands before it, and consequences follow a semicolon."""
    for place, call in log_calls():
        text = call.args[-1]
        if isinstance(text, ast.JoinedStr):
            text = text.values[0]
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and text.value:
            first, second = text.value[0], text.value[1:2]
            assert not first.isupper() or second.isupper(), f"{place}: {text.value}"
