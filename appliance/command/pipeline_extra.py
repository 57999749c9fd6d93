"""What commands that run Spark have in common: words for what is not installed, and NAME=VALUE options. Imports nothing of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from appliance.base.errors import ConfigurationProblems
from appliance.command.failures import UsageProblem

_EXTRAS = {"deltalake": "delta", "duckdb": "query", "psycopg": "postgresql"} | dict.fromkeys(("pyarrow", "numpy", "pyspark", "pandas", "py4j"), "pipeline")
"""Which extra of pyproject.toml brings what."""


@contextmanager
def pipeline_extra() -> Iterator[None]:
    """Where the pipeline's packages are not installed, say how they are."""
    try:
        yield
    except ImportError as error:
        extra = _EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        raise ConfigurationProblems([f"{error.name} is not installed here: pip install 'millrace[{extra}]', or sudo ./install.sh --pipeline"]) from error


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
