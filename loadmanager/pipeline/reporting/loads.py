"""Loads over time: balance, the distance from the optimum, and the hottest bundles."""

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Best, Chart, Html, Json, shown, tag
from loadmanager.core.bounds import HOUR_MS, MINUTE_MS
from loadmanager.pipeline.reporting.formats import (
    COLOURS,
    GREY,
    axis,
    bars,
    heat,
    layout,
    line,
    many,
    messages,
    on_axis,
    percent,
    percent_1,
    plain,
    points,
    span,
    volume,
    whole,
)
from loadmanager.pipeline.reporting.parts import (
    Finding,
    Section,
    Show,
    Shown,
    Weight,
    figures,
    grid,
)
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

POINTS: Final = 400
BROKERS: Final = 60
"""The most brokers in the heat map: those that differ most from the mean."""

EVEN: Final = 1.15
"""Max/mean of a balanced cluster, the same as in the simulator."""

UNEVEN: Final = 1.4


def _read_balance(tables: Tables) -> Row | None:
    """Return intervals of ``step_ms`` with the cluster's load, days, and brokers' load by hour.

    ``measure`` is the measure of load: the leader's scores, or usage if no leader recorded scores.
    ``moves`` are the numbers of moved bundles by the beginning of the interval.
    """
    minutes = sound(tables.table("cluster_minutes"))
    bounds = bounds_ms(minutes, "minute")
    if bounds is None:
        return None
    measure = "score" if minutes.where("score_mean IS NOT NULL").limit(1).count() else "usage"
    step = step_ms(*bounds, MINUTE_MS, POINTS)
    highest = F.col(f"{measure}_mean") * F.col(f"{measure}_max_over_mean")
    ratio, mean = F.col(f"{measure}_max_over_mean"), F.avg(f"{measure}_mean").alias("mean")
    known = minutes.where(f"{measure}_mean IS NOT NULL")
    points_of = known.groupBy(interval("minute", step).alias("at_ms")).agg(
        mean,
        F.max(highest).alias("highest"),
        F.min(highest - F.col(f"{measure}_spread")).alias("lowest"),
    )
    days = known.groupBy(F.date_format("date", "yyyy-MM-dd").alias("day")).agg(
        mean,
        F.count("*").alias("minutes"),
        F.max(highest).alias("highest"),
        F.avg(ratio).alias("max_over_mean"),
        F.percentile_approx(ratio, 0.95, 1000).alias("max_over_mean_p95"),
        F.avg((ratio > EVEN).cast("double")).alias("uneven"),
        F.avg(F.col("msgs_in_per_s_mean") + F.col("msgs_out_per_s_mean")).alias("msgs_per_s"),
    )
    last_days = days.orderBy(F.desc("day")).limit(62)
    moves: dict[int, int] = {}
    if tables.made("moves"):
        moved = tables.table("move_effects").where("outcome IN ('moved', 'placed')")
        counted = moved.groupBy(interval("ordered_at", step).alias("at_ms")).count()
        moves = {row["at_ms"]: row["count"] for row in rows(counted)}
    return {
        "measure": measure,
        "step_ms": step,
        "points": rows(points_of.orderBy("at_ms")),
        "days": rows(last_days.orderBy("day")),
        "moves": moves,
        "map": _map(tables),
    }


