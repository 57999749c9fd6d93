"""The query language: what a text means, judged by a second, plainly written evaluation; and where its mistakes are."""

from __future__ import annotations

import json
import operator
import re
from typing import Any

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from appliance.senders.record_query import QueryProblem, parse_query
from services.search.matching import Document, compile_node
from services.search.prefilter import Prefilter, folded_value, literals_of, verdict_of

RECORD = {
    "time": "2026-11-21T01:54:57Z",
    "host": "Web7",
    "app": "sshd",
    "proc_id": "4711",
    "severity": 3,
    "severity_name": "err",
    "structured_data": {"meta": {"sequenceId": ["17", "18"]}},
    "labels": {"app.kind": "edge"},
    "fields": {"took": 12.5, "tries": 3, "ok": True},
    "message": 'Connection timed out: peer 10.0.0.1:514 said "no" at /var/log/syslog',
    "msg_id": None,
}


def fulfils(query: str, value: Any = RECORD) -> bool:
    raw = value if isinstance(value, bytes) else orjson.dumps(value)
    node = parse_query(query)
    found = compile_node(node)(Document(raw))
    if found:
        assert may_match(node, raw), f"the prefilter leaves out {query}"
    return found


def may_match(node: Any, raw: bytes) -> bool:
    literals = literals_of(node)
    if literals is None:
        return True
    hits: list[int] = []

    def on_hit(position: int) -> int:
        hits.append(position)
        return position + 1

    Prefilter(literals).scan(memoryview(raw), 0, len(raw), on_hit)
    return bool(hits)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "timed",
        "TIMED",
        "time*",
        "*imed",
        '"timed out"',
        '"connection TIMED"',
        "10.0.0.1",
        "10.0.0.1:514",
        "/var/log/syslog",
        "/var/log",
        r"/time[d]? \w+:/",
        r'"said \"no\" at"',
        "host=web7",
        "host=w*7",
        'host="WEB7"',
        "severity<=err",
        "severity=err",
        "severity=error",
        "severity>2",
        "severity<7",
        "severity_name=err",
        "proc_id=4711",
        "proc_id>4000",
        "structured_data.meta.sequenceId=18",
        "labels.app.kind=edge",
        "fields.took>12",
        "fields.tries=3",
        "fields.ok=true",
        "host=*",
        "host!=web8",
        "message:timed",
        "message~/^Connection/",
        "message~^Connection",
        "message!~/refused/",
        "-refused",
        "-msg_id=*",
        "not refused and timed",
        "refused or timed",
        "(refused or timed) host=web7 -debug",
        "timed refused or edge",
        "-(refused or panic)",
        "--timed",
        "time>2026-11-20",
        "17",
    ],
)
def test_the_record_fulfils(query: str) -> None:
    assert fulfils(query)


@pytest.mark.parametrize(
    "query",
    [
        "time",
        "imed",
        '"timed  out"',
        "refused",
        "/TIMED/",
        "host=web",
        "host!=web7",
        "severity<err",
        "severity>=warning",
        "absent=*",
        "absent!=1",
        "absent!~/x/",
        "-timed",
        "timed -connection",
        "refused timed",
        "refused or panic",
        "proc_id>5000",
        "fields.ok=1",
        "message:edge",
        "msg_id=*",
    ],
)
def test_the_record_does_not_fulfil(query: str) -> None:
    assert not fulfils(query)


@pytest.mark.parametrize(
    ("query", "literals"),
    [
        ("timeout", [b"timeout"]),
        ('host=web7 "connection refused"', [b"connection refused"]),
        ("/tim(e|ed)[- ]?out/", [b"out"]),
        ("/(?i)(Refused|reset by peer)/", [b"refu", b"et by peer"]),
        (r"/took \d{4,} ms/", [b"took"]),
        ("/x?[0-9]*/", None),
        ("/[[:alpha:]]+error/", None),
        ("-debug", None),
        ("debug or -info", None),
    ],
)
def test_the_prefilter_takes_the_rarest_texts_of_a_query(query: str, literals: list[bytes] | None) -> None:
    found = literals_of(parse_query(query))
    assert (found if found is None else [*found]) == literals


