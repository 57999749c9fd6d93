"""Compiles a generator written in C, and finds librdkafka, which comes with confluent-kafka.

Owned by the code that starts the generator; the program is made anew in the box's directory for each run (0.2 s). Weak spot: librdkafka is the one of the
wheel, found by its file name; its headers do not come along, so `librdkafka_client.c` declares what it calls.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

from loadtest.benchmark import BenchmarkFailed

HERE = Path(__file__).parent
COMPILERS = ("gcc", "cc", "clang")


def find_compiler() -> str | None:
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def compile_generator(name: str, directory: Path) -> Path:
    """The program of `NAME.c`, in `directory`. Raises BenchmarkFailed with the compiler's words."""
    compiler, program = find_compiler(), directory / name
    if compiler is None:
        raise BenchmarkFailed("there is no C compiler")
    command = [compiler, "-O2", "-Wall", "-Wextra", "-o", str(program), str(HERE / f"{name}.c"), "-ldl"]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    if compiled.returncode:
        raise BenchmarkFailed(f"{compiler} could not compile {name}.c\n{compiled.stderr}")
    return program


def find_librdkafka() -> Path | None:
    """The shared library inside confluent-kafka's wheel."""
    package = importlib.util.find_spec("confluent_kafka")
    if package is None or package.origin is None:
        return None
    return next(iter(sorted((Path(package.origin).parent.parent / "confluent_kafka.libs").glob("librdkafka-*.so*"))), None)


def missing_for_c() -> str | None:
    return None if find_compiler() else f"its generator is written in C and there is no compiler ({', '.join(COMPILERS)})"


def missing_for_librdkafka() -> str | None:
    return missing_for_c() or (None if find_librdkafka() else "confluent-kafka is not installed; `./install.sh test` installs it")
