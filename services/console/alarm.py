"""An alarm as a row: which condition of which metric must hold for how long, its severity and its
text. The list is in `alarms`.

A row gives both a rule for Prometheus (`expression`) and the check of the console itself
(`alarm_watch`). Weak: there are only four forms of condition (a value, a ratio, a rise over a time,
a percentile over a time), because both sides must agree.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

CRITICAL, WARNING = "critical", "warning"

MINUTE = 60
HOUR = 60 * MINUTE

COMPARISONS: dict[str, Callable[[float, float], bool]] = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "==": operator.eq}


class AlarmCondition(NamedTuple):
    """`metric` is the exposed name; `match` selects series by labels. `divided_by` makes it a
    ratio, `over_seconds` a rise; with `quantile` it is a percentile by the label `by`."""

    metric: str
    comparison: str
    threshold: float
    match: tuple[tuple[str, str], ...] = ()
    divided_by: str = ""
    over_seconds: int = 0
    quantile: float = 0.0
    by: str = ""

    @property
    def expression(self) -> str:
        """The condition in Prometheus's language."""
        picked = ",".join(f'{label}="{value}"' for label, value in self.match)
        braces = f"{{{picked}}}" if picked else ""
        window = f"[{_duration(self.over_seconds)}]"
        if self.quantile:
            what = f"histogram_quantile({self.quantile:g}, sum by (instance, {self.by}, le) (rate({self.metric}_bucket{braces}{window})))"
        elif self.over_seconds:
            what = f"increase({self.metric}{braces}{window})"
        elif self.divided_by:
            what = f"{self.metric}{braces} / {self.divided_by}{braces}"
        else:
            what = self.metric + braces
        return f"{what} {self.comparison} {self.threshold:g}"


class Alarm(NamedTuple):
    """`words` may contain labels of the metric in braces. Without `condition`, only Prometheus can
    check it, by `only_expression`."""

    name: str
    severity: str
    condition: AlarmCondition | None
    hold_seconds: int
    words: str
    meaning: str
    """What it means for users, in a sentence."""
    only_expression: str = ""

    @property
    def expression(self) -> str:
        return self.condition.expression if self.condition is not None else self.only_expression

    @property
    def runbook(self) -> str:
        """The section of the runbook with checks and actions."""
        return f"docs/operate.md#{self.name.lower()}"


def _duration(seconds: int) -> str:
    if seconds and not seconds % HOUR:
        return f"{seconds // HOUR}h"
    return f"{seconds // MINUTE}m" if seconds and not seconds % MINUTE else f"{seconds}s"
