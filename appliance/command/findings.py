"""What `millrace doctor` says: findings, each with what to do where something is to do."""

from __future__ import annotations

from typing import NamedTuple

OK, WARNING, PROBLEM = "ok", "warning", "problem"


class Finding(NamedTuple):
    """`advice` is '' where nothing is to do."""

    level: str
    subject: str
    words: str
    advice: str = ""


def ok(subject: str, words: str) -> Finding:
    return Finding(OK, subject, words)


def warning(subject: str, words: str, advice: str) -> Finding:
    return Finding(WARNING, subject, words, advice)


def problem(subject: str, words: str, advice: str) -> Finding:
    return Finding(PROBLEM, subject, words, advice)


def from_sentence(subject: str, sentence: str) -> Finding:
    """A problem as preflight words it: what is wrong; what to do."""
    words, _, advice = sentence.partition("; ")
    return problem(subject, words, advice)
