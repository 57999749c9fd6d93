"""CRC-32C (Castagnoli), as batches, producer snapshots and the metadata image use it.

The package `crc32c` computes it in hardware and takes memoryviews without copying, but its `__init__` imports argparse and
importlib.metadata: 7 MB in every process, for a command line that nobody here calls. So its extension module is loaded alone.
Weak spot: this relies on the name of that extension; if it ever changes, the plain import below serves and only memory is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, PathFinder
from typing import Any


def _load() -> Callable[..., int]:
    package = PathFinder.find_spec("crc32c")
    if package is not None and package.submodule_search_locations:
        spec = PathFinder.find_spec("_crc32c", list(package.submodule_search_locations))
        if spec is not None and isinstance(spec.loader, ExtensionFileLoader):
            extension: Any = spec.loader.create_module(spec)
            spec.loader.exec_module(extension)
            function: Callable[..., int] = extension.crc32c
            return function
    from crc32c import crc32c as packaged

    return packaged


crc32c = _load()
"""crc32c(data, value=0) → unsigned 32-bit; `value` continues an earlier result."""
