"""Cutting history into segments, and segments into tasks."""

import pytest

from loadmanager.core.history.schema import KINDS, Stream
from loadmanager.pipeline.replay.job import EVENT_TABLES
from loadmanager.pipeline.replay.spark_tasks import TaskSplit, task_split


def test_every_line_of_leaders_counts_or_each_would_be_a_gap() -> None:
    of_leaders = {name for name, kind in KINDS.items() if kind.stream is Stream.ROUNDS}
    counted = {"lost_rounds" if kind == "lost" else kind for kind in EVENT_TABLES.values()}
    assert counted == of_leaders


@pytest.mark.parametrize(
    ("segments", "combined", "cores", "parts"),
    [(1, 22, 2, 8), (4, 22, 2, 2), (100, 22, 2, 1), (1, 3, 2, 3), (0, 22, 2, 8)],
)
def test_tasks_are_for_all_cores(segments: int, combined: int, cores: int, parts: int) -> None:
    assert task_split(segments, combined, cores) == TaskSplit(segments=segments, parts=parts)
