"""What a replay found: scores by combination, how far to trust them, and one piece of advice."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from loadmanager.core.scores import CPU, DIRECT_MEMORY, RESOURCES
from loadmanager.pipeline.replay.combinations import Combination
from loadmanager.pipeline.replay.frames import NO_BASE_YET, REFUSALS
from loadmanager.pipeline.replay.measures import (
    LEAST_BETTER,
    LEAST_DECISIONS,
    LEAST_GAIN,
    LEAST_HISTORY_S,
    LEAST_OWN_DECISIONS,
    LEAST_STRETCHES,
    SETTLE_S,
    STRETCH_S,
    Column,
    Scores,
    scores_of,
    stretches_of,
)
from loadmanager.pipeline.replay.segment_replay import ERROR_COLUMNS, RECORDED, SegmentReplay
from loadmanager.pipeline.reporting.formats import many, percent, plain, span

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_LEAST_REPRODUCED: Final = 0.95
_CLOSE_ERROR, _FAIR_ERROR = 0.05, 0.10
_CLOSE_AWAY, _FAIR_AWAY = 0.10, 0.50
_MOST_REFUSED: Final = 0.10
_JUDGED: Final = (CPU, DIRECT_MEMORY, *range(DIRECT_MEMORY + 1, len(RESOURCES)))
"""Without the heap, which is in no score and depends on garbage collection."""


class Level(StrEnum):
    HIGH = "high"
    FAIR = "fair"
    LOW = "low"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence on the replay from the history itself, the same for all combinations.

    The replayed rounds cover ``covered_s``; ``decisions`` bundles were moved for load.
    ``reproduced`` of the ``bases`` were decided exactly as recorded. ``changed`` and ``unchanged``
    are mean errors of predicted usage by resource, relative to the limits, of brokers whose
    bundles changed and of all others; None if there were none.
    """

    rounds: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    covered_s: float = 0.0
    decisions: int = 0
    bases: int = 0
    reproduced: int = 0
    difference: str = ""
    changed: Mapping[str, float | None] = field(default_factory=lambda: dict.fromkeys(RESOURCES))
    unchanged: Mapping[str, float | None] = field(default_factory=lambda: dict.fromkeys(RESOURCES))
    changed_count: int = 0

    @property
    def refused_fraction(self) -> float:
        return sum(self.refused.values()) / self.rounds if self.rounds else 1.0

    @property
    def too_little(self) -> str:
        """What is missing for advice; empty if nothing is."""
        if self.covered_s >= LEAST_HISTORY_S and self.decisions >= LEAST_DECISIONS:
            return ""
        return (
            f"it needs {span(LEAST_HISTORY_S)} of history and {LEAST_DECISIONS} decisions to move "
            f"a bundle; has {span(self.covered_s)} and {self.decisions:,}"
        )

    @property
    def reproduced_fraction(self) -> float | None:
        """The fraction of base rounds decided as recorded; None without base rounds."""
        return self.reproduced / self.bases if self.bases else None

    @property
    def error(self) -> float | None:
        """The largest error of the resources in scores; None if unknown."""
        known = [self.changed[RESOURCES[at]] for at in _JUDGED]
        return max((one for one in known if one is not None), default=None)


def evidence_of(lines: Mapping[str, Column]) -> Evidence:
    """Return the evidence in recorded rounds; ``lines`` are columns by the names of `Line`."""
    refused = np.asarray(lines["refused"])
    words, counts = np.unique(refused[refused != ""], return_counts=True)
    verdicts = [one for one in lines["reproduced"] if one is not None]
    wrong = [
        note for one, note in zip(lines["reproduced"], lines["note"], strict=True) if one is False
    ]
    sums = dict.fromkeys(ERROR_COLUMNS, 0.0)
    for errors in lines["errors"]:
        if errors is not None:
            for column, value in zip(ERROR_COLUMNS, errors, strict=True):
                sums[column] += value
    return Evidence(
        rounds=len(refused),
        refused={str(word): int(count) for word, count in zip(words, counts, strict=True)},
        covered_s=float(np.sum(np.asarray(lines["weight_s"], dtype=np.float64)[refused == ""])),
        decisions=int(np.sum(lines["moves"])),
        bases=len(verdicts),
        reproduced=sum(map(bool, verdicts)),
        difference=wrong[0] if wrong else "",
        changed=_means(sums, "changed"),
        unchanged=_means(sums, "unchanged"),
        changed_count=int(max(sums["changed", one, "count"] for one in RESOURCES)),
    )


