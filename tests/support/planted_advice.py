"""Histories in which it is known what is best, and whether the replay's advice says so.

What is best is what simulations come to: each pair plays the same traffic by itself. A history
begins an hour into a simulation, when its strategy has long balanced what it can.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any, Final

import small_history
from replayed import Line, columns, events, replayed, simulated

from loadmanager.pipeline.replay.combinations import combinations, spread_anew
from loadmanager.pipeline.replay.events import Event
from loadmanager.pipeline.replay.judging import Advice, Found, Verdict, advised, evidence_of
from loadmanager.pipeline.replay.measures import SEGMENT_H, SETTLE_S, scores_of, stretches_of
from loadmanager.pipeline.replay.replay_run import Rules
from loadmanager.pipeline.replay.segment_replay import SegmentReplay
from loadmanager.simulator.scenario import Scenario

STILL: Final = "overload+least_resource_usage_with_weight"
"""Moves nothing where no broker is nearly full."""

PAIRS: Final = (
    "threshold+least_long_term_message_rate",
    "avg+avg",
    "transfer+least_resource_usage_with_weight",
    STILL,
    "uniform+least_average_usage",
)
BEFORE_S: Final = 3600.0
_MUCH: Final = 0.8
"""Keeping a strategy was right unless another has a penalty smaller than this times its."""


def changed(played: Scenario, **more: Any) -> Scenario:
    return Scenario.model_validate({**played.model_dump(mode="json", exclude_none=True), **more})


def calm(hours: float) -> Scenario:
    """Return a cluster whose traffic hardly changes: what was balanced stays so by itself."""
    content = small_history.SCENARIO.model_dump(mode="json", exclude_none=True)
    patterns = [{"kind": "jitter", "fraction": 0.1, "memory_s": 120.0}]
    load = [{**one, "patterns": patterns} for one in content["load"]]
    return changed(small_history.SCENARIO, duration_s=hours * 3600.0, load=load, events=[])


def cases(hours: float) -> Mapping[str, Scenario]:
    return {
        "calm: 6 brokers of two classes, 48 bundles": calm(hours),
        "days and bursts: the same, one crash": changed(
            small_history.SCENARIO, duration_s=hours * 3600.0
        ),
        "busy: 8 brokers of two sizes, 96 bundles": small_history.large_scenario(8, 96, hours),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    recorded: str
    advice: Advice
    real: Mapping[str, float]

    @property
    def outcome(self) -> str:
        mine = self.real[self.recorded]
        if self.advice.verdict is Verdict.TRY:
            return "better" if self.real[self.advice.name] < mine else "worse"
        best = min(self.real.values())
        missed = best < _MUCH * mine
        if self.advice.verdict is Verdict.STAY:
            return "kept, missed" if missed else "kept, right"
        return "none"


def tried(
    played: Scenario,
    seeds: Sequence[int],
    pairs: Sequence[str] = PAIRS,
    recorded: Sequence[str] = (),
) -> list[Tried]:
    """Return the advice on the histories of ``pairs``, or of those ``recorded`` alone.

    What a pair really comes to is its mean over the simulations of all ``seeds``: other traffic
    of the same kind, and bundles that begin elsewhere.
    """
    found: list[tuple[str, Advice]] = []
    real: dict[str, list[float]] = defaultdict(list)
    for seed in seeds:
        for pair in pairs:
            history = events(simulated(pair, played, seed=seed, base_every_rounds=15))
            kept = late(history)
            real[pair].append(scores_of(replayed(kept, [])[-1]).penalty)
            if pair in (recorded or pairs):
                found.append((pair, advice(kept, pairs)))
    means = {pair: mean(each) for pair, each in real.items()}
    return [Tried(recorded=pair, advice=told, real=means) for pair, told in found]


def advice(found: Sequence[Event], pairs: Sequence[str]) -> Advice:
    replay = SegmentReplay(
        combinations=spread_anew(combinations(pairs, [])), rules=Rules(settle_s=SETTLE_S)
    )
    rows: dict[int, list[Line]] = defaultdict(list)
    for number, segment in enumerate(segments(found, SEGMENT_H * 3600)):
        for line in replay.lines(f"segment {number}", segment):
            rows[line.combination].append(asdict(line))
    lines = {number: columns(each) for number, each in rows.items()}
    result = Found(
        scores={number: scores_of(each) for number, each in lines.items()},
        evidence=evidence_of(lines[-1]),
        stretches={
            number: {str(at): penalty for at, penalty in stretches_of(each).items()}
            for number, each in lines.items()
        },
    )
    return advised(result, replay)


def table(rows: Mapping[str, Sequence[Tried]]) -> str:
    heads = ("better", "worse", "kept, right", "kept, missed", "none")
    lines = [
        "| case | histories | "
        + " | ".join(
            f"{'try' if one in heads[:2] else 'keep' if 'kept' in one else 'advice'}: "
            f"{one.removeprefix('kept, ')}"
            for one in heads
        )
        + " |",
        "|---|" + "---|" * (len(heads) + 1),
    ]
    for name, each in rows.items():
        now = Counter(one.outcome for one in each)
        counts = [len(each), *(now[head] for head in heads)]
        lines.append(f"| {name} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines)


def segments(found: Sequence[Event], length_s: float) -> Iterator[list[Event]]:
    """Yield a history in parts that begin at base rounds ``length_s`` or more apart."""
    starts = _bases(found)
    firsts = [min(starts)]
    for place, at_s in starts.items():
        if at_s - starts[firsts[-1]] >= length_s:
            firsts.append(place)
    for first, last in zip(firsts, [*firsts[1:], len(found)], strict=True):
        yield [*(one for one in found[:first] if one.kind == "report"), *found[first:last]]


def late(found: Sequence[Event], before_s: float = BEFORE_S) -> list[Event]:
    """Return a history from its first base round after ``before_s`` on."""
    starts = _bases(found)
    began_s = min(starts.values())
    first = next(place for place, at_s in starts.items() if at_s - began_s >= before_s)
    return [*(one for one in found[:first] if one.kind == "report"), *found[first:]]


def _bases(found: Sequence[Event]) -> dict[int, float]:
    at_s = {
        (one.body["epoch"], one.body["round"]): one.body["at_ms"] / 1000
        for one in found
        if one.kind == "round" and one.body["base"]
    }
    return {
        place: at_s[one.body["epoch"], one.body["round"]]
        for place, one in enumerate(found)
        if one.kind == "bundles"
    }
