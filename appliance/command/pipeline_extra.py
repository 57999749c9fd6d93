"""What commands that run Spark have in common: words for what is not installed, and NAME=VALUE options. Imports nothing of the pipeline."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

from appliance.base.errors import ConfigurationProblems
from appliance.command.failures import UsageProblem
from appliance.command.output import say

_EXTRAS = {"deltalake": "delta", "duckdb": "query", "pyiceberg": "iceberg", "sqlalchemy": "iceberg", "psycopg": "postgresql"} | dict.fromkeys(
    ("pyarrow", "numpy", "pyspark", "pandas", "py4j"), "pipeline"
)
"""Which extra of pyproject.toml brings what."""


_SPARK = ("pyspark", "pyarrow", "pandas")


@contextmanager
def pipeline_extra(fetches: bool = True) -> Iterator[None]:
    """Where the pipeline's packages are not installed, fetch them (in a checkout that `./install.sh run` serves from) or say how they are.

    `fetches` False: a command that changes nothing only says it.
    """
    if fetches and (missing := [name for name in _SPARK if find_spec(name) is None]) and (installer := checkout_installer(sys.prefix)):
        import subprocess  # only here: every command imports this module

        say(f"{' and '.join(missing)}, which Spark jobs need, are fetched now, once, about 600 MB, into {sys.prefix} ({installer} pipeline):")
        subprocess.run([installer, "pipeline"], stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
        invalidate_caches()
    try:
        yield
    except ImportError as error:
        extra = _EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        raise ConfigurationProblems(
            [f"{error.name} is not installed here: ./install.sh pipeline in a checkout, sudo ./install.sh --pipeline, or pip install 'millrace[{extra}]'"]
        ) from error


def checkout_installer(prefix: str) -> str | None:
    """Return the install.sh that made the virtual environment `prefix` for a checkout; None for a release or a package."""
    directory = Path(prefix).parent
    installer = directory / "install.sh"
    is_checkout = Path(prefix).name == ".venv" and os.access(installer, os.X_OK) and not (directory / "VERSION").exists()
    return str(installer) if is_checkout else None


def named_values(option: str, texts: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` each. Raises UsageProblem."""
    values = {}
    for text in texts:
        name, found, value = text.partition("=")
        if not found or not name:
            raise UsageProblem(f"{option} {text}: write NAME=VALUE")
        values[name] = value
    return values


def spark_settings(texts: Sequence[str]) -> dict[str, str]:
    """Of `--spark`; Spark's own names all begin with `spark.`. Raises UsageProblem."""
    for text in texts:
        if not text.startswith("spark.") or "=" not in text:
            raise UsageProblem(f"--spark {text}: write --spark spark.NAME=VALUE")
    return named_values("--spark", texts)
