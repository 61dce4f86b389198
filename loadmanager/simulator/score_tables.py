"""Tables of the scores of strategies: medians over the seeds, with their spread."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from loadmanager.charts import Best, Cell, Column, Html, table, tag
from loadmanager.simulator.scores import SCORE_DOCS, ScoreDoc, values_of
from loadmanager.simulator.simulation_jobs import Compared

FIRST: Final = (
    "max_over_mean", "priced_gap", "gap", "excess", "overload_min", "balance_s",
    "moves", "returned", "moved_ratio", "interrupted_client_s", "thrash_per_broker_percent",
)  # fmt: skip
"""The scores that are initially shown; the others are folded."""

_REFERRING: Final = ("The same", "How much of that", "Messages that came then")
_NEITHER_GOOD_NOR_BAD: Final = frozenset({"bound", "placed", "drained", "refusals"})
_DOCS: Final[Mapping[str, ScoreDoc]] = {doc.name: doc for doc in SCORE_DOCS}


def score_table(caption: str, found: Mapping[str, Compared], names: Sequence[str] = FIRST) -> Html:
    docs = [_DOCS[name] for name in names]
    columns = [Column(name="strategy"), *(_column(doc) for doc in docs)]
    rows = [[Cell(strategy), *(_cell(one, doc) for doc in docs)] for strategy, one in found.items()]
    return table(caption, columns, rows)


def legend() -> Html:
    parts: list[Html] = []
    for doc in SCORE_DOCS:
        unit = f" ({doc.unit})" if doc.unit else ""
        parts += [tag("dt", doc.title + unit), tag("dd", doc.what, " ", tag("small", doc.name))]
    return tag("dl", *parts)


def _column(doc: ScoreDoc) -> Column:
    better = Best.NEITHER if doc.name in _NEITHER_GOOD_NOR_BAD else Best.LEAST
    said = [*_before(doc), doc.what, *([] if better is Best.NEITHER else ["Less is better."])]
    return Column(name=doc.title, unit=doc.unit, explanation=" ".join(said), best=better)


def _before(doc: ScoreDoc) -> list[str]:
    """Return the descriptions that the description of a score refers to."""
    if not doc.what.startswith(_REFERRING):
        return []
    before = SCORE_DOCS[SCORE_DOCS.index(doc) - 1]
    return _before(before) or [before.what]


def _cell(found: Compared, doc: ScoreDoc) -> Cell:
    spread = found.spreads[doc.name]
    middle, least, most = (never(one) for one in (spread.median, spread.least, spread.most))
    each = ", ".join(written(never(values_of(scores)[doc.name])) for scores in found.runs)
    several = len(found.runs) > 1
    return Cell(
        written(middle),
        middle,
        note=f"{written(least)} to {written(most)}" if written(least) != written(most) else "",
        hover=f"{doc.title}, each seed: {each}" if several else "",
    )


def never(value: float | None) -> float:
    """Return a score, with infinity for "never" and unknown."""
    return math.inf if value is None or math.isnan(value) else value


def written(value: float) -> str:
    if math.isinf(value):
        return "never"
    if value == int(value) or abs(value) >= 100:  # noqa: PLR2004 - where fractions say nothing
        return f"{value:,.0f}"
    if abs(value) >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}"
