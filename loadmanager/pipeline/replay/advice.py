"""The advice of a replay: its evidence, its costs, and its certainty."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from loadmanager.pipeline.replay.combinations import Combination
from loadmanager.pipeline.replay.measures import (
    LEAST_BETTER,
    LEAST_GAIN,
    LEAST_OWN_DECISIONS,
    LEAST_STRETCHES,
    SETTLE_S,
    STRETCH_S,
    Scores,
)
from loadmanager.pipeline.replay.results import Found
from loadmanager.pipeline.replay.segment_replay import RECORDED, SegmentReplay
from loadmanager.pipeline.replay.trust import Level, judged
from loadmanager.pipeline.reporting.formats import many, percent, plain, span

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
        return _stay(found, compared[0], level, because)
    return _try(found, best, level, because)


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


def _stay(found: Found, best: _Compared, level: Level, because: str) -> Advice:
    text = (
        f"Keep the strategy that is in force: none is clearly better. {best.name} came nearest "
        f"({_in_short(best.scores)}, against {_in_short(best.usual)})."
    )
    return Advice(
        verdict=Verdict.STAY,
        text=text,
        name=best.name,
        rests_on=_rests_on(found, best),
        costs="Nothing.",
        sure=level,
        because=because,
    )


def _try(found: Found, best: _Compared, level: Level, because: str) -> Advice:
    how = "observing first" if level in _FIRM else "in a simulation or as a shadow first"
    text = (
        f"Try {best.name}, {how}: {percent(best.gain)} less penalty than the strategy in force "
        f"({_in_short(best.scores)}, against {_in_short(best.usual)})."
    )
    return Advice(
        verdict=Verdict.TRY,
        text=text,
        name=best.name,
        rests_on=_rests_on(found, best),
        costs=_costs(best),
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