@pytest.mark.parametrize(("query", "text"), [("/(?i)k/", "\u212a"), ("/(?i)trunk port/", "TRUN\u212a PORT"), ("/x(?i:missing)/", "xmi\u017f\u017fing")])
def test_without_case_an_expression_finds_letters_that_are_not_ascii(query: str, text: str) -> None:
    assert fulfils(query, {"message": text})


@pytest.mark.parametrize(
    "form", ['"severity":%d,', '"severity": %d}', '"severity":"%d"', '"severity" :%d,', '"severity":%d.0', '"severity":[%d]', '"severity":1%d,']
)
def test_the_prefilter_of_severities_knows_all_ways_to_write_them(form: str) -> None:
    raw = ("{" + form % 3 + "}").replace("}}", "}").replace(",}", ',"facility":7}').encode()
    for padding in range(4):
        assert may_match(parse_query("severity<=3"), b" " * padding + raw)
    assert not may_match(parse_query("severity<=3"), b'{"severity":6,"facility":3,"severity_name":"info"}')
    assert not may_match(parse_query("severity=3"), b'{"severity":6}')


def test_a_value_that_is_no_object_is_one_text() -> None:
    assert fulfils("disk -host=*", b"disk d3 is warm")
    assert fulfils("warm", b'["warm"]') and fulfils("warm", b"\xff warm \xff")
    assert not fulfils("host=disk", b"disk")


@pytest.mark.parametrize(
    ("query", "column", "reason"),
    [
        ('host=web "time', 10, "does not end"),
        ("(a or b", 1, "not closed"),
        ("a ) b", 3, "no ( for this )"),
        ("a or", 5, "missing"),
        ("a and and b", 7, "missing before this word"),
        ("message~/(/", 9, "no regular expression"),
        ("severity<=bad", 11, "is no severity"),
        ("host=", 6, "a value is missing"),
        ("a <b", 3, "cannot begin with <"),
        ('x ""', 3, "empty"),
        ("a\x07", 2, "control character"),
        ("(" * 60 + "a" + ")" * 60, 42, "levels"),
        ("a " * 101, 201, "at most 100"),
        ("/a/ " * 11, 41, "at most 10 regular"),
    ],
)
def test_a_mistake_names_its_column(query: str, column: int, reason: str) -> None:
    with pytest.raises(QueryProblem) as found:
        parse_query(query)
    assert (found.value.column, reason in found.value.reason) == (column, True), found.value


@given(st.text(max_size=60))
def test_any_text_is_a_query_or_a_problem_in_it(text: str) -> None:
    try:
        parse_query(text)
    except QueryProblem as problem:
        assert 1 <= problem.column <= len(text) + 1


# ---- the reference: a tree of plain tuples, written as a query and evaluated in a second way

WORDS = ["err", "Error", "timeout", "time", "out", "10.0.0.1", "a_b", "über", "K", "k", "\u212a", "3", "x<y", "C++", "-", "not", "time out", "and\terr"]
FIELDS = ["host", "severity", "message", "n", "labels.host", "labels.n"]
SEPARATORS = [" ", ", ", "\n", "\t", "—", '"', "\\", "/", "_", ""]
PATTERNS = [
    "err",
    "t[io]me",
    "(?i)ERR.r",
    "ab|3",
    "^out",
    "x.?y",
    "tim(e|x)?out",
    r"10\.0+",
    "C[+]{2}",
    "out$",
    r"\btime\b",
    "[^a-z]$",
    "e{2}|t.m",
    "",
    r"\d",
    "x/y",
]

