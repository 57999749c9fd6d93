"""The installed release: the file VERSION, or the version in pyproject.toml. Weak: a checkout does
not show its commit."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def release_version(root: Path = ROOT) -> str:
    """Return one line; "unknown" if neither file exists."""
    try:
        return (root / "VERSION").read_text().strip()
    except OSError:
        pass
    try:
        lines = (root / "pyproject.toml").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.split('"')[1] for line in lines if line.startswith('version = "')), "unknown")
