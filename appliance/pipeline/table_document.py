"""The JSON that a table's books are kept in: one object a file, with the version of its layout. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from appliance.pipeline.load_problem import DamagedTable

VERSION = 1


def encode_document(fields: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"version": VERSION, **fields}, option=orjson.OPT_INDENT_2)


def decode_document(content: bytes, path: str) -> dict[str, Any]:
    """The object; `path` is for the text of DamagedTable, raised for what is no such object or of another version."""
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise DamagedTable(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise DamagedTable(f"{path} is of another release: it is not version {VERSION}")
    return document
