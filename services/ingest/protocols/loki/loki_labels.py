"""The text of a Loki label set, `{job="nginx", path="C:\\\\tmp"}`, as names and values.

Pure. Values are quoted as Go quotes them: "…" with escapes, or `…` without. Weak: names are taken as they come (Loki would refuse a dot), since nothing
here depends on their form; the same name twice keeps its last value.
"""

from __future__ import annotations

import re

_PAIR = re.compile(r'\s*([^\s=,{}"`]+)\s*=\s*(?:"((?:[^"\\\n]|\\.)*)"|`([^`]*)`)\s*(,|\Z)')
_ESCAPE = re.compile(r"""\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([0-7]{3})|(.))""")
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"', "'": "'"}
_SURROGATES = range(0xD800, 0xE000)
_CODE_POINT_MAX = 0x10FFFF
_BYTE_MAX = 0xFF


def parse_labels(text: str) -> dict[str, str] | None:
    """The labels; None if the text is no label set. `{}` has none."""
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")) or len(text) < 2:
        return None
    inner = text[1:-1].rstrip()
    labels: dict[str, str] = {}
    position = 0
    while position < len(inner):
        match = _PAIR.match(inner, position)
        if match is None:
            return None
        name, quoted, plain, _ = match.groups()
        value = plain if quoted is None else _unquote(quoted)
        if value is None:
            return None
        labels[name] = value
        position = match.end()
    return labels


def _unquote(text: str) -> str | None:
    if "\\" not in text:
        return text
    pieces: list[str] = []
    position = 0
    octets = bytearray()  # \x and \NNN are bytes of a UTF-8 text, not characters

    def flush() -> None:
        if octets:
            pieces.append(octets.decode("utf-8", "replace"))
            octets.clear()

    for match in _ESCAPE.finditer(text):
        if match.start() > position:
            flush()
            pieces.append(text[position : match.start()])
        position = match.end()
        hexadecimal, short, long, octal, letter = match.groups()
        if hexadecimal or octal:
            octet = int(hexadecimal, 16) if hexadecimal else int(octal, 8)
            if octet > _BYTE_MAX:
                return None
            octets.append(octet)
            continue
        flush()
        if letter is not None:
            if letter not in _LETTERS:
                return None
            pieces.append(_LETTERS[letter])
            continue
        code_point = int(short or long, 16)
        if code_point > _CODE_POINT_MAX or code_point in _SURROGATES:
            return None
        pieces.append(chr(code_point))
    flush()
    pieces.append(text[position:])
    return "".join(pieces)
