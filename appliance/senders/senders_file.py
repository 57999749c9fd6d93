"""The file in which an ingest keeps the accounts of its senders, `RUN/ingest@K/senders.json`: one row for each, replaced whole.

Written by its ingest, read by that one's next life and by commands. Weak: it is on tmpfs, so it ends with the box, and with the machine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import orjson

from appliance.base.layout import BoxLayout
from appliance.senders.sender_accounts import SenderFigures


def senders_file(layout: BoxLayout, process_name: str) -> str:
    """Where an ingest writes its accounts."""
    return f"{layout.runtime_directory}/{process_name}/senders.json"


def write_senders(path: str, figures: Sequence[SenderFigures]) -> None:
    """Replace the file. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(f"{path}.new", "wb") as file:
        file.write(orjson.dumps([list(known) for known in figures]))
    os.rename(f"{path}.new", path)


def read_senders(path: str) -> list[SenderFigures]:
    """What the file says; nothing if there is none that can be read."""
    try:
        with open(path, "rb") as file:
            rows = orjson.loads(file.read())
        return [SenderFigures(*row) for row in rows if _is_row(row)]
    except (OSError, ValueError, TypeError):
        return []


def _is_row(row: object) -> bool:
    if not isinstance(row, list) or len(row) != len(SenderFigures._fields):
        return False
    host, *counts, reasons, listeners, last_seen_ms = row
    numbers = [*counts, last_seen_ms]
    return isinstance(host, str) and all(isinstance(number, int) for number in numbers) and isinstance(reasons, dict) and isinstance(listeners, list)
