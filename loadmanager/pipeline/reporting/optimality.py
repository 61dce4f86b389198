"""Distance of the cluster from the optimum, and that of strategies that decided beside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Best, Cell, Chart, Column, Html, Json, table, tag
from loadmanager.core.bounds import MINUTE_MS
from loadmanager.pipeline.reporting.formats import (
    COLOURS,
    GREY,
    layout,
    line,
    many,
    on_axis,
    percent,
    plain,
    span,
)
from loadmanager.pipeline.reporting.parts import Finding, Part, Weight
from loadmanager.pipeline.reporting.sources import (
    Row,
    Tables,
    bounds_ms,
    interval,
    one_row,
    rows,
    sound,
    step_ms,
)

TITLE: Final = "Distance from the best possible"
POINTS: Final = 300

NEAR: Final = 0.15
"""The largest mean gap that counts as good."""

FAR: Final = 0.4

WORTH: Final = 0.05
"""A smaller mean regret is negligible."""

NOISE: Final = 0.05
"""Fraction of the limit: with a lower bound the gap is mostly measurement noise."""

_WORDS: Final = (
    "A gap of 20 % means that the fullest broker used a fifth more than the least that was "
    "possible with the bundles as they were. Regret is how far the active strategy's gap was "
    "above another one's at the same rounds: above 0 the other would have been closer to the best. "
    "What a strategy would have had is a prediction, in which moves cost nothing."
)


@dataclass(frozen=True, kw_only=True)
class Distance:
    """The gap of the cluster in intervals of ``step_ms``, and that of strategies beside.

    ``total`` is over all rounds. ``shadows`` has a row for each strategy, ``regrets`` one for
    each strategy and interval; both are empty where none decided beside the active one.
    """

    step_ms: int
    points: Sequence[Row]
    total: Row
    shadows: Sequence[Row] = ()
    regrets: Sequence[Row] = ()


def read(tables: Tables) -> Distance | None:
    days = bounds_ms(sound(tables.table("broker_load")), "at")
    if days is None:
        return None
    gaps = _within(tables.table("optimality"), days)
    bounds = bounds_ms(gaps, "at")
    if bounds is None:
        return None
    step = step_ms(*bounds, MINUTE_MS, POINTS)
    by_time = interval("at", step).alias("at_ms")
    names = ("largest", "bound", "bound_within_policies", "gap", "gap_within_policies")
    means = [F.avg(name).alias(name) for name in names]
    shadows = _within(tables.table("shadows"), days).withColumn(
        "regret", F.col("active_gap") - F.col("gap")
    )
    by_strategy = shadows.groupBy("strategy").agg(
        F.count("*").alias("rounds"),
        F.avg("gap").alias("gap"),
        F.avg("regret").alias("regret"),
        F.percentile_approx("gap", 0.95, 1000).alias("gap_p95"),
        *(F.sum(name).alias(name) for name in ("moves", "moved", "active_moves", "active_moved")),
    )
    over_time = shadows.groupBy("strategy", by_time).agg(F.avg("regret").alias("regret"))
    last = F.percentile_approx("gap", 0.95, 1000).alias("gap_p95")
    return Distance(
        step_ms=step,
        points=rows(gaps.groupBy(by_time).agg(*means).orderBy("at_ms")),
        total=one_row(gaps.agg(F.count("*").alias("rounds"), *means, last)),
        shadows=rows(by_strategy.orderBy(F.desc("regret"), "strategy")),
        regrets=rows(over_time.orderBy("strategy", "at_ms")),
    )


def _within(frame: DataFrame, bounds: tuple[int, int]) -> DataFrame:
    """Return the rows within the time of the reports, without those of wrong clocks."""
    return frame.where(F.unix_millis("at").between(*bounds))


def show(found: Distance | None) -> Part:
    if found is None:
        text = (
            "No leader recorded how far the cluster was from the best possible. Sidecars from 0.2 "
            "on write it to their history after each round; simulations and attach do not."
        )
        return Part(title=TITLE, body=[tag("p", text)])
    body = [_over_time(found).html()]
    if found.shadows:
        body += [_strategies(found), tag("p", _WORDS)]
    else:
        none = "No strategy decided beside the active one: [shedding] shadows names them."
        body.append(tag("p", none))
    return Part(title=TITLE, body=body, findings=_findings(found))


def _findings(found: Distance) -> list[Finding]:
    findings = [_of_gap(found.total)]
    if found.shadows:
        findings.append(_of_shadows(found.shadows))
    return findings


def _of_gap(total: Row) -> Finding:
    words = (
        f"The fullest broker used {percent(total['largest'], 1)} on average, where "
        f"{percent(total['bound'], 1)} was possible: a mean gap of {percent(total['gap'])}"
    )
    if total["bound"] < NOISE:
        return Finding(Weight.FINE, f"The cluster has too little load to be uneven. {words}.")
    held = total["gap"] - total["gap_within_policies"]
    if total["gap"] > NEAR and held > total["gap"] / 2:
        words += f", of which isolation policies and drains hold {percent(held)}"
    if total["gap"] > FAR:
        return Finding(Weight.ACT, f"The cluster was far from the best possible. {words}.")
    weight = Weight.LOOK if total["gap"] > NEAR else Weight.FINE
    return Finding(weight, f"{words}.")


def _of_shadows(shadows: Sequence[Row]) -> Finding:
    best = shadows[0]
    if best["regret"] <= WORTH:
        text = f"by more than {percent(WORTH)}"
        return Finding(
            Weight.FINE, f"No strategy beside would have been closer to the best {text}."
        )
    return Finding(
        Weight.LOOK,
        f"{best['strategy']} would have been closer to the best: a mean gap of "
        f"{percent(best['gap'])} where the cluster's was {percent(best['gap'] + best['regret'])}, "
        f"with {many(best['moves'], 'move')} instead of {best['active_moves']:,}.",
    )


def _over_time(found: Distance) -> Chart:
    times = [on_axis(row["at_ms"]) for row in found.points]
    lines = (
        ("largest", "fullest broker", COLOURS[1]),
        ("bound_within_policies", "least within policies", GREY),
        ("bound", "least possible", COLOURS[0]),
    )
    data: list[Mapping[str, Json]] = [
        line(times, [row[name] for row in found.points], label, colour)
        for name, label, colour in lines
    ]
    text = "The space between the lines is the gap."
    if found.shadows:
        text += " Below, the regret of each strategy beside the active one; above 0 is better."
    for number, one in enumerate(found.shadows):
        mine = [row for row in found.regrets if row["strategy"] == one["strategy"]]
        colour = COLOURS[2 + number % (len(COLOURS) - 2)]
        drawn = line([on_axis(r["at_ms"]) for r in mine], [r["regret"] for r in mine],
                     f"regret: {one['strategy']}", colour)  # fmt: skip
        data.append({**drawn, "yaxis": "y2"})
    return Chart(
        title="The fullest broker, and the least that is possible",
        summary="Use of CPU or network by the fullest broker, as a part of its limit, and the "
        "proven lower bound of that, wherever the bundles are and wherever policies let them be, "
        f"in intervals of {span(found.step_ms / 1000)}. {text}",
        data=data,
        layout=layout(**_axes(shadows=bool(found.shadows))),
        height_px=460 if found.shadows else 320,
    )


def _axes(*, shadows: bool) -> dict[str, object]:
    use = {"title": {"text": "use, % of limit"}, "tickformat": ".0%", "rangemode": "tozero"}
    if not shadows:
        return {"yaxis": use, "xaxis": {"type": "date"}}
    return {
        "yaxis": {**use, "domain": [0.42, 1]},
        "yaxis2": {"title": {"text": "regret"}, "tickformat": ".0%", "domain": [0, 0.34]},
        "xaxis": {"type": "date", "anchor": "y2"},
    }


def _strategies(found: Distance) -> Html:
    columns = [
        Column(name="strategy"),
        Column(name="gap", unit="mean", best=Best.LEAST),
        Column(name="gap p95", explanation="95 % of the rounds are at or below."),
        Column(name="regret", unit="mean", explanation="How far the active one's gap is above it."),
        Column(name="moves", unit="for load", best=Best.LEAST),
        Column(name="moved", unit="times all traffic", best=Best.LEAST),
    ]
    longest = max(found.shadows, key=lambda one: one["rounds"])
    active = {
        **found.total,
        "strategy": "the active one",
        "regret": None,
        "moves": longest["active_moves"],
        "moved": longest["active_moved"],
    }
    cells = [
        [
            Cell(row["strategy"], note=many(row["rounds"], "round")),
            *(Cell(percent(row[name], 1), row[name]) for name in ("gap", "gap_p95", "regret")),
            Cell(f"{row['moves']:,}", row["moves"]),
            Cell(plain(row["moved"]), row["moved"]),
        ]
        for row in (active, *found.shadows)
    ]
    return table("Strategies beside the active one, the greatest regret first", columns, cells)