def _map(tables: Tables) -> Row | None:
    """Return the load of each of ``brokers`` in each of ``hours_ms``; None if unknown."""
    fractions = (f"{name}_fraction_mean" for name in ("cpu", "bandwidth_in", "bandwidth_out"))
    hours = sound(tables.table("broker_hours")).withColumn("load", F.greatest(*fractions))
    bounds = bounds_ms(hours, "hour")
    if bounds is None:
        return None
    step = step_ms(*bounds, HOUR_MS, POINTS // 2)
    load = F.avg("load").alias("load")
    cells = hours.groupBy("broker", interval("hour", step).alias("at_ms")).agg(load)
    mean = cells.groupBy("at_ms").agg(F.avg("load").alias("mean"))
    off = F.avg(F.abs(F.col("load") - F.col("mean"))).alias("off")
    odd = cells.join(mean, "at_ms").groupBy("broker").agg(off)
    chosen = odd.orderBy(F.desc_nulls_last("off"), "broker").limit(BROKERS)
    every = rows(cells.join(F.broadcast(chosen.select("broker")), "broker"))
    brokers = sorted({row["broker"] for row in every})
    hours_ms = list(range(min(r["at_ms"] for r in every), max(r["at_ms"] for r in every) + 1, step))
    known = {(row["broker"], row["at_ms"]): row["load"] for row in every}
    return {
        "hours_ms": hours_ms,
        "brokers": brokers,
        "loads": [[known.get((broker, at_ms)) for at_ms in hours_ms] for broker in brokers],
        "all_brokers": odd.count(),
    }


def _show_balance(found: Row) -> Shown:
    charts = [_over_time(found).html()]
    if found["map"] is not None:
        charts.append(_heat(found["map"]).html())
    days = grid(
        "Balance by day, the last one first",
        list(reversed(found["days"])),
        Show("day", "day", unit="UTC", more=lambda row: {"note": many(row["minutes"], "minute")}),
        Show("mean load", "mean", percent_1, "% of capacity"),
        Show("highest load", "highest", percent_1, "% of capacity", best=Best.LEAST),
        Show("max/mean", "max_over_mean", plain, "", "Highest over mean of brokers.", Best.LEAST),
        Show(
            "max/mean p95", "max_over_mean_p95", plain, why="95 % of the minutes are at or below."
        ),
        Show("uneven", "uneven", percent, "% of minutes", f"Max/mean above {EVEN}."),
        Show("messages", "msgs_per_s", messages, "per second, in and out"),
    )
    return [*charts, figures("The figures by day", days)], [_of_last_day(found["days"][-1])]


def _of_last_day(last: Row) -> Finding:
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


def _over_time(found: Row) -> Chart:
    times = [on_axis(row["at_ms"]) for row in found["points"]]
    data = [
        line(times, [row[name] for row in found["points"]], label, colour)
        for name, label, colour in (
            ("highest", "highest broker", COLOURS[1]),
            ("mean", "mean of brokers", COLOURS[0]),
            ("lowest", "lowest broker", GREY),
        )
    ]
    load, axes = axis("load, % of capacity", ".0%", zero=True), {}
    if found["moves"]:
        counts = [found["moves"].get(row["at_ms"], 0) for row in found["points"]]
        data.append(bars(times, counts, "moves", yaxis="y2"))
        load["domain"] = [0.27, 1]
        axes = {
            "yaxis2": axis("moves", zero=True, domain=[0, 0.2]),
            "xaxis": {"type": "date", "anchor": "y2"},
        }
    what = "scores as the leader computes them" if found["measure"] == "score" else "usage"
    return Chart(
        title="Load of the cluster's brokers",
        summary=f"Highest, mean and lowest {what}, as a part of capacity, in intervals of "
        f"{span(found['step_ms'] / 1000)}; below, how many bundles moved. The closer the lines, "
        "the more even the cluster.",
        data=data,
        layout=layout(yaxis=load, **axes),
        height_px=460,
    )


def _heat(found: Row) -> Chart:
    brokers = found["brokers"]
    which = "All brokers"
    if len(brokers) < found["all_brokers"]:
        which = f"The {len(brokers)} of {found['all_brokers']} brokers that differ most"
    return Chart(
        title="Load of each broker",
        summary=f"{which}, one row each: the highest of CPU and both bandwidths as a part of "
        "capacity, mean by the hour. A row that stays darker than the others is a broker that "
        "is always more loaded.",
        data=[
            heat(
                [on_axis(at_ms) for at_ms in found["hours_ms"]],
                [shown(broker) for broker in brokers],
                found["loads"],
                {"tickformat": ".0%", "title": {"text": "load"}},
                "%{y}<br>%{x}<br>%{z:.1%}",
            )
        ],
        layout=layout(yaxis={"type": "category", "autorange": "reversed"}, xaxis={"type": "date"}),
        height_px=max(260, 90 + 18 * len(brokers)),
    )


BALANCE: Final = Section("Balance over time", "rollup", _read_balance, _show_balance)


NEAR: Final = 0.15
"""The largest mean gap that counts as good."""

FAR: Final = 0.4

WORTH: Final = 0.05
"""A smaller mean regret is negligible."""

NOISE: Final = 0.05
"""Fraction of the limit: with a lower bound the gap is mostly measurement noise."""

_INTERVALS: Final = 300
_WORDS: Final = (
    "A gap of 20 % means that the fullest broker used a fifth more than the least that was "
    "possible with the bundles as they were. Regret is how far the active strategy's gap was "
    "above another one's at the same rounds: above 0 the other would have been closer to the best. "
    "What a strategy would have had is a prediction, in which moves cost nothing."
)


def _read_distance(tables: Tables) -> Row:
    """Return the gap of the cluster in intervals of ``step_ms``, and that of strategies beside.

    ``total`` is over all rounds; it is None if no leader recorded any. ``shadows`` has a row for
    each strategy, ``regrets`` one for each strategy and interval; both are empty where none decided
    beside the active one.
    """
    days = bounds_ms(sound(tables.table("broker_load")), "at")
    gaps = _within(tables.table("optimality"), days)
    bounds = bounds_ms(gaps, "at")
    if bounds is None:
        return {"total": None}
    step = step_ms(*bounds, MINUTE_MS, _INTERVALS)
    by_time = interval("at", step).alias("at_ms")
    names = ("largest", "bound", "bound_within_policies", "gap", "gap_within_policies")
    means = [F.avg(name).alias(name) for name in names]
    last = F.percentile_approx("gap", 0.95, 1000).alias("gap_p95")
    shadows = _within(tables.table("shadows"), days).withColumn(
        "regret", F.col("active_gap") - F.col("gap")
    )
    regret = F.avg("regret").alias("regret")
    by_strategy = shadows.groupBy("strategy").agg(
        F.count("*").alias("rounds"), F.avg("gap").alias("gap"), regret, last,
        *(F.sum(name).alias(name) for name in ("moves", "moved", "active_moves", "active_moved")),
    )  # fmt: skip
    over_time = shadows.groupBy("strategy", by_time).agg(regret)
    return {
        "step_ms": step,
        "points": rows(gaps.groupBy(by_time).agg(*means).orderBy("at_ms")),
        "total": one_row(gaps.agg(F.count("*").alias("rounds"), *means, last)),
        "shadows": rows(by_strategy.orderBy(F.desc("regret"), "strategy")),
        "regrets": rows(over_time.orderBy("strategy", "at_ms")),
    }


def _within(frame: DataFrame, bounds: tuple[int, int] | None) -> DataFrame:
    """Return the rows within the time of the reports, without those of wrong clocks."""
    return frame.where(F.unix_millis("at").between(*bounds or (1, 0)))


def _show_distance(found: Row) -> Shown:
    total = found["total"]
    if total is None:
        text = (
            "No leader recorded how far the cluster was from the best possible. Sidecars from 0.2 "
            "on write it to their history after each round; simulations and attach do not."
        )
        return [tag("p", text)], ()
    body, findings = [_distance_over_time(found).html()], [_of_gap(total)]
    if found["shadows"]:
        body += [_strategies(total, found["shadows"]), tag("p", _WORDS)]
        findings.append(_of_shadows(found["shadows"]))
    else:
        none = "No strategy decided beside the active one: [shedding] shadows names them."
        body.append(tag("p", none))
    return body, findings


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


def _distance_over_time(found: Row) -> Chart:
    times = [on_axis(row["at_ms"]) for row in found["points"]]
    data: list[Mapping[str, Json]] = [
        line(times, [row[name] for row in found["points"]], label, colour)
        for name, label, colour in (
            ("largest", "fullest broker", COLOURS[1]),
            ("bound_within_policies", "least within policies", GREY),
            ("bound", "least possible", COLOURS[0]),
        )
    ]
    text = "The space between the lines is the gap."
    use = axis("use, % of limit", ".0%", zero=True)
    axes: dict[str, Json] = {"xaxis": {"type": "date"}}
    if found["shadows"]:
        text += " Below, the regret of each strategy beside the active one; above 0 is better."
        use["domain"] = [0.42, 1]
        axes = {
            "yaxis2": axis("regret", ".0%", domain=[0, 0.34]),
            "xaxis": {"type": "date", "anchor": "y2"},
        }
    for number, one in enumerate(found["shadows"]):
        mine = [row for row in found["regrets"] if row["strategy"] == one["strategy"]]
        at, regrets = [on_axis(row["at_ms"]) for row in mine], [row["regret"] for row in mine]
        colour = COLOURS[2 + number % (len(COLOURS) - 2)]
        data.append({**line(at, regrets, f"regret: {one['strategy']}", colour), "yaxis": "y2"})
    return Chart(
        title="The fullest broker, and the least that is possible",
        summary="Use of CPU or network by the fullest broker, as a part of its limit, and the "
        "proven lower bound of that, wherever the bundles are and wherever policies let them be, "
        f"in intervals of {span(found['step_ms'] / 1000)}. {text}",
        data=data,
        layout=layout(yaxis=use, **axes),
        height_px=460 if found["shadows"] else 320,
    )


def _strategies(total: Row, shadows: Sequence[Row]) -> Html:
    longest = max(shadows, key=lambda one: one["rounds"])
    active = {
        **total,
        "strategy": "the active one",
        "regret": None,
        "moves": longest["active_moves"],
        "moved": longest["active_moved"],
    }
    return grid(
        "Strategies beside the active one, the greatest regret first",
        [active, *shadows],
        Show("strategy", "strategy", more=lambda row: {"note": many(row["rounds"], "round")}),
        Show("gap", "gap", percent_1, "mean", best=Best.LEAST),
        Show("gap p95", "gap_p95", percent_1, why="95 % of the rounds are at or below."),
        Show("regret", "regret", percent_1, "mean", "How far the active one's gap is above it."),
        Show("moves", "moves", whole, "for load", best=Best.LEAST),
        Show("moved", "moved", plain, "times all traffic", best=Best.LEAST),
    )


DISTANCE: Final = Section(
    "Distance from the best possible", "ingest", _read_distance, _show_distance
)


RANKED: Final = 20
_HOT: Final = 0.10
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def _read_hottest(tables: Tables) -> Row | None:
    """Return the first of both rankings, and messages per second by hour of the week."""
    ranking = tables.table("bundle_ranking").where(F.col("rank") <= RANKED)
    found = rows(ranking.orderBy("rank"))
    if not found:
        return None
    # In Spark, Monday is day 2 of the week.
    hour_of_week = (F.dayofweek("minute") + 5) % 7 * 24 + F.hour("minute")
    msgs = F.avg(F.col("msgs_in_per_s_mean") + F.col("msgs_out_per_s_mean")).alias("msgs_per_s")
    week = tables.table("cluster_minutes").groupBy(hour_of_week.alias("hour")).agg(msgs)
    return {
        "hottest": [row for row in found if row["ranking"] == "hottest"],
        "volatile": [row for row in found if row["ranking"] != "hottest"],
        "week": rows(week.orderBy("hour")),
    }


def _show_hottest(found: Row) -> Shown:
    hottest, volatile = found["hottest"], found["volatile"]
    body = [
        _bars(hottest).html(),
        figures("The hottest bundles in figures", _ranking("Hottest bundles", hottest)),
        _spread(volatile).html(),
        figures("The most volatile bundles in figures", _ranking("Most volatile", volatile)),
    ]
    if len(found["week"]) > 24:  # noqa: PLR2004 - more than a day
        body.append(_week(found["week"]).html())
    first = hottest[0]
    text = (
        f"The hottest bundle, {first['bundle']}, carries {percent(first['share'], 1)} of the "
        f"cluster's traffic"
    )
    if first["share"] > _HOT:
        text += ": no move can make that even; consider a split"
    return body, [Finding(Weight.LOOK if first["share"] > _HOT else Weight.FINE, f"{text}.")]


def _bars(hottest: Sequence[Row]) -> Chart:
    upwards = list(reversed(hottest))
    drawn = bars(
        [f"{row['rank']}" for row in upwards], [row["share"] for row in upwards], "", COLOURS[0],
        orientation="h",
        text=[shown(row["bundle"]) for row in upwards],
        textposition="auto",
        insidetextanchor="start",
        hovertemplate="%{text}<br>%{x:.2%}<extra></extra>",
    )  # fmt: skip
    return Chart(
        title="Hottest bundles",
        summary="The larger of a bundle's parts of all messages and of all bytes of the cluster, "
        f"in percent; the first {len(hottest)}.",
        data=[{**drawn, "x": drawn["y"], "y": drawn["x"]}],
        layout=layout(
            xaxis=axis("part of the cluster's traffic, %", ".1%"),
            yaxis=axis("rank", type="category"),
        ),
        height_px=90 + 26 * len(hottest),
    )


def _spread(volatile: Sequence[Row]) -> Chart:
    return Chart(
        title="Most volatile bundles",
        summary="Mean messages per second and their standard deviation from minute to minute, "
        "both in and out; the further up, the more a bundle swings.",
        data=[
            points(
                [row["msgs_per_s_mean"] for row in volatile],
                [row["msgs_per_s_std"] for row in volatile],
                "",
                COLOURS[1],
                text=[shown(row["bundle"]) for row in volatile],
                hovertemplate="%{text}<br>mean %{x:,.0f}/s, deviation %{y:,.0f}/s<extra></extra>",
            )
        ],
        layout=layout(
            xaxis=axis("mean, messages/s", zero=True),
            yaxis=axis("deviation, messages/s", zero=True),
        ),
    )


def _week(week: Sequence[Row]) -> Chart:
    by_hour = {row["hour"]: row["msgs_per_s"] for row in week}
    return Chart(
        title="The cluster's week",
        summary="Messages per second in and out, mean of each hour of the week in UTC. Empty "
        "fields were never seen.",
        data=[
            heat(
                list(range(24)),
                list(_DAYS),
                [[by_hour.get(day * 24 + hour) for hour in range(24)] for day in range(7)],
                {"title": {"text": "msgs/s"}},
                "%{y} %{x}:00 UTC<br>%{z:,.0f} messages/s",
            )
        ],
        layout=layout(yaxis={"autorange": "reversed"}, xaxis=axis("hour of the day, UTC", dtick=3)),
        height_px=320,
    )


def _ranking(caption: str, ranked: Sequence[Row]) -> Html:
    return grid(
        caption,
        ranked,
        Show("rank", "rank"),
        Show("bundle", "bundle"),
        Show("part of traffic", "share", lambda share: percent(share, 2), "%",
             "The larger of messages and bytes."),
        Show("messages", "msgs_per_s_mean", messages, "per second, in and out"),
        Show("bytes", "bytes_per_s_mean", volume, "per second, in and out"),
        Show("deviation", "msgs_per_s_std", messages, "messages/s", "From minute to minute."),
        Show("deviation/mean", "msgs_std_over_mean", plain),
    )  # fmt: skip


HOTTEST: Final = Section(
    "Hottest and most volatile bundles", "rollup", _read_hottest, _show_hottest
)