contents = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(SEPARATORS)), max_size=4).map(lambda parts: "".join(map("".join, parts)))
scalars = st.one_of(st.none(), st.integers(-5, 10), contents, st.sampled_from([True, False, 1.5, -2.25]))
values = st.one_of(scalars, st.lists(scalars, max_size=2), st.dictionaries(st.sampled_from(["host", "n", "severity"]), scalars, max_size=2))
documents = st.dictionaries(st.sampled_from(["host", "severity", "message", "n", "labels", "labels.n"]), values, max_size=4)

pieces = st.one_of(
    st.tuples(st.just("whole"), st.sampled_from(WORDS)),
    st.tuples(st.sampled_from(["prefix", "suffix", "infix"]), st.sampled_from(["err", "time", "a_", "im", "0.0", "über"])),
)
leaves = st.one_of(
    st.tuples(st.just("text"), st.sampled_from([None, *FIELDS]), pieces),
    st.tuples(st.just("regex"), st.sampled_from([None, *FIELDS]), st.sampled_from(PATTERNS), st.booleans()),
    st.tuples(st.just("equals"), st.sampled_from(FIELDS), st.sampled_from(["3", "err", "timeout", "-2", "über", "true", "1.5", "TIME OUT", ""]), st.booleans()),
    st.tuples(st.just("begins"), st.sampled_from(FIELDS), st.sampled_from(["t", "err", "1", ""]), st.booleans()),
    st.tuples(st.just("compare"), st.sampled_from(FIELDS), st.sampled_from(["<", "<=", ">", ">="]), st.integers(-2, 8)),
)
trees = st.recursive(
    leaves,
    lambda parts: st.one_of(
        st.tuples(st.just("not"), st.sampled_from(["-", "not ", "NOT ", "-(-", "not not not "]), parts),
        st.tuples(st.just("and"), st.sampled_from([" ", " and ", "  AND\t"]), st.lists(parts, min_size=2, max_size=3)),
        st.tuples(st.just("or"), st.sampled_from([" or ", " OR "]), st.lists(parts, min_size=2, max_size=3)),
    ),
    max_leaves=6,
)
OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def phrase(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def written(tree: Any, binding: str = "or") -> str:
    """With parentheses only where `binding`, the operator around it, needs them."""
    match tree:
        case ("text", field, (form, word)):
            text = {"whole": phrase(word), "prefix": f"{word}*", "suffix": f"*{word}", "infix": f"*{word}*"}[form]
            return text if field is None else f"{field}:{text}"
        case ("regex", field, pattern, is_negated):
            quoted = "/" + (pattern or "x?").replace("/", "\\/") + "/"
            return ("-" * is_negated + quoted) if field is None else f"{field}{'!~' if is_negated else '~'}{quoted}"
        case ("equals", field, value, is_negated):
            return f"{field}{'!=' if is_negated else '='}{value if re.fullmatch(r'[^ ]+', value) else phrase(value)}"
        case ("begins", field, text, is_negated):
            return f"{field}{'!=' if is_negated else '='}{text}*"
        case ("compare", field, sign, number):
            return f"{field}{sign}{number}"
        case ("not", sign, part):
            inner = written(part, "not")
            return f"{sign}{inner})" if "(" in sign else sign + inner
        case (joint, sign, parts):
            text = sign.join(written(part, joint) for part in parts)
            return text if binding == "or" or (binding, joint) == ("and", "and") else f"({text})"
    raise AssertionError(tree)


def leaves_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in leaves_of(each)]
    if isinstance(value, list):
        return [text for each in value for text in leaves_of(each)]
    return [] if value is None or isinstance(value, bool | float) else [str(value)]


def folded_letters(text: str) -> str:
    return text.replace("\u212a", "\ufffd").lower()


def has_text(text: str, word: str, form: str) -> bool:
    """Character by character, without a regular expression."""
    text, word = folded_letters(text), folded_letters(word)

    def is_word(character: str) -> bool:
        return character.isalnum() or character == "_"

    for at in range(len(text) - len(word) + 1):
        if text[at : at + len(word)] != word:
            continue
        before, behind = text[at - 1 : at] if at else "", text[at + len(word) : at + len(word) + 1]
        if form in ("whole", "prefix") and before and is_word(before) and is_word(word[0]):
            continue
        if form in ("whole", "suffix") and behind and is_word(behind) and is_word(word[-1]):
            continue
        return True
    return False


