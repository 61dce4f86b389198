"""The history that `loadmanager attach` writes of Pulsar's own brokers, as tables."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from fake_pulsar import FakeBroker, FakePulsar, running
from history_sinks import finished, lines_in

from loadmanager.cli import main
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace
from loadmanager.pipeline.ingest import job as ingest
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def write_attached_history(folder: Path) -> None:
    topics = [f"persistent://bench/skew/topic-{number}" for number in range(64)]
    first = FakeBroker(
        owned=list(Boundaries.even(Namespace("bench/skew"), 8).bundles),
        topics={topic: [0.0, 0.0, 0.0, 0.0] for topic in topics},
        grows=dict.fromkeys(topics, (50.0, 100.0, 5_000.0, 10_000.0)),
    )
    with running(FakePulsar([first, FakeBroker(), FakeBroker()])) as pulsar:
        found = CliRunner().invoke(
            main,
            [
                *("attach", "--pulsar", pulsar.url, "--interval", "0.3", "--balance", "--once"),
                *("--state-dir", str(folder / "state"), "--history", str(folder / "history")),
            ],
        )
    assert found.exit_code == 0, found.output


def test_each_of_its_lines_is_a_row(spark: "SparkSession", tmp_path: Path) -> None:
    write_attached_history(tmp_path)
    lines = list(lines_in(*finished(tmp_path / "history")))
    store = Store(spark, str(tmp_path / "tables"))
    work = Work(spark=spark, store=store, history=str(tmp_path / "history"))
    ingest.run(work)
    for table, kind in (
        ("broker_load", "report"),
        ("rounds", "round"),
        ("moves", "move"),
        ("tasks", "task"),
        ("hand_overs", "hand_over"),
    ):
        told = {one["seq"] for one in lines if one["kind"] == kind}
        assert told, kind
        assert {row["seq"] for row in store.table(table).collect()} == told, table
