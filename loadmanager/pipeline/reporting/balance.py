"""Balance over time: the loads of the cluster and its brokers, and their imbalance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Best, Cell, Chart, Column, Html, Json, numbers, shown, table
from loadmanager.core.bounds import HOUR_MS, MINUTE_MS
from loadmanager.pipeline.reporting.formats import (
    SCALE,
    bars,
    layout,
    line,
    many,
    on_axis,
    percent,
    plain,
    scaled,
    span,
)
from loadmanager.pipeline.reporting.parts import Finding, Part, Weight, figures
from loadmanager.pipeline.reporting.sources import (
    Row,
    Tables,
    bounds_ms,
    interval,
    rows,
    sound,
    step_ms,
)

TITLE: Final = "Balance over time"
POINTS: Final = 400
BROKERS: Final = 60
"""The most brokers in the heat map: those that differ most from the mean."""

EVEN: Final = 1.15
"""Max/mean of a balanced cluster, the same as in the simulator."""

UNEVEN: Final = 1.4


@dataclass(frozen=True, kw_only=True)
class Balance:
    """Intervals of ``step_ms`` with the cluster's load, days, and some brokers' load by hour.

    ``measure`` is the measure of load: the leader's scores, or usage if no leader recorded scores.
    ``moves`` are the numbers of moved bundles by the beginning of the interval.
    """

    measure: str
    step_ms: int
    points: Sequence[Row]
    days: Sequence[Row]
    map: "LoadMap | None" = None
    moves: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LoadMap:
    """The load of each of ``brokers`` in each of ``hours_ms``; None if unknown."""

    hours_ms: Sequence[int]
    brokers: Sequence[str]
    loads: Sequence[Sequence[float | None]]
    all_brokers: int


def read(tables: Tables) -> Balance | None:
    minutes = sound(tables.table("cluster_minutes"))
    bounds = bounds_ms(minutes, "minute")
    if bounds is None:
        return None
    has_scores = minutes.where("score_mean IS NOT NULL").limit(1).count()
    measure = "score" if has_scores else "usage"
    step = step_ms(*bounds, MINUTE_MS, POINTS)
    highest = F.col(f"{measure}_mean") * F.col(f"{measure}_max_over_mean")
    known = minutes.where(f"{measure}_mean IS NOT NULL")
    points = known.groupBy(interval("minute", step).alias("at_ms")).agg(
        F.avg(f"{measure}_mean").alias("mean"),
        F.max(highest).alias("highest"),
        F.min(highest - F.col(f"{measure}_spread")).alias("lowest"),
        F.avg(f"{measure}_max_over_mean").alias("max_over_mean"),
        F.avg(f"{measure}_std_over_mean").alias("std_over_mean"),
        *(F.avg(f"{rate}_mean").alias(rate) for rate in ("msgs_in_per_s", "msgs_out_per_s")),
    )
    days = known.groupBy(F.date_format("date", "yyyy-MM-dd").alias("day")).agg(
        F.count("*").alias("minutes"),
        F.avg(f"{measure}_mean").alias("mean"),
        F.max(highest).alias("highest"),
        F.avg(f"{measure}_max_over_mean").alias("max_over_mean"),
        F.percentile_approx(f"{measure}_max_over_mean", 0.95, 1000).alias("max_over_mean_p95"),
        F.avg((F.col(f"{measure}_max_over_mean") > EVEN).cast("double")).alias("uneven"),
        F.avg(F.col("msgs_in_per_s_mean") + F.col("msgs_out_per_s_mean")).alias("msgs_per_s"),
    )
    last_days = days.orderBy(F.desc("day")).limit(62)
    moves = _moves(tables, step) if tables.made("moves") else {}
    return Balance(
        measure=measure,
        step_ms=step,
        points=rows(points.orderBy("at_ms")),
        days=rows(last_days.orderBy("day")),
        moves=moves,
        map=_map(tables),
    )


def _moves(tables: Tables, step: int) -> dict[int, int]:
    ordered = tables.table("move_effects").where("outcome IN ('moved', 'placed')")
    counted = ordered.groupBy(interval("ordered_at", step).alias("at_ms")).count()
    return {row["at_ms"]: row["count"] for row in rows(counted)}


def _map(tables: Tables) -> LoadMap | None:
    hours = sound(tables.table("broker_hours")).withColumn(
        "load",
        F.greatest(
            "cpu_fraction_mean", "bandwidth_in_fraction_mean", "bandwidth_out_fraction_mean"
        ),
    )
    bounds = bounds_ms(hours, "hour")
    if bounds is None:
        return None
    step = step_ms(*bounds, HOUR_MS, POINTS // 2)
    cells = hours.groupBy("broker", interval("hour", step).alias("at_ms")).agg(
        F.avg("load").alias("load")
    )
    mean = cells.groupBy("at_ms").agg(F.avg("load").alias("mean"))
    odd = (
        cells.join(mean, "at_ms")
        .groupBy("broker")
        .agg(F.avg(F.abs(F.col("load") - F.col("mean"))).alias("off"))
    )
    chosen = odd.orderBy(F.desc_nulls_last("off"), "broker").limit(BROKERS)
    every = rows(cells.join(F.broadcast(chosen.select("broker")), "broker"))
    brokers = sorted({row["broker"] for row in every})
    hours_ms = list(range(min(r["at_ms"] for r in every), max(r["at_ms"] for r in every) + 1, step))
    known = {(row["broker"], row["at_ms"]): row["load"] for row in every}
    return LoadMap(
        hours_ms=hours_ms,
        brokers=brokers,
        loads=[[known.get((broker, at_ms)) for at_ms in hours_ms] for broker in brokers],
        all_brokers=odd.count(),
    )


def show(found: Balance) -> Part:
    charts = [_over_time(found).html()]
    if found.map is not None:
        charts.append(_heat(found.map).html())
    return Part(
        title=TITLE,
        body=[*charts, figures("The figures by day", _days(found))],
        findings=[_finding(found)],
    )


def _finding(found: Balance) -> Finding:
    last = found.days[-1]
    ratio = last["max_over_mean"]
    text = (
        f"On {last['day']} the most loaded broker had {plain(ratio)} times the mean load of "
        f"{percent(last['mean'])} on average, and was at {percent(last['highest'])} at most"
    )
    if ratio is not None and ratio > UNEVEN:
        return Finding(Weight.ACT, f"The cluster is uneven. {text}.")
    if ratio is not None and ratio > EVEN:
        return Finding(Weight.LOOK, f"The cluster is not quite even. {text}.")
    return Finding(Weight.FINE, f"The cluster is even. {text}.")


def _over_time(found: Balance) -> Chart:
    times = [on_axis(row["at_ms"]) for row in found.points]
    data: list[Mapping[str, Json]] = [
        line(times, [row["highest"] for row in found.points], "highest broker", "#c2410c"),
        line(times, [row["mean"] for row in found.points], "mean of brokers", "#0b62c4"),
        line(times, [row["lowest"] for row in found.points], "lowest broker", "#7d8793"),
    ]
    if found.moves:
        counts = [found.moves.get(row["at_ms"], 0) for row in found.points]
        data.append({**bars(times, counts, "moves"), "yaxis": "y2"})
    what = "scores as the leader computes them" if found.measure == "score" else "usage"
    return Chart(
        title="Load of the cluster's brokers",
        summary=f"Highest, mean and lowest {what}, as a part of capacity, in intervals of "
        f"{span(found.step_ms / 1000)}; below, how many bundles moved. The closer the lines, the "
        "more even the cluster.",
        data=data,
        layout=layout(**_axes(moves=bool(found.moves))),
        height_px=460,
    )


def _axes(*, moves: bool) -> dict[str, object]:
    load = {"title": {"text": "load, % of capacity"}, "tickformat": ".0%", "rangemode": "tozero"}
    if not moves:
        return {"yaxis": load}
    return {
        "yaxis": {**load, "domain": [0.27, 1]},
        "yaxis2": {"title": {"text": "moves"}, "domain": [0, 0.2], "rangemode": "tozero"},
        "xaxis": {"type": "date", "anchor": "y2"},
    }


def _heat(found: LoadMap) -> Chart:
    shown_all = len(found.brokers) == found.all_brokers
    which = (
        "All brokers"
        if shown_all
        else (f"The {len(found.brokers)} of {found.all_brokers} brokers that differ most")
    )
    return Chart(
        title="Load of each broker",
        summary=f"{which}, one row each: the highest of CPU and both bandwidths as a part of "
        "capacity, mean by the hour. A row that stays darker than the others is a broker that "
        "is always more loaded.",
        data=[
            {
                "type": "heatmap",
                "x": [on_axis(at_ms) for at_ms in found.hours_ms],
                "y": [shown(broker) for broker in found.brokers],
                "z": [numbers(_known(row)) for row in found.loads],
                "zmin": 0,
                "colorscale": SCALE,
                "colorbar": {"tickformat": ".0%", "thickness": 12, "title": {"text": "load"}},
                "hovertemplate": "%{y}<br>%{x}<br>%{z:.1%}<extra></extra>",
            }
        ],
        layout=layout(yaxis={"type": "category", "autorange": "reversed"}, xaxis={"type": "date"}),
        height_px=max(260, 90 + 18 * len(found.brokers)),
    )  # fmt: skip


def _known(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _days(found: Balance) -> Html:
    columns = [
        Column(name="day", unit="UTC"),
        Column(name="mean load", unit="% of capacity"),
        Column(name="highest load", unit="% of capacity", best=Best.LEAST),
        Column(name="max/mean", explanation="Highest over mean of brokers.", best=Best.LEAST),
        Column(name="max/mean p95", explanation="95 % of the minutes are at or below."),
        Column(name="uneven", unit="% of minutes", explanation=f"Max/mean above {EVEN}."),
        Column(name="messages", unit="per second, in and out"),
    ]
    cells = [
        [
            Cell(row["day"], note=many(row["minutes"], "minute")),
            *(Cell(percent(row[name], 1), row[name]) for name in ("mean", "highest")),
            *(Cell(plain(row[name]), row[name]) for name in ("max_over_mean", "max_over_mean_p95")),
            Cell(percent(row["uneven"]), row["uneven"]),
            Cell(scaled(row["msgs_per_s"], "/s"), row["msgs_per_s"]),
        ]
        for row in reversed(found.days)
    ]
    return table("Balance by day, the last one first", columns, cells)
