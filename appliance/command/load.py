"""`millrace load`: topics into Parquet, into a Delta table, or into PostgreSQL, each record exactly once, by a Spark job.

Killed anywhere and started again it goes on where it was. Everything of the pipeline (Spark, Arrow) is imported when it is needed, and only here.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from appliance.command.failures import UsageProblem
from appliance.command.kafka import require_topic_name, spark_options
from appliance.command.load_call import DATABASE, LoadCall
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, argument, option
from appliance.command.pipeline_extra import pipeline_extra, spark_settings

if TYPE_CHECKING:
    from appliance.pipeline.table_kind import TableKind


class Decoding(StrEnum):
    """What a record's value is."""

    RAW = "raw"
    SYSLOG = "syslog"
    JSON = "json"


class FileFormat(StrEnum):
    PARQUET = "parquet"
    DELTA = "delta"


class PartedBy(StrEnum):
    """Whose date and hour."""

    RECORD = "record"
    ARRIVAL = "arrival"


def load(
    topics: Annotated[list[str], argument("TOPIC", "The topics.")],
    to: Annotated[str, option("--to", metavar="DIR", help="A directory (local or shared by POSIX), or postgresql://USER@HOST/DATABASE[?table=NAME].")],
    decode: Annotated[Decoding | None, option("--decode", help="What values are. [default: raw, or as the topic was loaded before]")] = None,
    schema: Annotated[
        str | None, option("--schema", metavar="FIELDS", help="Fields of JSON records: 'host string, latency double'; @FILE reads it. [default: from a sample]")
    ] = None,
    file_format: Annotated[
        FileFormat | None, option("--format", help="Plain Parquet files, or a Delta table (one topic a directory). [default: parquet, or as before]")
    ] = None,
    by: Annotated[PartedBy | None, option("--by", help="Date and hour of the record, or of its arrival. [default: record, or as before]")] = None,
    headers: Annotated[bool | None, option("--headers/--no-headers", help="Keep records' headers in a column.")] = None,
    master: Annotated[str | None, option("--master", metavar="URL", help="A Spark cluster. [default: this machine]")] = None,
    settings: Annotated[list[str] | None, option("--spark", metavar="NAME=VALUE", help="A setting of Spark; may be given several times.")] = None,
    dry_run: Annotated[bool, option("--dry-run", help="Show what would be loaded; change nothing, start no Spark.")] = False,
    lag: Annotated[bool, option("--lag", help="Only say how far each partition is loaded.")] = False,
    accept_loss: Annotated[bool, option("--accept-loss", help="Go on without records that were deleted before they were loaded.")] = False,
    skip_corrupt: Annotated[bool, option("--skip-corrupt", help="Go on behind damaged batches.")] = False,
    commit_records: Annotated[int | None, option("--commit-records", metavar="N", min=1, help="Records in one commit, at most. [default: 16 million]")] = None,
    task_records: Annotated[int | None, option("--task-records", metavar="N", min=1, help="Records in one file, at most. [default: 500,000]")] = None,
    as_json: Annotated[bool, option("--json", help="The report as JSON.")] = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Load topics into a warehouse, each record once; run again it goes on where it was."""
    for name in topics:
        require_topic_name(name)
    with pipeline_extra(fetches=not (dry_run or lag)):
        from appliance.pipeline.cluster_access import access_from
        from appliance.pipeline.load_run import LoadOrder
        from appliance.pipeline.load_survey import LoadRequest
        from appliance.pipeline.loader import LoadRules

        destination, database, fields = _understood(to, schema)
        if database and file_format is FileFormat.DELTA:
            raise UsageProblem("--format is for directories")
        there = None if by and (database or file_format) else _kind_there(destination, database, topics[0])
        parted_by = by or (there.partitioned_by if there else PartedBy.RECORD)
        form = DATABASE if database else file_format or (there.file_format if there else FileFormat.PARQUET)
        rules = LoadRules(accept_loss, skip_corrupt, by_arrival=parted_by == PartedBy.ARRIVAL)
        rules = rules._replace(commit_records=commit_records or rules.commit_records, task_records=task_records or rules.task_records)
        chosen = {"kafka.isolation.level": "read_committed", "kafka.client.id": "millrace-load"}
        access = access_from({**spark_options(bootstrap, data, config), **chosen})._replace(data_directory=None)
        order = LoadOrder(list(dict.fromkeys(topics)), destination, access, LoadRequest(decode, fields, headers), rules, form)
        run = LoadCall(order, master, spark_settings(settings or []), as_json)
        if dry_run or lag:
            run.report(plan=dry_run)
        else:
            run.load()


def _kind_there(destination: str, database: bool, topic: str) -> TableKind | None:
    """What was loaded before; None where nothing was."""
    if database:
        from appliance.pipeline.postgres_table import PostgresTable, table_address

        with PostgresTable(table_address(destination, topic)) as table:
            return table.kind()
    from appliance.pipeline.load_directory import LoadDirectory

    return LoadDirectory(destination, "look").look()


def _understood(to: str, schema: str | None) -> tuple[str, bool, Any]:
    """Where to, whether that is a database, the fields. Raises UsageProblem for what cannot be meant."""
    from appliance.pipeline.json_fields import parse_fields
    from appliance.pipeline.load_survey import parse_destination
    from appliance.pipeline.problems import LoadProblem

    try:
        text = Path(schema[1:]).read_text() if schema and schema.startswith("@") else schema
        destination = parse_destination(to)
        fields = None if text is None else parse_fields(text)
        return destination.directory or destination.database or "", destination.directory is None, fields
    except LoadProblem as error:
        raise UsageProblem(str(error)) from error
    except OSError as error:
        raise UsageProblem(f"--schema {schema}: {(error.strerror or str(error)).lower()}") from error
