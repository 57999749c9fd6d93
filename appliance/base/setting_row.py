"""One setting of a broker, and the units of its bounds.

The rows themselves are in `setting_rows`.
"""

from __future__ import annotations

from typing import NamedTuple

SettingValue = str | int | bool

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
SECOND = 1000
HOUR = 3600 * SECOND
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class SettingRow(NamedTuple):
    """One setting. Numbers have `low` and `high` (inclusive); texts have `choices`, or any
    non-empty text if that is empty (an empty one only if the default is)."""

    name: str
    default: SettingValue
    unit: str
    meaning: str
    larger_costs: str
    low: int = 0
    high: int = INT32_MAX
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """The allowed values as text for people."""
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, int):
            return f"a whole number from {self.low} to {self.high}" + (f" ({self.unit})" if self.unit else "")
        return "one of " + ", ".join(self.choices) if self.choices else "a text"
