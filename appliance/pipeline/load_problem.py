"""What the user of `millrace load` must hear: the text says what, where, and what to do. Values only."""

from __future__ import annotations

from appliance.base.errors import MillraceError


class LoadProblem(MillraceError):
    """The load cannot be done, or not so."""


class ConcurrentLoader(LoadProblem):
    """Another loader is at work in the same place; what this one did is not part of the result."""


class DamagedTable(LoadProblem):
    """The books of a destination say what is not so."""
