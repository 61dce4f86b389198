"""Cutting history into segments: which lines count as told."""

from loadmanager.core.history.kinds import KINDS
from loadmanager.core.history.schema import Stream
from loadmanager.pipeline.replay.segments import EVENT_TABLES


def test_every_line_of_leaders_counts_or_each_would_be_a_gap() -> None:
    of_leaders = {name for name, kind in KINDS.items() if kind.stream is Stream.ROUNDS}
    counted = {"lost_rounds" if kind == "lost" else kind for kind in EVENT_TABLES.values()}
    assert counted == of_leaders
