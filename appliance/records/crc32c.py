"""CRC-32C (Castagnoli) of batches, producer snapshots and the metadata image.

The package `crc32c` computes it in hardware and takes memoryviews without copying. Its `__init__`
imports argparse and importlib.metadata for a command line that is not used here: 7 MB in every
process. So only its extension module is loaded. Weak spot: this relies on the name of that module;
if it changes, the plain import below works and costs only memory.
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
