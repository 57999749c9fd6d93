"""The Spark data source `format("millrace")`. Options are checked here, before Spark plans; other modules read and write.

Runs on the driver, in planning processes of Spark. Weak spot: Spark decides later between batch and stream, so an option
that is valid in one of them only is refused at the first action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from appliance.pipeline.problems import SourceProblem

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class MillraceDataSource(DataSource):
    """Records of topics, with the columns and options of Spark's Kafka connector."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return "millrace"

    def schema(self) -> str:
        from appliance.pipeline.record_schema import ALL_COLUMNS, COLUMNS, spark_schema
        from appliance.pipeline.source_options import read_options

        options = read_options(self.options, is_stream=None)
        return spark_schema(ALL_COLUMNS if options.include_headers else COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        from appliance.pipeline.batch_reader import MillraceBatchReader
        from appliance.pipeline.source_options import read_options

        return MillraceBatchReader(read_options(self.options, is_stream=False), checked_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from appliance.pipeline.source_options import read_options
        from appliance.pipeline.stream_reader import MillraceStreamReader

        return MillraceStreamReader(read_options(self.options, is_stream=True), checked_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from appliance.pipeline.record_sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from appliance.pipeline.record_sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def checked_columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns of a user's schema: any of ours, in any order, of our types. Raises `SourceProblem`."""
    from appliance.pipeline.record_schema import ALL_COLUMNS, SPARK_TYPES

    for field in schema.fields:
        if field.name not in SPARK_TYPES:
            raise SourceProblem(f"there is no column '{field.name}'; the records of a topic have {', '.join(ALL_COLUMNS)}")
        if (given := field.dataType.simpleString()) != SPARK_TYPES[field.name]:
            raise SourceProblem(f"column '{field.name}' is {SPARK_TYPES[field.name]}, not {given}; cast it after reading")
    return tuple(schema.fieldNames())
