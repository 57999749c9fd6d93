"""The exception for bytes that do not follow the batch format.

The caller decides what it means: a refused produce, the end of a recovered log, a disk to scrub.
Weak spot: it carries a text, and no position.
"""

from __future__ import annotations

from appliance.base.errors import MillraceError


class CorruptBatch(MillraceError):
    """A record batch whose header, checksum, compressed stream or records do not hold together."""


class OpenedTooLarge(CorruptBatch):
    """A compressed stream that holds more than its reader was ready to open: a bomb, or an honest batch that is too large."""
