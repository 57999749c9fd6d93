"""Generates the reference page of all settings from their rows (STYLE.md, habit 12).
`docs/settings.md` is its output; a test compares them.

Pure. Weak: of options that are no settings (table `[box]`) it has the names only; docs/install.md
explains them.
"""

from __future__ import annotations

from appliance.base.setting_row import SettingRow
from appliance.base.setting_rows import GROUPS

_HEAD = """\
# Settings

Written by `millrace config check --reference` from
[setting_rows.py](../appliance/base/setting_rows.py); change that, not this page.

A settings file is TOML and is given with `--config FILE`; an installed box uses
`/etc/millrace/millrace.toml`. `millrace config check FILE` reports everything that is wrong with
one. Names are Kafka's if Kafka has the setting. A setting is read when the box starts. The options
in `[box]` are explained in [Install and upgrade](install.md#try-it-without-installing), the tables
`[[ingest.listener]]` and `[[ingest.route]]` in the
[senders' reference](senders.md#the-tables-of-senders).

```
"log.segment.bytes" = 268435456   # settings by their names, in quotes or as log.segment.bytes = …

[box]                             # options of `millrace run` by their names
data = ["/srv/d0", "/srv/d1"]
listen = "0.0.0.0"
advertise = "logs.example.org"
```
"""


def reference_page() -> str:
    """Return the page as Markdown, with a table for each group of rows."""
    return _HEAD + "".join(_group(title, rows) for title, rows in GROUPS.items())


def _group(title: str, rows: tuple[SettingRow, ...]) -> str:
    lines = [f"\n## {title}\n", "| setting | default | allowed | meaning | a larger value costs |", "|---|---|---|---|---|"]
    lines += [f"| `{row.name}` | {_value(row)} | {_allowed(row)} | {row.meaning} | {row.larger_costs} |" for row in rows]
    return "\n".join(lines) + "\n"


def _value(row: SettingRow) -> str:
    if isinstance(row.default, bool):
        return "true" if row.default else "false"
    return f"{row.default} {row.unit}".rstrip()


def _allowed(row: SettingRow) -> str:
    if isinstance(row.default, int) and not isinstance(row.default, bool):
        return f"{row.low} to {row.high}"
    return row.allowed