def _means(sums: Mapping[tuple[str, str, str], float], group: str) -> Mapping[str, float | None]:
    return {
        one: sums[group, one, "sum"] / sums[group, one, "count"]
        if sums[group, one, "count"]
        else None
        for one in RESOURCES
    }


def judged(evidence: Evidence, away: float) -> tuple[Level, str]:
    """Return the level of trust and its reasons, with ``away`` of the traffic elsewhere.

    The level is that of the weakest reason.
    """
    levels: list[tuple[Level, str]] = [
        *_of_decisions(evidence),
        *_of_loads(evidence, away),
    ]
    order = list(Level)
    worst = max((level for level, _ in levels), key=order.index)
    return worst, "; ".join(text for level, text in levels if level is worst)


def _of_decisions(evidence: Evidence) -> Sequence[tuple[Level, str]]:
    found: list[tuple[Level, str]] = []
    if evidence.too_little:
        found.append((Level.NONE, evidence.too_little))
    share = evidence.reproduced_fraction
    if share is None:
        found.append((Level.NONE, "no base round could be decided again"))
    elif share < _LEAST_REPRODUCED:
        text = f"only {share:.0%} of the base rounds were decided again as recorded"
        found.append((Level.NONE, text))
    elif share < 1.0:
        text = f"{1 - share:.1%} of the base rounds were decided otherwise than recorded"
        found.append((Level.LOW, text))
    if evidence.refused_fraction > _MOST_REFUSED:
        text = f"{evidence.refused_fraction:.0%} of the rounds could not be replayed"
        found.append((Level.LOW, text))
    return found


def _of_loads(evidence: Evidence, away: float) -> Sequence[tuple[Level, str]]:
    error = evidence.error
    if away <= _CLOSE_AWAY:
        found = [(Level.HIGH, f"all but {away:.0%} of the traffic lay as recorded")]
    elif away <= _FAIR_AWAY:
        found = [(Level.FAIR, f"{away:.0%} of the traffic lay elsewhere, by shares of traffic")]
    else:
        text = f"{away:.0%} of the traffic lay elsewhere: its loads are those of shares of traffic"
        close = error is not None and error <= _CLOSE_ERROR
        found = [(Level.FAIR if close else Level.LOW, text)]
    if error is None:
        if away > _CLOSE_AWAY:
            found.append((Level.LOW, "no recorded change shows how well loads are predicted"))
        return found
    points = f"loads after recorded changes were predicted to {error * 100:.1f} points"
    if error > _FAIR_ERROR:
        found.append((Level.LOW, points))
    elif error > _CLOSE_ERROR:
        found.append((Level.FAIR, points))
    else:
        found.append((Level.HIGH, points))
    return found


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
    evidence = Evidence() if told_evidence is None else Evidence(**json.loads(told_evidence))
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


_FIRM: Final = frozenset({Level.HIGH, Level.FAIR})


class Verdict(StrEnum):
    TRY = "try"
    STAY = "stay"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """An advice as texts: the ``text`` of the ``verdict``, and its reasons.

    ``sure`` is the level of trust. Without advice, all fields except the text are empty.
    """

    verdict: Verdict
    text: str
    name: str = ""
    rests_on: str = ""
    costs: str = ""
    sure: Level = Level.NONE
    because: str = ""

    @classmethod
    def of(cls, noted: Mapping[str, Any]) -> "Advice":
        kinds = {"verdict": Verdict(noted["verdict"]), "sure": Level(noted["sure"])}
        return cls(**{**noted, **kinds})

    @property
    def behind(self) -> Mapping[str, str]:
        """The reasons that are not empty, by their headings."""
        sure = f"{self.sure}: {self.because}" if self.because else ""
        every = {"rests on": self.rests_on, "costs": self.costs, "how sure": sure}
        return {what: text for what, text in every.items() if text}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """A combination and the recorded strategy, both started with bundles spread anew."""

    name: str
    scores: Scores
    usual: Scores
    better: int
    of: int

    @property
    def gain(self) -> float:
        """The relative reduction of the penalty."""
        usual = self.usual.penalty
        return 1 - self.scores.penalty / usual if usual > 0 else 0.0


