"""The results of a replay, and how they are printed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.replay.combinations import Combination
from loadmanager.pipeline.replay.frames import NO_BASE_YET, REFUSALS
from loadmanager.pipeline.replay.measures import Scores, scores_of, stretches_of
from loadmanager.pipeline.replay.segment_replay import RECORDED, SegmentReplay
from loadmanager.pipeline.replay.trust import Evidence, evidence_of, judged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_SHOWN: Final = 40
_COLUMNS: Final = (
    ("penalty", "penalty", 3),
    ("max_over_mean", "max/mean", 3),
    ("max_over_mean_p95", "p95", 3),
    ("deviation", "deviation", 3),
    ("deviation_p95", "p95", 3),
    ("overload_fraction", "overload", 3),
    ("moves", "moves", 0),
    ("returned", "back", 0),
    ("moved_per_hour", "moved/h", 3),
    ("moved_topics", "topics", 0),
)
"""The printed scores: name, heading, decimals."""


@dataclass(frozen=True, slots=True)
class Found:
    """The results of a replay: scores by combination, and the evidence in the history.

    ``stretches`` are the penalties of each combination by stretch of time.
    """

    scores: Mapping[int, Scores]
    evidence: Evidence
    stretches: Mapping[int, Mapping[str, float]] = field(default_factory=dict)


def scored(lines: "DataFrame", outside: int) -> Found:
    """Return the scores of lines (`LINES`); ``outside`` rounds are in no segment."""
    form = "combination int, scores string, stretches string, evidence string"
    rows = lines.groupBy("combination").applyInArrow(score_group, form).collect()
    # As many rows as combinations, however long the history is.
    scores = {row["combination"]: Scores(**json.loads(row["scores"])) for row in rows}
    stretches = {row["combination"]: json.loads(row["stretches"]) for row in rows}
    told_evidence = next((row["evidence"] for row in rows if row["combination"] == RECORDED), None)
    evidence = _no_evidence() if told_evidence is None else Evidence(**json.loads(told_evidence))
    if outside:
        refused = dict(evidence.refused)
        refused[NO_BASE_YET] = refused.get(NO_BASE_YET, 0) + outside
        evidence = replace(evidence, refused=refused, rounds=evidence.rounds + outside)
    return Found(scores, evidence, stretches)


def score_group(table: "pa.Table") -> "pa.Table":
    """Return the scores of the lines of one combination; runs in a task."""
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it

    columns: dict[str, Any] = {}
    for name in table.column_names:
        values = table[name].combine_chunks()
        numeric = pa.types.is_floating(values.type) or pa.types.is_integer(values.type)
        columns[name] = (
            values.to_numpy(zero_copy_only=False)
            if numeric
            else np.array([*values.to_pylist(), None], dtype=object)[:-1]
        )
    scores, stretches = scores_of(columns), stretches_of(columns)
    number = int(columns["combination"][0])
    evidence = json.dumps(asdict(evidence_of(columns))) if number == RECORDED else None
    return pa.table(
        {
            "combination": pa.array([number], pa.int32()),
            "scores": pa.array([json.dumps(asdict(scores))], pa.string()),
            "stretches": pa.array([json.dumps(stretches)], pa.string()),
            "evidence": pa.array([evidence], pa.string()),
        }
    )


def _no_evidence() -> Evidence:
    nothing = dict.fromkeys(RESOURCES)
    return Evidence(
        rounds=0,
        refused={},
        covered_s=0.0,
        decisions=0,
        bases=0,
        reproduced=0,
        difference="",
        changed=nothing,
        unchanged=nothing,
        changed_count=0,
    )


def ranked(found: Found, tried: Sequence[Combination]) -> list[tuple[int, str, Scores]]:
    """Return number, name and scores of all combinations with scores, best first."""
    names = {one.number: one.name for one in tried} | {RECORDED: "(recorded)"}
    rows = [(number, names[number], one) for number, one in found.scores.items() if one.rounds]
    return sorted(rows, key=lambda row: (row[2].penalty, row[0]))


def summary(found: Found, replay: SegmentReplay) -> list[str]:
    evidence = found.evidence
    refused = sum(evidence.refused.values())
    lines = [f"{evidence.rounds} rounds: {evidence.rounds - refused} replayed, {refused} refused"]
    lines += [f"  {count}: {REFUSALS[one]}" for one, count in sorted(evidence.refused.items())]
    if evidence.bases:
        share = f"{evidence.reproduced} of {evidence.bases}"
        lines.append(f"{share} base rounds were decided again exactly as recorded")
    if evidence.difference:
        lines.append(f"  the first that was not: {evidence.difference}")
    return [*lines, *_table(found, replay)]


def _table(found: Found, replay: SegmentReplay) -> Iterator[str]:
    rows = ranked(found, replay.combinations)
    if not rows:
        return
    cells = [("", "combination", *(heading for _, heading, _ in _COLUMNS), "trust")]
    for rank, (number, name, scores) in enumerate(rows[:_SHOWN], start=1):
        level, _ = judged(found.evidence, scores.away)
        trust = "" if number == RECORDED else level.value
        figures = (f"{getattr(scores, one):.{digits}f}" for one, _, digits in _COLUMNS)
        cells.append((str(rank), name, *figures, trust))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        texts = [
            text.ljust(width) if at in {1, len(row) - 1} else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(texts).rstrip()
    if len(rows) > _SHOWN:
        yield f"and {len(rows) - _SHOWN} more in the table replay_scores"
