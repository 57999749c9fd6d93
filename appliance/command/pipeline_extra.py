"""What commands that run Spark have in common: words for what is not installed, and NAME=VALUE options. Imports nothing of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from appliance.base.errors import ConfigurationProblems
from appliance.command.failures import UsageProblem

_PACKAGES = ("pyarrow", "numpy", "pyspark", "pandas", "py4j")


@contextmanager
def pipeline_extra() -> Iterator[None]:
    """Where the pipeline's packages are not installed, say how they are."""
    try:
        yield
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] not in _PACKAGES:
            raise
        raise ConfigurationProblems([f"{error.name} is not installed here: pip install 'millrace[pipeline]', or sudo ./install.sh --pipeline"]) from error


def named_values(option: str, texts: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` each. Raises UsageProblem."""
    values = {}
    for text in texts:
        name, found, value = text.partition("=")
        if not found or not name:
            raise UsageProblem(f"{option} {text}: write NAME=VALUE")
        values[name] = value
    return values
