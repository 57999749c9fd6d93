"""File calls that fail on order, on top of whatever `file_io` calls at that moment."""

from __future__ import annotations

import errno
import os
from types import TracebackType
from typing import Any

from appliance.storage import file_io
from tests.support.volatile_files import VolatileFiles


class FailingCalls:
    """Fails the n-th file call, alone or with all that follow, as if the process were cut off there. A failing write leaves half of its bytes, and a
    sync that fails is reported to `volatile`."""

    def __init__(self, fail_at: int, forever: bool, error: int = errno.EIO, volatile: VolatileFiles | None = None) -> None:
        self.calls = 0
        self.failed: list[str] = []
        self._fail_at, self._forever, self._error = fail_at, forever, error
        self._volatile = volatile
        self._originals: dict[str, Any] = {}

    def __enter__(self) -> FailingCalls:
        self._originals = {name: getattr(file_io, name) for name in file_io.CALLS}
        for name in file_io.CALLS:
            setattr(file_io, name, self._wrapped(name))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name, function in self._originals.items():
            setattr(file_io, name, function)

    def _wrapped(self, name: str) -> Any:
        function = self._originals[name]

        def call(*arguments: Any, **more: Any) -> Any:
            self.calls += 1
            if self.calls < self._fail_at or (self.calls > self._fail_at and not self._forever):
                return function(*arguments, **more)
            self.failed.append(name)
            if name == "pwritev":
                fd, buffers, position = arguments
                content = b"".join(buffers)
                function(fd, (content[: len(content) // 2],), position)
            elif name == "close":  # Linux closes the descriptor even if it reports an error
                function(*arguments)
            elif name in ("fsync", "fdatasync") and self._volatile is not None:
                self._volatile.sync_failed(arguments[0])
            raise OSError(self._error, os.strerror(self._error))

        return call
