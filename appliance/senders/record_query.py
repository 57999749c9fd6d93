"""The query language of `millrace search`: a text becomes a tree of conditions.

Pure. Grammar (`…` is repetition, spaces separate):

    query       := [ alternative ]                        the empty query matches every record
    alternative := conjunction { "or" conjunction }
    conjunction := factor { [ "and" ] factor }
    factor      := ( "not" | "-" ) factor | "(" alternative ")" | condition
    condition   := text | FIELD operator value
    operator    := "=" | "!=" | "<" | "<=" | ">" | ">=" | ":" | "~" | "!~"
    text        := WORD | "PHRASE" | /REGEX/
    value       := WORD | "PHRASE"; after "~" and "!~" also /REGEX/

FIELD is a name of the record's JSON object; dots reach inside (`labels.app`). A text is looked for
in all texts and whole numbers of the record, `FIELD:text` in one field. What ends with `/` before a
space is an expression, `/var/log` is a word. A word or phrase must begin
and end at the edge of a word (letters, digits, `_`); `*` stands for any characters: `time*`. `=`
compares the whole field, `<` and the like numbers, or texts if the value is no number. Names of
severities and facilities count as their numbers, in the query (`severity<=err`) and in a record
(`"severity":"ERROR"`). Case matters only in regular
expressions (RE2's). A field that is absent or null fulfils no condition: `-host=a` matches a record
without a host, `host!=a` does not. In phrases `\\"` and `\\\\` are escapes, in expressions `\\/` is.
Weak: a word that begins with `-`, or is `and`, `or`, `not`, needs quotation marks.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from appliance.base.errors import MillraceError
from appliance.senders.conditions import FACILITIES, SEVERITIES

QUERY_CHARACTERS_MAX = 2_000
DEPTH_MAX = 40
CONDITIONS_MAX = 100
EXPRESSIONS_MAX = 10
"""Compiling one takes up to 20 ms."""
REGEX_BYTES_MAX = 1 << 20
"""Memory of a compiled expression."""
ANY_FIELD = ""

NUMBERS_OF_NAMES = {"severity": SEVERITIES, "facility": FACILITIES}
"""By field: names, in lower case, that count as numbers."""


def names_of(field: str, number: int | None) -> list[str]:
    """Return the names that a text in this field may have instead of the number."""
    return [name for name, meant in NUMBERS_OF_NAMES.get(field, {}).items() if meant == number]


class QueryProblem(MillraceError):
    """The text is no query. `column` counts characters from 1."""

    def __init__(self, reason: str, column: int) -> None:
        super().__init__(f"column {column} of the query: {reason}")
        self.reason = reason
        self.column = column


class Contains(NamedTuple):
    """A word or phrase in a field (`ANY_FIELD`: in any); `pieces` in lower case, any characters
    between two of them. The first and the last are empty if the text begins or ends with `*`."""

    field: str
    pieces: tuple[str, ...]


class Regex(NamedTuple):
    """An expression that is found in a field (`ANY_FIELD`: in any)."""

    field: str
    pattern: str


class Equals(NamedTuple):
    """The whole field; `pieces` as in `Contains`."""

    field: str
    pieces: tuple[str, ...]
    number: int | None = None
    """A whole number also equals a field that is this number."""


class Compare(NamedTuple):
    """`operator` is <, <=, > or >=."""

    field: str
    operator: str
    value: float | str


class Not(NamedTuple):
    part: Node


class And(NamedTuple):
    """Without parts it is always true."""

    parts: tuple[Node, ...]


class Or(NamedTuple):
    parts: tuple[Node, ...]


Node = Contains | Regex | Equals | Compare | Not | And | Or

_TOKEN = re.compile(
    r"""\s+
    | (?P<parenthesis>[()])
    | (?P<phrase>"(?:[^"\\]|\\.)*")
    | (?P<regex>/(?:[^/\\]|\\.)+/(?=[\s)]|\Z))
    | (?P<operator>!=|!~|<=|>=|[=<>:~])
    | (?P<word>[^\s()"=<>~!:]+(?:[:!]+[^\s()"=<>~!:]+)*)
    """,
    re.VERBOSE,
)
_FIELD = re.compile(r"[A-Za-z_@][\w@.\-]*\Z")
_VALUE = re.compile(r"[^\s()\"]+")
_WHOLE_NUMBER = re.compile(r"(?:0|-?[1-9][0-9]{0,17})\Z")


def parse_query(text: str, compiles: bool = True) -> Node:
    """Return the tree. Raises `QueryProblem`. Without `compiles`, mistakes in regular expressions
    are not found, and RE2 is not loaded: compiling those of one query may take 0.2 s."""
    if len(text) > QUERY_CHARACTERS_MAX:
        raise QueryProblem(f"a query has at most {QUERY_CHARACTERS_MAX} characters", QUERY_CHARACTERS_MAX + 1)
    for number, character in enumerate(text, 1):
        if not character.isprintable() and character != "\t":
            raise QueryProblem("a control character", number)
    parser = _Parser(text, compiles)
    found = parser.alternative(0) if parser.has_more() else And(())
    if parser.has_more():
        raise QueryProblem("there is no ( for this )", parser.column)
    return found


class _Parser:
    """Reads from left to right. `_at` is the position of the next token."""

    def __init__(self, text: str, compiles: bool) -> None:
        self._text = text
        self._compiles = compiles
        self._at = 0
        self._conditions = 0
        self._expressions = 0
        self._skip_spaces()

    @property
    def column(self) -> int:
        return self._at + 1

    def has_more(self) -> bool:
        return self._at < len(self._text)

    def alternative(self, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise QueryProblem(f"more than {DEPTH_MAX} levels of parentheses", self.column)
        parts = [self._conjunction(depth)]
        while self._take_keyword("or"):
            parts.append(self._conjunction(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _conjunction(self, depth: int) -> Node:
        parts = [self._factor(depth)]
        while self.has_more() and self._text[self._at] != ")" and not self._is_keyword("or"):
            self._take_keyword("and")
            parts.append(self._factor(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _factor(self, depth: int) -> Node:
        negations = 0
        while True:
            if self._text[self._at : self._at + 1] == "-" and not self._text[self._at + 1 : self._at + 2].isspace():
                self._move(1)
            elif not self._take_keyword("not"):
                break
            negations += 1
        if self._text[self._at : self._at + 1] == "(":
            opened = self.column
            self._move(1)
            found = self.alternative(depth + 1)
            if not self.has_more():
                raise QueryProblem("this ( is not closed", opened)
            self._move(1)
        else:
            found = self._condition()
        return Not(found) if negations % 2 else found

    def _condition(self) -> Node:
        column = self.column
        if not self.has_more():
            raise QueryProblem("a condition is missing", column)
        if self._is_keyword("and") or self._is_keyword("or"):
            raise QueryProblem('a condition is missing before this word; to search for it, write it as "…"', column)
        self._conditions += 1
        if self._conditions > CONDITIONS_MAX:
            raise QueryProblem(f"a query has at most {CONDITIONS_MAX} conditions", column)
        token = _TOKEN.match(self._text, self._at)
        kind = token.lastgroup if token is not None else None
        if token is None or kind in ("operator", "parenthesis", None):
            raise QueryProblem(self._why_no_token(), column)
        found = token.group(kind)
        if kind == "regex":
            self._move(len(found))
            return self._regex(ANY_FIELD, found, column)
        if kind == "phrase":
            self._move(len(found))
            return _text(ANY_FIELD, _unquoted(found), False, column)
        # `host:web1` is a field and a text, `10.0.0.1:514` and `std::bad_alloc` are words
        name, colon, _ = found.partition(":")
        if colon and _FIELD.match(name) and not found.startswith((":", "//"), len(name) + 1):
            self._move(len(name))
        else:
            self._move(len(found), spaces=False)
            name = found
        operator = _TOKEN.match(self._text, self._at)
        if operator is None or operator.lastgroup != "operator":
            self._skip_spaces()
            return _text(ANY_FIELD, name, True, column)
        if not _FIELD.match(name):
            raise QueryProblem(f'{name} is no name of a field; write a text with {operator.group()} as "…"', column)
        self._move(len(operator.group()))
        return self._comparison(name, operator.group(), column)

    def _comparison(self, field: str, operator: str, column: int) -> Node:
        value_column = self.column
        token = _TOKEN.match(self._text, self._at)
        kind = token.lastgroup if token is not None else None
        if token is not None and kind == "regex" and operator in ("~", "!~", ":"):
            self._move(len(token.group()))
            return self._regex(field, token.group(), value_column, operator == "!~")
        if token is not None and kind == "phrase":
            value, is_word = _unquoted(token.group()), False
            self._move(len(token.group()))
        else:
            word = _VALUE.match(self._text, self._at)
            if word is None:
                raise QueryProblem(self._why_no_token() if self.has_more() else f"a value is missing behind {operator}", value_column)
            value, is_word = word.group(), True
            self._move(len(value))
        if operator in ("~", "!~"):
            return self._regex(field, f"/{value}/", value_column, operator == "!~")
        if operator == ":":
            return _text(field, value, is_word, value_column)
        value = str(NUMBERS_OF_NAMES.get(field, {}).get(value.lower(), value))
        if operator in ("=", "!="):
            number = int(value) if _WHOLE_NUMBER.match(value) else None
            equals = Equals(field, _pieces(value) if is_word else (fold(value),), number)
            return equals if operator == "=" else And((Equals(field, ("", "")), Not(equals)))
        try:
            return Compare(field, operator, float(value))
        except ValueError:
            if field in NUMBERS_OF_NAMES:
                known = ", ".join(sorted(NUMBERS_OF_NAMES[field], key=NUMBERS_OF_NAMES[field].__getitem__))
                raise QueryProblem(f"{value} is no {field}; there are {known}", value_column) from None
            return Compare(field, operator, value)

    def _regex(self, field: str, quoted: str, column: int, is_negated: bool = False) -> Node:
        pattern = quoted[1:-1].replace("\\/", "/")
        self._expressions += 1
        if self._expressions > EXPRESSIONS_MAX:
            raise QueryProblem(f"a query has at most {EXPRESSIONS_MAX} regular expressions", column)
        try:
            if self._compiles:
                compile_regex(pattern)
        except ValueError as problem:
            raise QueryProblem(f"no regular expression: {problem}", column) from problem
        found = Regex(field, pattern)
        return And((Equals(field, ("", "")), Not(found))) if is_negated else found

    def _why_no_token(self) -> str:
        character = self._text[self._at]
        if character == '"':
            return 'the phrase does not end with "'
        if character == ")":
            return "a condition is missing before this )"
        return f'a condition cannot begin with {character}; write a text as "…"'

    def _is_keyword(self, keyword: str) -> bool:
        end = self._at + len(keyword)
        return self._text[self._at : end].lower() == keyword and (end >= len(self._text) or self._text[end].isspace() or self._text[end] in '()"')

    def _take_keyword(self, keyword: str) -> bool:
        is_here = self._is_keyword(keyword)
        if is_here:
            self._move(len(keyword))
        return is_here

    def _move(self, count: int, spaces: bool = True) -> None:
        self._at += count
        if spaces:
            self._skip_spaces()

    def _skip_spaces(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1


def fold(text: str) -> str:
    """Return a text in lower case. The two letters outside ASCII whose lower case is in ASCII stay
    different from it, so that bytes can be compared without decoding them."""
    return text.lower() if text.isascii() else text.replace("\u212a", "\ufffd").replace("\u0130", "\ufffd").lower()


def compile_regex(pattern: str) -> re.Pattern[str]:
    """Return RE2's compiled expression. Raises `ValueError`."""
    import re2

    options = re2.Options()
    options.max_mem = REGEX_BYTES_MAX
    options.log_errors = False
    try:
        compiled: re.Pattern[str] = re2.compile(pattern, options)
    except re2.error as problem:
        reason = problem.args[0] if problem.args else problem
        raise ValueError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from problem
    return compiled


def _unquoted(phrase: str) -> str:
    return re.sub(r"\\(.)", r"\1", phrase[1:-1])


def _pieces(word: str) -> tuple[str, ...]:
    return tuple(re.sub(r"\*+", "*", fold(word)).split("*"))


def _text(field: str, text: str, is_word: bool, column: int) -> Node:
    """In a phrase `*` is a character like any other."""
    pieces = _pieces(text) if is_word else (fold(text),)
    if not any(pieces):
        if is_word and field:
            return Equals(field, ("", ""))
        raise QueryProblem("the text is empty", column)
    return Contains(field, pieces)
