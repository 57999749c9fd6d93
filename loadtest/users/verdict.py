"""What a run comes to, and its exit code. Pure."""

from __future__ import annotations

from typing import NamedTuple

from loadtest.users.reconciliation import Reconciliation

EXIT_MISMATCH, EXIT_NOT_STARTED, EXIT_LIMIT = 1, 2, 3


class Verdict(NamedTuple):
    """What the run comes to. `troubles` say why nothing could be compared, or not all."""

    reconciliation: Reconciliation | None
    limits: list[str]
    troubles: list[str]

    @property
    def exit_code(self) -> int:
        if self.troubles or self.reconciliation is None or not self.reconciliation.balances:
            return EXIT_MISMATCH
        return EXIT_LIMIT if self.limits else 0
