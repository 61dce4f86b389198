"""What an ingest says of lines: sums that are counted, not made to fit."""

import pytest

from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.ingest.messages import Taken, messages_of_lines


def test_batches_add_up() -> None:
    both = Taken(read=6, kept=3, quarantined=2, duplicate=1) + Taken(read=1, kept=1, gone=2)
    assert list(messages_of_lines(both))[:2] == [
        "gone before they were read: 2 files",
        "lines: 7 read = 4 kept + 2 quarantined + 1 duplicate",
    ]


def test_lines_that_are_lost_on_their_way_end_the_ingest() -> None:
    with pytest.raises(PipelineError, match=r"lines: 6 read, 2 kept, 2 quarantined, 1 duplicate;"):
        Taken(read=6, kept=2, quarantined=2, duplicate=1)
