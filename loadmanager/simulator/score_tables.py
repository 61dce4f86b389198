"""The scores of strategies side by side: medians over the seeds, with their spread."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from loadmanager.charts import Best, Cell, Column, Html, table, tag
from loadmanager.simulator.scores import SCORE_DOCS, ScoreDoc

FIRST: Final = (
    "max_over_mean", "max_over_mean_end", "largest_p95", "gap_end", "overload_min", "balance_s",
    "moves", "returned", "moved_ratio", "interrupted_client_s", "thrash_per_broker_percent",
)  # fmt: skip
"""The scores that are shown at once; the others are folded away."""

_NEITHER_GOOD_NOR_BAD: Final = frozenset({"placed", "drained", "refusals"})
_DOCS: Final[Mapping[str, ScoreDoc]] = {doc.name: doc for doc in SCORE_DOCS}

Values = Mapping[str, Sequence[float | None]]
"""For each score its value with each seed; None for what never came about."""


def median_of(values: Sequence[float | None]) -> float:
    """Return the median; infinity where half of the seeds never reached it, NaN of nothing."""
    known = [math.inf if value is None else value for value in values]
    return statistics.median(known) if known else math.nan


def score_table(caption: str, values: Mapping[str, Values], names: Sequence[str] = FIRST) -> Html:
    """Return a table with a row for each strategy, the best of each score marked."""
    docs = [_DOCS[name] for name in names]
    columns = [Column(name="strategy"), *(_column(doc) for doc in docs)]
    rows = [
        [Cell(strategy), *(_cell(scores[doc.name], doc) for doc in docs)]
        for strategy, scores in values.items()
    ]
    return table(caption, columns, rows)


def legend() -> Html:
    """Return what every score says."""
    parts: list[Html] = []
    for doc in SCORE_DOCS:
        unit = f" ({doc.unit})" if doc.unit else ""
        parts += [tag("dt", doc.title + unit), tag("dd", doc.what, " ", tag("small", doc.name))]
    return tag("dl", *parts)


def _column(doc: ScoreDoc) -> Column:
    better = Best.NEITHER if doc.name in _NEITHER_GOOD_NOR_BAD else Best.LEAST
    said = doc.what if better is Best.NEITHER else f"{doc.what} Less is better."
    return Column(name=doc.title, unit=doc.unit, explanation=said, best=better)


def _cell(values: Sequence[float | None], doc: ScoreDoc) -> Cell:
    middle = median_of(values)
    if math.isnan(middle):
        return Cell("-")
    least, most = (
        pick(math.inf if value is None else value for value in values) for pick in (min, max)
    )
    spread = f"{written(least)} to {written(most)}"
    each = ", ".join(written(math.inf if value is None else value) for value in values)
    return Cell(
        written(middle),
        middle,
        note=spread if written(least) != written(most) else "",
        hover=f"{doc.title}, each seed: {each}" if len(values) > 1 else "",
    )


def written(value: float) -> str:
    """Return a score as people read it: three digits, whole from a hundred on."""
    if math.isinf(value):
        return "never"
    if value == int(value) or abs(value) >= 100:  # noqa: PLR2004 - where fractions say nothing
        return f"{value:,.0f}"
    return f"{value:.3g}"
