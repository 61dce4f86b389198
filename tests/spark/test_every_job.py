"""A recorded history through every job to its report, in one session."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from history_sinks import finished, lines_in

from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.jobs import JOBS, Work
from loadmanager.pipeline.reporting.job import SECTIONS
from loadmanager.pipeline.running import run_job
from loadmanager.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

Worked = tuple[Store, dict[str, list[str]]]


def test_the_report_has_every_part_and_lacks_no_job(worked: Worked) -> None:
    store, said = worked
    assert said["report"][0].startswith(f"{store.out}/report.html: ")
    text = Path(store.out, "report.html").read_text(encoding="utf-8")
    for part in SECTIONS:
        assert f">{part.title}</h2>" in text, part.title
    assert "loadmanager pipeline " not in text
    assert text.count('class="plot"') >= 14


def test_every_move_is_in_the_summary_with_its_pause(worked: Worked, small_history: Path) -> None:
    store, _ = worked
    lines: list[Mapping[str, Any]] = list(lines_in(*finished(small_history)))
    moves = [one for one in lines if one["kind"] == "move"]
    pauses = [one["pause_s"] or 0.0 for one in lines if one["kind"] == "hand_over"]
    told = store.table("move_summary").agg({"moves": "sum", "pause_s": "sum"}).first()
    assert told is not None
    assert (told["sum(moves)"], told["sum(pause_s)"]) == (len(moves), pytest.approx(sum(pauses)))
    assert sum(pauses) > 0


def test_costs_of_both_classes_are_rated(worked: Worked) -> None:
    quality = worked[0].table("cost_quality").collect()
    assert {row["broker_class"] for row in quality} == {"old", "new"}


@pytest.mark.parametrize("job", [job for job in JOBS if job != "ingest"])
def test_without_history_each_says_so(job: str, spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="loadmanager pipeline ingest"):
        run_job(job, Work(spark=spark, store=Store(spark, str(tmp_path))))
