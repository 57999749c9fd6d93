"""Which modules may be compiled, and whether this process uses the compiled ones.

`install/compile_modules.py` compiles MODULES with mypyc into `compiled` in the virtual environment, with
a list of the sources and their hashes. `services/__init__.py` calls `use_compiled_modules` before a
process imports anything else: it takes all of them, or none if a source has changed, the Python is
another one, or MILLRACE_PURE is set. The source tree stays as it is. Weak: the compiled modules show
no frames to profilers and in the stacks that SIGUSR1 prints.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from types import ModuleType

PURE_VARIABLE = "MILLRACE_PURE"
"""Environment variable: "1" keeps to the sources, "" and "0" do not."""
COMPILED_GAUGE = "runtime.compiled"
"""Counter of a process: 1 if it uses the compiled modules."""
GROUP = "millrace"
LIBRARY = f"{GROUP}__mypyc"
"""The module that has the code of all."""
SOURCES_FILE = "sources"
SUFFIX = EXTENSION_SUFFIXES[0]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

MODULES = (
    "appliance.ipc.log_writer_proxy",
    "appliance.ipc.proxies",
    "appliance.protocol.framing",
    "appliance.protocol.produce",
    "appliance.protocol.wire",
    "appliance.records.batch",
    "appliance.security.transport",
    "appliance.shm.arena",
    "appliance.shm.counters",
    "appliance.shm.doorbell",
    "appliance.shm.histogram",
    "appliance.shm.ring",
    "appliance.storage.append_plan",
    "services.acceptor.authorization.authorized_produce",
    "services.acceptor.connection",
    "services.acceptor.delayed",
    "services.acceptor.handlers.produce",
    "services.acceptor.produce.produce_answers",
    "services.acceptor.produce.produce_checks",
    "services.acceptor.produce.refused_sequences",
    "services.acceptor.receiver",
    "services.acceptor.request_memory",
    "services.log_writer.completions",
    "services.log_writer.log_writer_appends",
)
"""What a small produce passes through, and what inherits from that: a class of a compiled module has
no subclass in others."""


class CompiledModules:
    """Finds the compiled modules of one directory (an entry of `sys.meta_path`)."""

    def __init__(self, directory: str) -> None:
        self._files = {name: file_of(directory, name) for name in (LIBRARY, *MODULES)}

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None) -> ModuleSpec | None:
        file = self._files.get(name)
        return None if file is None else importlib.util.spec_from_file_location(name, file, loader=ExtensionFileLoader(name, file))


def file_of(directory: str, module: str) -> str:
    """Return the file of a compiled module."""
    return f"{directory}/{module.replace('.', '/')}{SUFFIX}"


def directory_of(prefix: str) -> str:
    """Return where the compiled modules of a virtual environment are."""
    return os.path.join(prefix, "compiled")


def sources_text(root: str, sources: Iterable[str]) -> str:
    """Return the list of sources (paths below `root`) with their hashes, for this Python. Raises
    OSError."""
    lines = [f"{SUFFIX} {'.'.join(map(str, sys.version_info[:3]))} {' '.join(MODULES)}"]
    for source in sources:
        with open(os.path.join(root, source), "rb") as file:
            lines.append(f"{importlib.util.source_hash(file.read()).hex()} {source}")
    return "\n".join(lines) + "\n"


def fits(directory: str, root: str = ROOT) -> bool:
    """Return whether the modules in `directory` were compiled from the sources below `root`, for this
    Python."""
    try:
        with open(os.path.join(directory, SOURCES_FILE), encoding="utf-8") as file:
            found = file.read()
        return found == sources_text(root, [line.partition(" ")[2] for line in found.splitlines()[1:]])
    except (OSError, ValueError):
        return False


def use_compiled_modules() -> None:
    """Have the next imports of this process find the compiled modules, if they fit.

    Does nothing if one of MODULES was imported already: compiled and pure ones do not mix.
    """
    if os.environ.get(PURE_VARIABLE, "0") not in ("", "0") or is_compiled() or not sys.modules.keys().isdisjoint(MODULES):
        return
    directory = directory_of(sys.prefix)
    if fits(directory):
        sys.meta_path.insert(0, CompiledModules(directory))


def is_compiled() -> bool:
    """Return whether this process uses the compiled modules."""
    return any(isinstance(finder, CompiledModules) for finder in sys.meta_path)
