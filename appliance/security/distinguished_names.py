"""Distinguished names of certificates as Java writes them, and the rules that make principals of
them.

Pure: bytes and texts. `subject_of` walks the DER of a certificate (RFC 5280) and returns its
subject as `X500Principal.getName()` does: RFC 2253, the last name first, unknown attributes as
`1.2.3=#hex`. The rules are those of `ssl.principal.mapping.rules`. Weak: Java's regular expressions
are read by Python's `re`, which differs in rare constructs (possessive classes, `\\Q…\\E`).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

DEFAULT_RULES: Final = "DEFAULT"
_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""Attributes that Java names in RFC 2253; the others are written as OID and hex."""
_TEXTS: Final = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1B: "ascii", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_TIMES: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""UTCTime (to 2049) and GeneralizedTime."""
_VALIDITY: Final = 3
_SUBJECT: Final = 4
"""Fields before the subject: serial number, signature, issuer, validity."""
_RULE = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)\Z")
_SPLIT = re.compile(r"\s*((?:DEFAULT)|RULE:(?:\\.|[^\\/])*/(?:\\.|[^\\/])*/[LU]?)\s*([,\n]|\Z)")
_REFERENCE = re.compile(r"\\(.)|\$(\d)", re.DOTALL)


class CertificateUnreadable(ValueError):
    """The bytes are no certificate in DER."""


class _Value(NamedTuple):
    tag: int
    content: bytes
    encoded: bytes


def _values(encoded: bytes) -> Iterator[_Value]:
    position = 0
    while position < len(encoded):
        start = position
        if len(encoded) - position < 2:
            raise CertificateUnreadable("a value is cut")
        tag, length = encoded[position], encoded[position + 1]
        position += 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4 or len(encoded) - position < count:
                raise CertificateUnreadable("a length is cut or has no bound")
            length = int.from_bytes(encoded[position : position + count], "big")
            position += count
        if len(encoded) - position < length:
            raise CertificateUnreadable("a value is longer than what contains it")
        yield _Value(tag, encoded[position : position + length], encoded[start : position + length])
        position += length


def _only(encoded: bytes, tag: int) -> bytes:
    value = next(_values(encoded), None)
    if value is None or value.tag != tag:
        raise CertificateUnreadable(f"expected a value with tag {tag:#x}")
    return value.content


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate in DER. Raises CertificateUnreadable."""
    fields = list(_values(_only(_only(certificate, _SEQUENCE), _SEQUENCE)))
    if fields and fields[0].tag == _VERSION:
        del fields[0]
    if len(fields) <= _SUBJECT or fields[_SUBJECT].tag != _SEQUENCE:
        raise CertificateUnreadable("it has no subject")
    names = []
    for relative in _values(fields[_SUBJECT].content):
        if relative.tag != _SET:
            raise CertificateUnreadable("a part of the subject is no set")
        names.append("+".join(_attribute(each.content) for each in _values(relative.content)))
    return ",".join(reversed(names))


def expiry_of(certificate: bytes) -> int:
    """Return until when a certificate in DER is valid, in seconds since 1970. Raises CertificateUnreadable."""
    fields = [each for each in _values(_only(_only(certificate, _SEQUENCE), _SEQUENCE)) if each.tag != _VERSION]
    times = list(_values(fields[_VALIDITY].content)) if len(fields) > _VALIDITY else []
    if len(times) != 2 or times[1].tag not in _TIMES:
        raise CertificateUnreadable("it has no time until which it is valid")
    try:
        return int(datetime.datetime.strptime(times[1].content.decode("ascii"), _TIMES[times[1].tag]).replace(tzinfo=datetime.UTC).timestamp())
    except ValueError as error:
        raise CertificateUnreadable("the time until which it is valid cannot be read") from error


def _attribute(content: bytes) -> str:
    parts = list(_values(content))
    if len(parts) != 2 or parts[0].tag != _OID:
        raise CertificateUnreadable("an attribute has no type and value")
    oid, value = _dotted(parts[0].content), parts[1]
    keyword, encoding = _KEYWORDS.get(oid), _TEXTS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or oid}=#{value.encoded.hex()}"
    try:
        return f"{keyword}={_escaped(value.content.decode(encoding))}"
    except UnicodeDecodeError as error:
        raise CertificateUnreadable("a text is not in its encoding") from error


def _escaped(text: str) -> str:
    inner = text.strip(" ")
    before = text[: len(text) - len(text.lstrip(" "))]
    after = text[len(before) + len(inner) :]
    escaped = "".join("\\00" if each == "\0" else f"\\{each}" if each in _ESCAPED else each for each in inner)
    return "\\ " * len(before) + escaped + "\\ " * len(after)


def _dotted(content: bytes) -> str:
    if not content or content[-1] & 0x80:
        raise CertificateUnreadable("an object identifier is cut")
    numbers, value = [], 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    replacement: str
    case: str


class PrincipalMapping:
    """The rules of `ssl.principal.mapping.rules`; the first that matches the whole name counts."""

    def __init__(self, text: str) -> None:
        """Raises ValueError for a rule that cannot be read."""
        self._rules: list[_Rule | None] = []
        position = 0
        text = text.strip()
        while position < len(text):
            match = _SPLIT.match(text, position)
            if match is None:
                raise ValueError(f"rule {text[position : position + 80]!r} must be DEFAULT or RULE:PATTERN/REPLACEMENT/, with L or U at its end")
            self._rules.append(_read_rule(match[1]))
            position = match.end()

    def name_of(self, distinguished_name: str) -> str | None:
        """Return the name of the principal; None if no rule matches."""
        for rule in self._rules:
            if rule is None:
                return distinguished_name
            if rule.pattern.fullmatch(distinguished_name):
                name = rule.pattern.sub(lambda match, rule=rule: _filled(rule.replacement, match), distinguished_name)  # type: ignore[misc]
                return name.lower() if rule.case == "L" else name.upper() if rule.case == "U" else name
        return None


def _read_rule(text: str) -> _Rule | None:
    if text == DEFAULT_RULES:
        return None
    match = _RULE.match(text)
    assert match is not None
    try:
        pattern = re.compile(match[1])
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"rule {text!r} has no regular expression: {error}") from error
    for reference in _REFERENCE.finditer(match[2]):
        if reference[2] and int(reference[2]) > pattern.groups:
            raise ValueError(f"rule {text!r} uses ${reference[2]}, but its pattern has {pattern.groups} groups")
    return _Rule(pattern, match[2], match[3])


def _filled(replacement: str, match: re.Match[str]) -> str:
    return _REFERENCE.sub(lambda reference: reference[1] or match[int(reference[2])] or "", replacement)
