"""A `route`, `default` or `dead-letter` line of the ingest table: from words to a route, or to everything that is wrong with it. Pure."""

from __future__ import annotations

from appliance.senders.conditions import Condition, Subject
from appliance.senders.listen_line import NEEDS_NO_KEY, BadValue, read_flag, read_key, topic_problem
from appliance.senders.listener import KeyKind, KeyRule
from appliance.senders.router import Route
from appliance.senders.syslog_names import FACILITIES, FACILITY_NAMES, SEVERITIES, SEVERITY_NAMES
from appliance.senders.table_words import nearest

ARROW = "->"
NUMBERED = {"severity": (SEVERITIES, SEVERITY_NAMES), "facility": (FACILITIES, FACILITY_NAMES)}
PLAIN = ("app", "host", "tag", "listener")
SUBJECT_WORDS = "facility, severity, app, host, tag, listener, label.NAME or field.PATH"


def read_route(words: list[str]) -> tuple[Route | None, list[str]]:
    """`CONDITION … -> TOPIC[,TOPIC] [key=…] [key-required=yes]`."""
    if ARROW not in words:
        return None, ["a route needs `-> TOPIC`; write: route CONDITION … -> TOPIC[,TOPIC] [key=…]"]
    arrow = words.index(ARROW)
    conditions, problems = _read_conditions(words[:arrow])
    target, target_problems = read_target(words[arrow + 1 :])
    problems += target_problems
    if arrow == 0:
        problems.append("a route without a condition takes every record; write it as `default -> TOPIC`")
    return None if problems or target is None else target._replace(conditions=conditions), problems


def read_target(words: list[str]) -> tuple[Route | None, list[str]]:
    """What stands behind the arrow."""
    if not words or "=" in words[0]:
        return None, ["no topic stands behind `->`; name one, or several with commas between"]
    topics = words[0].split(",")
    problems = [problem for topic in topics if (problem := topic_problem(topic)) is not None]
    problems += [f"topic {topic} is named twice; once is enough" for topic in dict.fromkeys(topics) if topics.count(topic) > 1]
    key: KeyRule | None = None
    is_required = False
    for word in words[1:]:
        name, _, text = word.partition("=")
        try:
            if name == "key":
                key = read_key(text)
            elif name == "key-required":
                is_required = read_flag(text)
            else:
                problems.append(f"{word!r} is not known behind a topic; there are key=… and key-required=yes")
        except BadValue as error:
            problems.append(f"{name} is {text!r}: {error}")
    if is_required and key is not None and key.kind is KeyKind.NONE:
        problems.append(NEEDS_NO_KEY)
    return Route((), tuple(topics), key, is_required), problems


def _read_conditions(words: list[str]) -> tuple[tuple[Condition, ...], list[str]]:
    conditions: list[Condition] = []
    problems = []
    for word in words:
        condition, problem = _read_condition(word)
        if condition is not None and any(other.subject == condition.subject for other in conditions):
            problem = f"{word.partition('=')[0].rstrip('<')} is asked twice, and both would have to hold; write one condition with commas between its values"
        if problem is not None:
            problems.append(problem)
        elif condition is not None:
            conditions.append(condition)
    return tuple(conditions), problems


def _read_condition(word: str) -> tuple[Condition | None, str | None]:
    left, equals, right = word.partition("=")
    is_at_most = left.endswith("<")
    name = left.removesuffix("<")
    if not equals:
        return None, f"{word!r} is no condition; write SUBJECT=value,value, where SUBJECT is {SUBJECT_WORDS}"
    subject = _subject(name)
    if subject is None:
        return None, f"{name!r} cannot be asked; write {SUBJECT_WORDS}{nearest(name, [*NUMBERED, *PLAIN])}"
    if is_at_most and name != "severity":
        return None, f"<= is for severity alone; write {name}={right}"
    texts = right.split(",")
    if is_at_most and len(texts) > 1:
        return None, f"severity<= takes one value, not {right!r}; write the least severe one that is meant"
    if "" in texts:
        return None, f"{word!r} has an empty value; write one, or leave the comma out"
    if name not in NUMBERED:
        return Condition(subject, tuple(texts)), None
    numbers, names = NUMBERED[name]
    values = []
    for text in texts:
        number = int(text) if text.isascii() and text.isdigit() else numbers.get(text.lower())
        if number is None or number >= len(names):
            return None, f"there is no {name} {text!r}; write a number from 0 to {len(names) - 1}, or one of {', '.join(names)}{nearest(text, list(numbers))}"
        values.append(number)
    return Condition(subject, tuple(values), is_at_most), None


def _subject(name: str) -> Subject | None:
    kind, dot, rest = name.partition(".")
    if kind in ("label", "field"):
        return Subject(kind, rest) if rest else None
    return Subject(kind) if not dot and (kind in NUMBERED or kind in PLAIN) else None
