"""RFC 5424 structured data: finds where it ends and, later and only if asked, reads it.

Values only. `"`, `\\` and `]` inside a value are escaped with a backslash; a backslash before anything else is itself (RFC 5424 6.3.3).
A bare `]` inside quotes is accepted, since senders forget to escape it and the quotes leave no doubt. A name that
occurs more than once in an element (RFC 5424 allows it: `ip="…" ip="…"`) becomes a list.

Weak: names are not checked against the RFC's alphabet or its 32 characters; whatever has no space, `=`, `]` or `"` is a name.
"""

from __future__ import annotations

import re

Element = dict[str, "str | list[str]"]

_VALUE = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NAME = rb'[^\s="\]\[\\]++'
_ELEMENTS = re.compile(rb"(?:\[" + _NAME + rb"(?: ++" + _NAME + rb"=" + _VALUE + rb")*+ *+\])++", re.DOTALL)
_ELEMENT = re.compile(r'\[([^\s="\]\[\\]++)((?: ++[^\s="\]\[\\]++="[^"\\]*+(?:\\.[^"\\]*+)*+")*+) *+\]', re.DOTALL)
_PARAMETER = re.compile(r' ++([^\s="\]\[\\]++)="([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
_ESCAPE = re.compile(r'\\(["\\\]])')


def end_of_structured_data(text: bytes, position: int) -> int:
    """Where the elements that start at `position` end (at a space or the end of `text`); -1 if they are malformed or unterminated."""
    match = _ELEMENTS.match(text, position)
    if match is None:
        return -1
    end = match.end()
    return end if end == len(text) or text[end] == 0x20 else -1


def read_structured_data(text: str) -> dict[str, Element]:
    """`{id: {name: value}}` of what `end_of_structured_data` delimited."""
    elements: dict[str, Element] = {}
    for element in _ELEMENT.finditer(text):
        parameters = elements.setdefault(element[1], {})
        for name, escaped in _PARAMETER.findall(element[2]):
            value = _ESCAPE.sub(r"\1", escaped) if "\\" in escaped else escaped
            earlier = parameters.get(name)
            if earlier is None:
                parameters[name] = value
            elif isinstance(earlier, list):
                earlier.append(value)
            else:
                parameters[name] = [earlier, value]
    return elements
