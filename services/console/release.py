"""Which release this is: the file VERSION of an installed one, else the version in pyproject.toml. Weak spot: a checkout does not say its commit."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def release_version(root: Path = ROOT) -> str:
    """One line; "unknown" where neither file is."""
    try:
        return (root / "VERSION").read_text().strip()
    except OSError:
        pass
    try:
        lines = (root / "pyproject.toml").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.split('"')[1] for line in lines if line.startswith('version = "')), "unknown")