def advised(found: Found, replay: SegmentReplay) -> Advice:
    if found.evidence.too_little:
        return Advice(verdict=Verdict.NONE, text=f"No advice: {found.evidence.too_little}.")
    compared = _compared(found, replay.combinations)
    if not compared:
        settling = f"the {span(SETTLE_S)} in which bundles settle"
        text = f"No advice: nothing was replayed for longer than {settling}."
        return Advice(verdict=Verdict.NONE, text=text)
    if compared[0].of < LEAST_STRETCHES:
        needs = f"{LEAST_STRETCHES} stretches of {span(STRETCH_S)} to compare in"
        text = f"No advice: it needs {needs}; has {compared[0].of}."
        return Advice(verdict=Verdict.NONE, text=text)
    level, because = judged(found.evidence, compared[0].scores.away)
    if level is Level.NONE:
        return Advice(verdict=Verdict.NONE, text=f"No advice: {because}.")
    best = next((one for one in compared if _clear(one, found)), None)
    if best is None:
        return _advice(found, Verdict.STAY, compared[0], (level, because))
    return _advice(found, Verdict.TRY, best, (level, because))


def sentences(advice: Advice) -> list[str]:
    return [advice.text, *(f"  {what}: {text}" for what, text in advice.behind.items())]


def _compared(found: Found, tried: Sequence[Combination]) -> list[_Compared]:
    """Return the combinations that were spread anew, compared with the recorded strategy."""
    usual = next((one.number for one in tried if one.spread_anew and not one.shedder), None)
    if usual is None or usual not in found.scores or not found.scores[usual].rounds:
        return []
    usually = found.stretches[usual]
    compared = [
        _Compared(
            name=one.name,
            scores=found.scores[one.number],
            usual=found.scores[usual],
            better=_better(found.stretches[one.number], usually),
            of=len(usually),
        )
        for one in tried
        if one.spread_anew and one.shedder and one.number in found.scores
    ]
    return sorted(compared, key=lambda one: one.scores.penalty)


def _better(mine: Mapping[str, float], usual: Mapping[str, float]) -> int:
    return sum(mine[at] < penalty - 1e-9 for at, penalty in usual.items() if at in mine)


def _clear(one: _Compared, found: Found) -> bool:
    """Return whether a combination is better by more than the replay's error, and most of the time.

    It also has to move bundles: otherwise it is judged by its initial owners.
    """
    decided = one.scores.moves + one.scores.settling_moves
    return (
        decided >= LEAST_OWN_DECISIONS
        and one.gain >= max(LEAST_GAIN, _own_error(found))
        and one.better >= LEAST_BETTER * one.of
    )


def _own_error(found: Found) -> float:
    """Return the relative error of the penalty if the recorded strategy is replayed."""
    recorded, again = found.scores.get(RECORDED), found.scores.get(0)
    if recorded is None or again is None or recorded.penalty <= 0:
        return 0.0
    return abs(again.penalty / recorded.penalty - 1)


def _advice(found: Found, verdict: Verdict, one: _Compared, trusted: tuple[Level, str]) -> Advice:
    level, because = trusted
    against = f"({_in_short(one.scores)}, against {_in_short(one.usual)})"
    text = (
        f"Keep the strategy that is in force: none is clearly better. {one.name} came nearest "
        f"{against}."
    )
    if verdict is Verdict.TRY:
        how = "observing first" if level in _FIRM else "in a simulation or as a shadow first"
        text = (
            f"Try {one.name}, {how}: {percent(one.gain)} less penalty than the strategy in force "
            f"{against}."
        )
    return Advice(
        verdict=verdict,
        text=text,
        name=one.name,
        rests_on=_rests_on(found, one),
        costs=_costs(one) if verdict is Verdict.TRY else "Nothing.",
        sure=level,
        because=because,
    )


def _in_short(scores: Scores) -> str:
    return f"penalty {plain(scores.penalty)}, max/mean {plain(scores.max_over_mean)}"


def _rests_on(found: Found, best: _Compared) -> str:
    evidence = found.evidence
    return (
        f"{span(evidence.covered_s)} of history with {many(evidence.decisions, 'recorded move')}, "
        f"of which {span(best.scores.covered_s)} are scored; both strategies began with bundles "
        f"spread anew. It was better in {best.better} of {many(best.of, 'stretch', 'stretches')}; "
        f"a replay of what was recorded is off by {percent(_own_error(found))}."
    )


def _costs(best: _Compared) -> str:
    hours = best.scores.covered_s / 3600
    each = [
        f"{plain(one.moves / hours, 2)} moves, {plain(one.moved_connections / hours, 2)} "
        f"connections made again, {percent(one.moved_per_hour)} of the traffic interrupted"
        for one in (best.scores, best.usual)
    ]
    return (
        f"Each hour {each[0]}; the strategy in force: {each[1]}. Once, to begin with, about "
        f"{many(best.scores.settling_moves, 'move')}."
    )
