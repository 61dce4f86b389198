"""Derived tables are replaced together: a reader has the former ones or the new ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from loadmanager.pipeline.contract import Table
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def table(name: str, *more: StructField, by: tuple[str, ...] = ()) -> Table:
    schema = StructType([StructField("name", StringType()), *more])
    return Table(name=name, job="sums", meaning="", schema=schema, by=by)


FEW = table("few")
DAYS = table("days", StructField("many", LongType()), StructField("day", DateType()), by=("day",))


class Dying(Store):
    def replace(self, job: str, frames: Mapping[Table, Any], facts: Mapping[str, Any]) -> None:
        write = self.files.write

        def die(where: str, content: str | bytes) -> None:
            write(f"{where}.draft", content)
            raise KeyboardInterrupt

        self.files.write = die  # type: ignore[method-assign] # the moment before it counts
        super().replace(job, frames, facts)


def frames(spark: "SparkSession", *names: str) -> dict[Table, DataFrame]:
    few = spark.createDataFrame([(name,) for name in names], "name string")
    days = few.selectExpr("name", "3 as many", "date'2026-01-05' as day", "'x' as more")
    return {FEW: few, DAYS: days}


def names_of(store: Store) -> list[str]:
    return sorted(row["name"] for row in store.table("few").collect())


def test_tables_of_a_job_have_its_columns_and_facts(spark: "SparkSession", tmp_path: Path) -> None:
    store = Store(spark, f"{tmp_path}/out/")
    assert store.facts("sums") is None
    store.replace("sums", frames(spark, "a"), {"until": 7})
    assert store.facts("sums") == {"until": 7}
    assert store.table("days").schema == DAYS.schema
    (row,) = store.table("days").collect()
    assert (row["name"], row["many"], str(row["day"])) == ("a", 3, "2026-01-05")


def test_a_new_version_takes_the_place_of_the_former_one_which_can_be_read_to_its_end(
    spark: "SparkSession", tmp_path: Path
) -> None:
    store = Store(spark, str(tmp_path))
    store.replace("sums", frames(spark, "a"), {})
    began = store.table("few")
    store.replace("sums", {FEW: frames(spark, "b", "c")[FEW]}, {})
    assert names_of(store) == ["b", "c"]
    assert [row["name"] for row in began.collect()] == ["a"]
    with pytest.raises(PipelineError, match="there is no table days yet"):
        store.table("days")
    # Those before the former one are removed, also of tables that are made no more.
    store.replace("sums", {FEW: store.table("few").union(frames(spark, "d")[FEW])}, {})
    assert names_of(store) == ["b", "c", "d"], "made of the one before it"
    kept = sorted(one.name for one in tmp_path.glob("few/version=*"))
    assert kept == ["version=000002", "version=000003"]
    assert list(tmp_path.glob("days/version=*")) == []
    manifests = sorted(one.name for one in tmp_path.glob("jobs/sums/*.json"))
    assert manifests == ["000002.json", "000003.json"]


def test_the_manifest_of_a_batch_is_read_once_and_its_files_are_not_kept(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(spark, str(tmp_path))
    for batch in (1, 2):
        store.commit(batch, {"files": {f"file {batch}": [batch]}, "tables": [], "lines": {}})
    found = [(one.number, dict(one.manifest)) for one in store.batches()]
    assert found == [(batch, {"tables": [], "lines": {}}) for batch in (1, 2)]
    assert store.files_read() == {"file 1": [1], "file 2": [2]}
    store.commit(3, {"files": {}, "tables": [], "lines": {}})
    noted: list[str] = []
    read = store.files.read

    def noting(where: str) -> str:
        noted.append(where)
        return read(where)

    monkeypatch.setattr(store.files, "read", noting)
    assert [one.number for one in store.batches()] == [1, 2, 3]
    assert [Path(path).name for path in noted] == ["000003.json"]


def test_a_job_that_dies_leaves_the_former_version(spark: "SparkSession", tmp_path: Path) -> None:
    store = Store(spark, str(tmp_path))
    store.replace("sums", frames(spark, "a"), {"run": 1})
    with pytest.raises(KeyboardInterrupt):
        Dying(spark, str(tmp_path)).replace("sums", frames(spark, "b"), {"run": 2})
    assert names_of(store) == ["a"]
    assert store.facts("sums") == {"run": 1}
    store.replace("sums", frames(spark, "c"), {"run": 3})
    assert names_of(store) == ["c"]
    assert len(list(tmp_path.glob("few/version=*"))) == 2


def test_what_was_never_made_names_the_job_that_does(spark: "SparkSession", tmp_path: Path) -> None:
    store = Store(spark, str(tmp_path))
    with pytest.raises(PipelineError, match="`loadmanager pipeline rollup` to be run first"):
        store.table("broker_minutes")
    with pytest.raises(PipelineError, match="no table gossip yet; expected the job to be run"):
        store.table("gossip")
    with pytest.raises(PipelineError, match="column many, day is missing; expected name, many"):
        store.replace("sums", {DAYS: frames(spark, "a")[FEW]}, {})


def test_a_damaged_manifest_is_told_with_its_place(spark: "SparkSession", tmp_path: Path) -> None:
    store = Store(spark, str(tmp_path))
    store.replace("sums", frames(spark, "a"), {})
    (manifest,) = tmp_path.glob("jobs/sums/*.json")
    assert json.loads(manifest.read_text())["tables"].keys() == {"few", "days"}
    manifest.write_text("{")
    with pytest.raises(PipelineError, match=r"000001.json: .*ChecksumException"):
        store.facts("sums")
    (manifest.parent / f".{manifest.name}.crc").unlink()
    with pytest.raises(PipelineError, match=r"000001.json: .* expected a manifest in JSON"):
        store.facts("sums")


def test_small_files_are_written_whole_and_listed(spark: "SparkSession", tmp_path: Path) -> None:
    files = Store(spark, str(tmp_path)).files
    place = f"{tmp_path}/a [b] {{c}}; d/model.json"
    files.write(place, "first")
    files.write(place, "größer".encode())
    assert files.read(place) == "größer"
    assert files.read_bytes(place) == "größer".encode()
    (tmp_path / "a [b] {c}; d" / "folder").mkdir()
    told = files.listed(f"{tmp_path}/a [b] {{c}}; d")
    assert [(one.name, one.is_folder) for one in told] == [("folder", True), ("model.json", False)]
    assert told[1].size_bytes == len("größer".encode())
    assert told[1].changed_ms == Path(place).stat().st_mtime_ns // 1_000_000
    assert files.names(f"{tmp_path}/nowhere") == []
    files.delete(place)
    assert not files.exists(place)
    with pytest.raises(PipelineError, match=r"model.json: .*FileNotFound"):
        files.read(place)
