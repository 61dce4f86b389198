"""The tables of the replay, and their rows."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from pyspark.sql.types import DoubleType, LongType

from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.contract import Table, column, columns
from loadmanager.pipeline.replay.recorded_rounds import RECORDED
from loadmanager.pipeline.replay.results import Found, ranked
from loadmanager.pipeline.replay.scores import Scores
from loadmanager.pipeline.replay.segment_replay import SegmentReplay
from loadmanager.pipeline.replay.spark_tasks import LINES
from loadmanager.pipeline.replay.trust import judged

_NAMED: Final = """
    combination int Its number; -1 is what was recorded.
    name string The pair with its settings, or what was recorded.
"""

REPLAY_ROUNDS: Final = Table(
    name="replay_rounds",
    job="replay",
    meaning="One row for each round and combination.",
    schema=LINES,
)
REPLAY_SCORES: Final = Table(
    name="replay_scores",
    job="replay",
    meaning="One row for each combination, by rank; and one for what was recorded.",
    schema=columns(
        f"""
        rank int From 1, by penalty; the recorded has one, too.
        {_NAMED}
        shedder string Its name; empty: as recorded.
        placement string Its name; empty: as recorded.
        settings string What was set, key=value, with a space between.
        gap double Its penalty less that of the recorded strategy begun alike; below 0: better.
        """,
        (
            column(one.name, LongType() if one.type is int else DoubleType(), one.metadata["what"])
            for one in fields(Scores)
        ),
    ),
)
REPLAY_TRUST: Final = Table(
    name="replay_trust",
    job="replay",
    meaning="One row for each combination: how far its scores can be trusted, and why.",
    schema=columns(
        _NAMED,
        """
        level string high, fair, low or none.
        because string Why the level is not higher.
        away double Fraction of the traffic elsewhere than recorded.
        rounds bigint Rounds in the history.
        covered_s double How long those that were replayed stood, seconds.
        decisions bigint Bundles that the recorded leader moved for load.
        refused bigint Rounds that could not be replayed.
        refused_by_reason string The same by reason, as JSON.
        bases bigint Base rounds that were decided again.
        reproduced bigint Base rounds that were decided exactly as recorded.
        difference string The first round that was not, if any.
        changes bigint Brokers whose bundles had changed, over all rounds.
        """,
        (
            column(f"{one}_{group}_error", DoubleType(), f"{what}, a fraction of the limit.")
            for group, what in (
                ("changed", "Mean error of their predicted usage"),
                ("unchanged", "The same of brokers whose bundles stayed"),
            )
            for one in RESOURCES
        ),
    ),
)


def score_rows(found: Found, replay: SegmentReplay) -> Iterator[Mapping[str, Any]]:
    known = {one.number: one for one in replay.combinations}
    for rank, (number, name, one) in enumerate(ranked(found, replay.combinations), start=1):
        combination = known.get(number)
        like = _begun_alike(found, replay, anew=combination is not None and combination.spread_anew)
        yield {
            "rank": rank,
            "combination": number,
            "name": name,
            "shedder": combination.shedder if combination else "",
            "placement": combination.placement if combination else "",
            "settings": " ".join(combination.settings) if combination else "",
            "gap": None if like is None else one.penalty - like.penalty,
            **asdict(one),
        }


def _begun_alike(found: Found, replay: SegmentReplay, *, anew: bool) -> Scores | None:
    """Return the scores of the recorded strategy from the same start."""
    if not anew:
        return found.scores.get(RECORDED)
    return next(
        (
            found.scores.get(one.number)
            for one in replay.combinations
            if one.spread_anew and not one.shedder
        ),
        None,
    )


def trust_rows(found: Found, replay: SegmentReplay) -> Iterator[Mapping[str, Any]]:
    evidence = found.evidence
    common = {
        "rounds": evidence.rounds,
        "covered_s": evidence.covered_s,
        "decisions": evidence.decisions,
        "refused": sum(evidence.refused.values()),
        "refused_by_reason": json.dumps(evidence.refused, sort_keys=True),
        "bases": evidence.bases,
        "reproduced": evidence.reproduced,
        "difference": evidence.difference,
        "changes": evidence.changed_count,
        **{f"{one}_changed_error": evidence.changed[one] for one in RESOURCES},
        **{f"{one}_unchanged_error": evidence.unchanged[one] for one in RESOURCES},
    }
    for number, name, one in ranked(found, replay.combinations):
        if number != RECORDED:
            yield {"combination": number, "name": name, **_verdict(found, one), **common}


def _verdict(found: Found, scores: Scores) -> Mapping[str, Any]:
    level, because = judged(found.evidence, scores.away)
    return {"level": level.value, "because": because, "away": scores.away}
