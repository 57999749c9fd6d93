"""Text that acts on no terminal and forges no line, whatever names are in it.

Group ids, client ids and transactional ids are any UTF-8: escape sequences set colours or titles,
line ends forge rows, bidirectional controls reverse what a person reads. Weak: characters that only
look like others are shown as they are.
"""

from __future__ import annotations

import json
import re
from typing import Any

_ACTING = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f"  # all controls but the tab
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff"  # bidirectional controls, invisible characters
    "\u2028\u2029\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"  # line ends, annotations, tags, and what cannot be encoded
)


def terminal_text(text: str) -> str:
    """Return `text` with each character that would act on a terminal as `\\xNN`, `\\uNNNN` or `\\UNNNNNNNN`."""
    return _ACTING.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 1 << 8 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def terminal_json(document: Any) -> str:
    """Return `document` as one line of JSON, in which JSON's escapes stand for the same characters."""
    return _ACTING.sub(_json_escaped, json.dumps(document, ensure_ascii=False))


def _json_escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\u{code:04x}" if code < 1 << 16 else json.dumps(found[0])[1:-1]
