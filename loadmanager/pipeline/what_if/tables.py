"""The tables of the replay, and their rows."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.contract import Table
from loadmanager.pipeline.what_if.play import Play
from loadmanager.pipeline.what_if.reality import RECORDED
from loadmanager.pipeline.what_if.results import Found, ranked
from loadmanager.pipeline.what_if.scores import Scores
from loadmanager.pipeline.what_if.spreading import LINES
from loadmanager.pipeline.what_if.trust import judged


def _column(name: str, form: Any, meaning: str) -> StructField:
    return StructField(name, form, metadata={"meaning": meaning})


_NAMED: Final = (
    _column("combination", IntegerType(), "Its number; -1 is what was recorded."),
    _column("name", StringType(), "The pair with its settings, or what was recorded."),
)

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
    schema=StructType(
        [
            _column("rank", IntegerType(), "From 1, by penalty; the recorded has one, too."),
            *_NAMED,
            _column("shedder", StringType(), "Its name; empty: as recorded."),
            _column("placement", StringType(), "Its name; empty: as recorded."),
            _column("settings", StringType(), "What was set, key=value, with a space between."),
            _column("gap", DoubleType(), "Its penalty less that of the recorded; below 0: better."),
            *(
                _column(
                    one.name,
                    LongType() if one.type is int else DoubleType(),
                    str(one.metadata["what"]),
                )
                for one in fields(Scores)
            ),
        ]
    ),
)
REPLAY_TRUST: Final = Table(
    name="replay_trust",
    job="replay",
    meaning="One row for each combination: how far its scores can be trusted, and why.",
    schema=StructType(
        [
            *_NAMED,
            _column("level", StringType(), "high, fair, low or none."),
            _column("because", StringType(), "Why it is not higher."),
            _column("away", DoubleType(), "Fraction of the traffic elsewhere than recorded."),
            _column("rounds", LongType(), "Rounds in the history."),
            _column("refused", LongType(), "Of them, those that could not be replayed."),
            _column("refused_by_reason", StringType(), "The same by reason, as JSON."),
            _column("bases", LongType(), "Base rounds that were decided again."),
            _column("reproduced", LongType(), "Of them, those decided exactly as recorded."),
            _column("difference", StringType(), "The first that was not, if any."),
            _column("changes", LongType(), "Brokers whose bundles had changed, each round."),
            *(
                _column(f"{one}_{group}_error", DoubleType(), f"{what}, a fraction of the limit.")
                for group, what in (
                    ("changed", "Mean error of their foretold usage"),
                    ("unchanged", "The same of brokers whose bundles stayed"),
                )
                for one in RESOURCES
            ),
        ]
    ),
)


def score_rows(found: Found, play: Play) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of `REPLAY_SCORES`, best first."""
    recorded = found.scores.get(RECORDED)
    known = {one.number: one for one in play.combinations}
    for rank, (number, name, one) in enumerate(ranked(found, play.combinations), start=1):
        combination = known.get(number)
        yield {
            "rank": rank,
            "combination": number,
            "name": name,
            "shedder": combination.shedder if combination else "",
            "placement": combination.placement if combination else "",
            "settings": " ".join(combination.settings) if combination else "",
            "gap": one.penalty - recorded.penalty if recorded else None,
            **asdict(one),
        }


def trust_rows(found: Found, play: Play) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of `REPLAY_TRUST`, best first."""
    evidence = found.evidence
    common = {
        "rounds": evidence.rounds,
        "refused": sum(evidence.refused.values()),
        "refused_by_reason": json.dumps(evidence.refused, sort_keys=True),
        "bases": evidence.bases,
        "reproduced": evidence.reproduced,
        "difference": evidence.difference,
        "changes": evidence.changed_count,
        **{f"{one}_changed_error": evidence.changed[one] for one in RESOURCES},
        **{f"{one}_unchanged_error": evidence.unchanged[one] for one in RESOURCES},
    }
    for number, name, one in ranked(found, play.combinations):
        if number != RECORDED:
            yield {"combination": number, "name": name, **_verdict(found, one, play), **common}


def _verdict(found: Found, scores: Scores, play: Play) -> Mapping[str, Any]:
    learned = play.learned is not None
    level, because = judged(found.evidence, scores.away, learned=learned)
    return {"level": level.value, "because": because, "away": scores.away}
