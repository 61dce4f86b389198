"""History: every load report and every decision, as lines of JSON.

The format is described in ``docs/history-format.md``, which is generated from `kinds.KINDS`.
"""

from loadmanager.core.history.describing import described
from loadmanager.core.history.kinds import HAND_OVER, KINDS
from loadmanager.core.history.reading import read_line
from loadmanager.core.history.records import (
    Origin,
    Record,
    cut_record,
    encode,
    lost_record,
    optimality_record,
    record_of,
    report_record,
    shadow_record,
    task_records,
    term_record,
    tick_record,
)
from loadmanager.core.history.replaying import averages_of, report_of, snapshot_of
from loadmanager.core.history.rounds import RoundFacts, bundles_records, move_record, round_records
from loadmanager.core.history.schema import ENVELOPE, VERSION, Columns, Field, Kind, Stream, Type

__all__ = [
    "ENVELOPE",
    "HAND_OVER",
    "KINDS",
    "VERSION",
    "Columns",
    "Field",
    "Kind",
    "Origin",
    "Record",
    "RoundFacts",
    "Stream",
    "Type",
    "averages_of",
    "bundles_records",
    "cut_record",
    "described",
    "encode",
    "lost_record",
    "move_record",
    "optimality_record",
    "read_line",
    "record_of",
    "report_of",
    "report_record",
    "round_records",
    "shadow_record",
    "snapshot_of",
    "task_records",
    "term_record",
    "tick_record",
]
