"""Lets Spark find `format("millrace")` by its name: it looks for `DefaultSource` in every top-level module that is called pyspark_*."""

from appliance.pipeline.data_source import MillraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