def content_of(document: dict[str, Any], field: str) -> Any:
    if field in document or "." not in field:
        return document.get(field)
    inner = document.get("labels")
    return inner.get(field.removeprefix("labels.")) if isinstance(inner, dict) else None


def as_number(field: str, content: Any) -> Any:
    """The names that the words of these tests have."""
    return 3 if field == "severity" and isinstance(content, str) and content.lower() in ("err", "error") else content


def contents_of(document: dict[str, Any], field: str) -> list[Any]:
    found = content_of(document, field)
    return found if isinstance(found, list) else [found]


def json_text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)


def re2_finds(pattern: str, text: str) -> bool:
    """By Python's `re`: in RE2, `$` is the end alone, and what `\\b` and `\\d` mean is ASCII."""
    return re.search(pattern.replace("$", r"\Z"), text, re.ASCII if "\\" in pattern else 0) is not None


def reference(tree: Any, document: dict[str, Any]) -> bool:
    match tree:
        case ("text", field, (form, word)):
            return any(has_text(text, word, form) for text in leaves_of(document if field is None else content_of(document, field)))
        case ("regex", field, pattern, is_negated):
            found = any(re2_finds(pattern, text) for text in leaves_of(document if field is None else content_of(document, field)))
            return found != is_negated and (field is None or not is_negated or content_of(document, field) is not None)
        case ("equals", field, value, is_negated):
            value = str(as_number(field, value))
            contents = [as_number(field, each) for each in contents_of(document, field) if each is not None and not isinstance(each, dict)]
            found = any(folded_letters(json_text(each)) == value.lower() for each in contents)
            return found != is_negated and (not is_negated or content_of(document, field) is not None)
        case ("begins", field, text, is_negated):
            is_there = content_of(document, field) is not None
            contents = [each for each in contents_of(document, field) if each is not None and not isinstance(each, dict)]
            found = is_there if not text else any(folded_letters(json_text(each)).startswith(text) for each in contents)
            return found != is_negated and (not is_negated or is_there)
        case ("compare", field, sign, number):
            numbers = []
            for each in contents_of(document, field):
                if isinstance(each, str | int | float) and not isinstance(each, bool):
                    try:
                        numbers.append(float(as_number(field, each)))
                    except ValueError:
                        continue
            return any(OPERATORS[sign](each, number) for each in numbers)
        case ("not", sign, part):
            return reference(part, document) if sign.count("-") == 2 else not reference(part, document)
        case ("and", _, parts):
            return all(reference(part, document) for part in parts)
        case ("or", _, parts):
            return any(reference(part, document) for part in parts)
    raise AssertionError(tree)


@given(trees, documents, st.sampled_from([orjson.dumps, lambda document: json.dumps(document).encode()]))
def test_a_query_means_what_the_reference_evaluation_says(tree: Any, document: dict[str, Any], encode: Any) -> None:
    query = written(tree)
    assume(len(query) < 1_500)
    raw = encode(document)
    node = parse_query(query)
    found = compile_node(node)(Document(raw))
    assert found == reference(tree, document), query
    assert may_match(node, raw) or not found, f"the prefilter leaves out {query}"
    verdict = verdict_of(node)
    assert verdict is None or verdict(folded_value(raw)) in (None, found), f"the quick verdict on {query} is wrong"


@pytest.mark.parametrize("query", ["*a*a*a*a*b", "message=*a*a*a*a*b", "a*a*a*a*a*b"])
def test_a_word_of_many_pieces_takes_time_linear_in_the_text(query: str) -> None:
    document = Document(orjson.dumps({"message": "a" * 20_000}))
    assert not compile_node(parse_query(query))(document)
