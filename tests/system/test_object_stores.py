"""Tables in an S3 that others wrote (moto): outages, credentials that expire, a target that is deleted, kills, and a second writer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as fs
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable

from appliance.pipeline.object_stores import for_pyiceberg
from appliance.pipeline.table_query import TableQuery
from lab.running_box import eventually, start_box
from services.tabler.table_run import TableJob
from services.tabler.topic_table import TableConflict, TableTrouble, object_store
from tests.system.test_tables import SECONDS, Stored, create, produce, shown
from tests.unit.pipeline.made_batches import made
from tests.unit.services.tabler.test_table_run import Killed, OneTable

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.deep]
PACKAGES = ("moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5")
"""Not in .venv: botocore wants another python-dateutil than elasticsearch."""


class Store:
    """The server, with a bucket."""

    def __init__(self, python: str, directory: Path) -> None:
        self.flag = directory / "broken"
        self.process = subprocess.Popen([python, "tests/system/s3_server.py", str(self.flag)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        self.properties = {
            "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip
        self.files = fs.S3FileSystem(access_key="key", secret_key="secret", region="us-east-1", endpoint_override=url, allow_bucket_creation=True)
        self.files.create_dir("bucket")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    directory = tmp_path_factory.mktemp("s3")
    python = os.environ.get("MILLRACE_MOTO_PYTHON") or str(directory / "venv/bin/python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    started = Store(python, directory)
    yield started
    started.close()


class StoredTable(OneTable):
    """A topic with one partition, and its table in the store."""

    def __init__(self, path: Path, store: Store, form: str) -> None:
        super().__init__(path, made(0, [b"%d" % number for number in range(10)]), 10)
        self.form, self.store, self.staging = form, store, path / "staging"
        self.place = f"s3://bucket/{path.name}"
        self.properties = {**store.properties, "type": "sql", "uri": f"sqlite:///{path}/catalog.db"}

    def job(self, **changes: Any) -> TableJob:
        job = super().job(**changes)
        order = job.order._replace(file_format=self.form, location=self.place)
        return job._replace(order=order, properties=self.properties, staging=str(self.staging))

    def rows(self) -> list[dict[str, Any]]:
        options = self.store.properties
        if self.form == "delta":
            found = DeltaTable(f"{self.place}/t", storage_options=options).to_pyarrow_table()
        else:
            catalog = SqlCatalog("millrace", uri=self.properties["uri"], **for_pyiceberg(options))
            found = catalog.load_table(("millrace", "t")).scan().to_arrow()
            catalog.close()
        return sorted(found.to_pylist(), key=lambda row: row["offset"])

    def data(self) -> set[str]:
        found = self.store.files.get_file_info(fs.FileSelector(self.place.removeprefix("s3://"), recursive=True))
        return {each.base_name for each in found if each.base_name.endswith(".parquet")}

    def staged(self) -> list[str]:
        return os.listdir(self.staging) if self.staging.exists() else []


def killed_at(step: str) -> Callable[[str], None]:
    """End the process before this step."""

    def kill(name: str) -> None:
        if name == step:
            raise Killed

    return kill


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> StoredTable:
    return StoredTable(tmp_path, store, request.param)


def test_a_store_that_answers_503_and_credentials_that_expire_are_said_and_nothing_is_lost(table: StoredTable, store: Store) -> None:
    table.expected_id = table.run().table_id
    table.grow(made(10, [b"a"]), 11)

    def breaks(at: str) -> Any:
        return lambda name: store.flag.touch() if name == at else None

    for at in ("write", "rename", "commit"):
        with pytest.raises(TableTrouble, match=r"(?i)could not .* s3://bucket/.*(slow|503|retries)") as failed:
            table.run(step=breaks(at))
        assert "\x1b" not in str(failed.value) and table.staged() == [], "no colours, no files left"
        with pytest.raises(TableTrouble):
            table.run()
        store.flag.unlink()
    table.properties["AWS_ACCESS_KEY_ID"] = "expired"
    with pytest.raises(TableTrouble, match="check the credentials in"):
        table.run()
    table.properties["AWS_ACCESS_KEY_ID"] = "key"
    assert table.run().rows == 1 and table.offsets() == list(range(11)) and table.staged() == []


@pytest.mark.parametrize("dies_at", ["create", "rename", "commit", "committed"])
def test_a_kill_at_any_step_leaves_each_record_once(table: StoredTable, dies_at: str) -> None:
    with pytest.raises(Killed):
        table.run(step=killed_at(dies_at))
    table.grow(made(10, [b"more"]), 11)
    table.run()
    assert table.offsets() == list(range(11)) and table.staged() == [], "what the dead one staged is gone"


def test_two_writers_never_write_twice_and_the_loser_removes_its_file(table: StoredTable) -> None:
    table.run()
    table.grow(made(10, [b"a"]), 11)
    with pytest.raises(TableConflict, match="another writer moved the offsets"):
        table.run(step=lambda name: table.run() and None if name == "commit" else None)
    assert table.offsets() == list(range(11)) and len(table.data()) == 2


def test_a_query_reads_it_with_the_properties_of_its_environment(table: StoredTable, monkeypatch: pytest.MonkeyPatch) -> None:
    result = table.run()
    for name, value in table.store.properties.items():
        monkeypatch.setenv(name, value)
    query = TableQuery({"t": result.metadata[0] or f"{table.place}/t"}, 256 << 20, 2)
    assert list(query.start('select count(*), max("offset") from t where "offset" > 3')[1]) == [[("6", "9")]]


def test_a_box_that_knows_another_catalog_leaves_the_table_alone(tmp_path: Path, store: Store) -> None:
    table = StoredTable(tmp_path, store, "iceberg")
    table.run()
    table.properties["uri"] += ".other"
    with pytest.raises(TableTrouble, match="all need one catalog"):
        table.run()
    (tmp_path / "created").mkdir()
    created = StoredTable(tmp_path / "created", store, "iceberg")
    with pytest.raises(Killed):
        created.run(step=killed_at("commit"))
    created.properties["uri"] += ".other"
    with pytest.raises(TableTrouble, match="all need one catalog"):
        created.run(writer="8-1")


def test_a_deleted_target_is_said_and_files_are_merged(table: StoredTable, store: Store) -> None:
    table.expected_id = table.run(compaction_commits=4).table_id
    merged = 0
    for offset in range(10, 16):
        table.grow(made(offset, [b"a"]), offset + 1)
        merged += table.run(compaction_commits=4).compacted
    assert table.offsets() == list(range(16)) and merged >= 4
    object_store(table.properties).delete_dir(f"{table.place.removeprefix('s3://')}/t")
    table.grow(made(16, [b"a"]), 17)
    with pytest.raises(TableTrouble, match="is gone; bring it back"):
        table.run()
    assert table.data() == set()


def test_a_box_says_an_outage_goes_on_by_itself_and_loses_nothing(tmp_path: Path, store: Store) -> None:
    properties = tmp_path / "tables.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in store.properties.items()))
    properties.chmod(0o600)
    settings = {"tables.locations": "s3://bucket/boxes", "tables.properties.file": str(properties), "num.partitions": 2}
    box = start_box(tmp_path / "box", disks=1, settings=settings)
    stored: dict[str, Stored] = {"delta": {}, "iceberg": {}}
    try:
        for form in ("delta", "iceberg"):
            create(box, form, "s3://bucket/boxes", form=form)
            produce(box, form, [b"%d" % number for number in range(100)], stored[form])
            eventually(lambda form=form: shown(box, form).get("records") == 100, "its records are in the table", SECONDS)
        store.flag.touch()
        for form in ("delta", "iceberg"):
            produce(box, form, [b"more"] * 10, stored[form])
            eventually(lambda form=form: "s3://bucket/boxes" in shown(box, form).get("problem", ""), "the outage is said", SECONDS)
            assert shown(box, form)["failing"] == 1 and shown(box, form)["lag"] == 10
        box.await_restart("tabler", box.kill("tabler"), SECONDS)
        store.flag.unlink()
        for form in ("delta", "iceberg"):
            eventually(lambda form=form: (each := shown(box, form)).get("lag") == 0 and not each["problem"], "it goes on", SECONDS)
            assert shown(box, form)["lost_records"] == 0
        delta = DeltaTable("s3://bucket/boxes/delta", storage_options=store.properties).to_pyarrow_table()
        iceberg = StaticTable.from_metadata(shown(box, "iceberg")["metadata"][0], for_pyiceberg(store.properties)).scan().to_arrow()
        for form, found in (("delta", delta), ("iceberg", iceberg)):
            values = sorted((row["partition"], row["offset"], row["value"]) for row in found.to_pylist())
            assert values == sorted((*place, value) for place, value in stored[form].items())
    finally:
        store.flag.unlink(missing_ok=True)
        assert box.stop() == 0
