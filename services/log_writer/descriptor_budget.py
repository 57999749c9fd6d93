"""How many descriptors of a log-writer belong to logs, and how many are reserved.

An open log has three. Flush rounds duplicate those of a slice of logs, checkpoints need one, each source
two; so logs stop short of the process's limit. The kernel assigns the lowest free number, so a log whose
descriptors are above the line is one too many. Weak spot: segments that roll faster than they are
flushed stay open and use the reserve.
"""

from __future__ import annotations

import resource

DESCRIPTORS_OF_A_LOG = 3
_KEPT_BACK_MAX = 256
_UNLIMITED = 1 << 30


class DescriptorBudget:
    """The limit as it is when asked."""

    @property
    def limit(self) -> int:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return soft if soft >= 0 else _UNLIMITED

    @property
    def for_logs(self) -> int:
        """Numbers below this one may be a log's."""
        limit = self.limit
        return limit - min(_KEPT_BACK_MAX, limit // 4)

    @property
    def logs_max(self) -> int:
        """About how many logs can be open."""
        return self.for_logs // DESCRIPTORS_OF_A_LOG

    @property
    def for_flush_round(self) -> int:
        """How many a slice of a flush round may take: three quarters of what is kept back."""
        return (self.limit - self.for_logs) * 3 // 4
