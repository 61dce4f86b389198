"""The quality of the cost model, and brokers that are differently fast by it."""

from collections.abc import Sequence
from functools import reduce
from statistics import median
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Chart, Html, numbers, shown
from loadmanager.pipeline.confidence import NORMAL_95
from loadmanager.pipeline.costs import PER, RATES, UNITS
from loadmanager.pipeline.reporting.formats import (
    COLOURS,
    GREY,
    axis,
    bars,
    diagonal,
    layout,
    named,
    of_class,
    percent,
    percent_1,
    plain,
    points,
    straight,
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
from loadmanager.pipeline.reporting.sources import Row, Tables, rows

SAMPLE: Final = 1200
_FULL: Final = 0.9
"""The usage of fuller minutes is only a lower bound of the demand."""

_LEAST_SECONDS: Final = 600.0
_CLOSE, _FAIR = 0.10, 0.20


def _terms(tables: Tables) -> list[Row]:
    return rows(tables.table("cost_terms").orderBy("broker_class", "resource", "rate"))


def _broker_hours(tables: Tables, terms: Sequence[Row]) -> DataFrame:
    """Return the measured and predicted use of CPU by broker and hour.

    Out: ``broker, broker_class, at_ms, used, by_traffic, background``: means over the
    minutes that are not full, in the unit of the resource. ``by_traffic`` leaves the
    background out; it is null for a class without terms.
    """
    minutes = (
        tables.table("broker_minutes")
        .where(f"cpu_limit > 0 AND cpu_usage_mean < {_FULL} * cpu_limit")
        .withColumn("connections_mean", F.col("producers_mean") + F.col("consumers_mean"))
        .withColumns({"used": F.col("cpu_usage_mean"), "by_traffic": _by_traffic(terms)})
    )
    hours = minutes.groupBy(
        "broker", "broker_class", F.unix_millis(F.date_trunc("hour", "minute")).alias("at_ms")
    )
    seconds = F.col("seconds")
    means = hours.agg(
        *(
            F.try_divide(F.sum(F.col(name) * seconds), F.sum(seconds)).alias(name)
            for name in ("used", "by_traffic")
        ),
        F.sum(seconds).alias("seconds"),
    ).where(seconds >= _LEAST_SECONDS)
    idle = (
        tables.table("backgrounds")
        .where("resource = 'cpu'")
        .select("broker", "broker_class", F.col("value").alias("background"))
    )
    return means.join(F.broadcast(idle), ["broker", "broker_class"], "left")


def _by_traffic(terms: Sequence[Row]) -> Column:
    by_class: dict[str, Column] = {}
    for row in terms:
        if row["resource"] == "cpu" and row["rate"] in RATES:
            rate = F.coalesce(F.col(f"{row['rate']}_mean"), F.lit(0.0))
            cost = rate * F.lit(row["value"] or 0.0)
            by_class[row["broker_class"]] = by_class.get(row["broker_class"], F.lit(0.0)) + cost
    return reduce(
        lambda found, one: F.when(F.col("broker_class") == one[0], one[1]).otherwise(found),
        by_class.items(),
        F.lit(None).cast("double"),
    )


def _read_quality(tables: Tables) -> Row | None:
    """Return terms, quality by class and resource, and some broker-hours."""
    terms = _terms(tables)
    quality = rows(tables.table("cost_quality").orderBy("resource", "broker_class"))
    if not terms and not quality:
        return None
    hours: list[Row] = []
    if tables.made("rollup"):
        known = _broker_hours(tables, terms).where("by_traffic IS NOT NULL")
        total = F.col("by_traffic") + F.coalesce("background", F.lit(0.0))
        drawn = known.orderBy(F.xxhash64("broker", "at_ms")).limit(SAMPLE)
        hours = rows(drawn.select("broker", "broker_class", "used", total.alias("predicted")))
    return {"terms": terms, "quality": quality, "hours": hours}


def _show_quality(found: Row) -> Shown:
    body = [
        grid(
            "How well the costs predicted what was held out",
            found["quality"],
            Show("resource", lambda row: named(row["resource"])),
            Show("class", "broker_class", of_class),
            Show("error", "mape", percent_1, "% of measured", "Mean, in held-out minutes."),
            Show("traffic shares", "baseline_mape", percent_1, "% of measured",
                 "The same of that rule."),
            Show("in interval", "coverage", percent_1, "% of minutes", "90 is as it should be."),
            Show("minutes", "minutes", whole, why="Of brokers, in all."),
            Show("remark", _remark),
        )
    ]  # fmt: skip
    body += [
        _typical(found["terms"], resource).html()
        for resource in ("cpu", "memory")
        if any(row["typical_usage"] for row in found["terms"] if row["resource"] == resource)
    ]
    if found["hours"]:
        body.append(_measured(found["hours"]).html())
    body.append(figures("All terms in figures", _in_figures(found["terms"])))
    return body, [_of_errors(found["quality"])]


def _of_errors(quality: Sequence[Row]) -> Finding:
    cpu = [row for row in quality if row["resource"] == "cpu" and row["mape"] is not None]
    if not cpu:
        why = next((row["refused"] for row in quality if row["refused"]), "")
        text = "No costs of CPU could be learned yet"
        return Finding(Weight.LACKING, f"{text}: {why}." if why else f"{text}.")
    worst = max(cpu, key=lambda row: float(row["mape"]))
    rule = worst["baseline_mape"]
    text = (
        f"The cost model predicts CPU within {percent(worst['mape'], 1)} on held-out days"
        f"{'' if rule is None else f' (the rule of traffic shares: {percent(rule, 1)})'}"
    )
    if worst["mape"] <= _CLOSE:
        return Finding(Weight.FINE, f"{text}.")
    weight = Weight.FINE if worst["mape"] <= _FAIR else Weight.LOOK
    return Finding(weight, f"{text}; more history, or more varied traffic, would make it better.")


def _remark(row: Row) -> str:
    if row["refused"]:
        return f"not learned: {row['refused']}"
    if row["drifted"]:
        return f"changed by {percent(row['drift'])} from the first half to the last"
    return ""


def _typical(terms: Sequence[Row], resource: str) -> Chart:
    mine = [row for row in terms if row["resource"] == resource]
    data = []
    for place, name in enumerate(sorted({row["broker_class"] for row in mine})):
        own = [row for row in mine if row["broker_class"] == name]
        # The ends of the intervals, for typical traffic.
        ends = {
            end: numbers([abs(row[end] - row["value"]) * _each(row) for row in own], 4)
            for end in ("low", "high")
        }
        error = {"type": "data", "color": GREY, "symmetric": False, "array": ends["high"]}
        data.append(
            bars(
                [row["rate"].removesuffix("_per_s").replace("_", " ") for row in own],
                [row["typical_usage"] for row in own],
                shown(of_class(name)),
                COLOURS[place % len(COLOURS)],
                error_y={**error, "arrayminus": ends["low"]},
            )
        )
    name, unit = named(resource), UNITS[resource]
    return Chart(
        title=f"{name[:1].upper()}{name[1:]}: what typical traffic costs",
        summary=f"What the mean traffic of each class of brokers costs of {name} ({unit}), by what "
        "it is for; the lines are 90 % intervals. A long line is a cost that is not well known.",
        data=data,
        layout=layout(barmode="group", yaxis=axis(unit, zero=True)),
    )


def _each(row: Row) -> float:
    return float(row["typical_usage"] / row["value"]) if row["value"] else 0.0


def _measured(hours: Sequence[Row]) -> Chart:
    data = []
    for place, name in enumerate(sorted({row["broker_class"] for row in hours})):
        own = [row for row in hours if row["broker_class"] == name]
        data.append(
            points(
                [row["used"] for row in own],
                [row["predicted"] for row in own],
                shown(of_class(name)),
                COLOURS[place % len(COLOURS)],
                text=[shown(row["broker"]) for row in own],
                hovertemplate="%{text}<br>measured %{x:.1f}, predicted %{y:.1f}<extra></extra>",
            )
        )
    return Chart(
        title="CPU of brokers: predicted and measured",
        summary="Percent of one core, mean of an hour of a broker, by its traffic and its "
        "background. On the dotted line a prediction is right. These hours include those that "
        "the costs were learned from; the table above shows those held out.",
        data=data,
        layout=layout(
            xaxis=axis("measured, % of one core", zero=True),
            yaxis=axis("predicted, % of one core", zero=True),
            shapes=[diagonal(max(max(row["used"], row["predicted"]) for row in hours))],
        ),
    )


def _in_figures(terms: Sequence[Row]) -> Html:
    def amount(name: str, row: Row) -> float | None:
        return None if row[name] is None else float(row[name] * PER[row["rate"]][0])

    return grid(
        "What some of each rate uses",
        terms,
        Show("resource", lambda row: named(row["resource"]),
             more=lambda row: {"note": UNITS[row["resource"]]}),
        Show("class", "broker_class", of_class),
        Show("for", lambda row: PER[row["rate"]][1]),
        Show("costs", lambda row: amount("value", row), plain),
        Show("90 % interval",
             lambda row: f"{plain(amount('low', row))} to {plain(amount('high', row))}"),
        Show("how sure", lambda row: row["verdict"] + (row["partners"] and
                                                       f" with {row['partners']}")),
    )  # fmt: skip


QUALITY: Final = Section("Quality of the cost model", "costs", _read_quality, _show_quality)


SPEEDS_SHOWN: Final = 40
_LEAST_HOURS: Final = 3
_DIFFERENT: Final = 0.15
_SPREAD: Final = 0.10
_LEAST_RANGE: Final = 0.2
_MARGIN: Final = 0.02


def _read_speeds(tables: Tables) -> Row | None:
    """Return the CPU of brokers relative to the costs of their class or, without, per message.

    ``slope`` is 1 for a broker that needs as much CPU for its traffic as its class, 1.3 for one
    that needs 30 % more. Without a cost model it is the CPU per message over the median of the
    class.
    """
    terms = _terms(tables) if tables.made("costs") else []
    found = _by_costs(tables, terms) if any(row["resource"] == "cpu" for row in terms) else []
    learned = bool(found)
    found = found or _by_messages(tables)
    if not found:
        return None
    odd = sorted(found, key=lambda row: (-abs(row["slope"] - 1.0), row["broker"]))
    return {"learned": learned, "brokers": odd[:SPEEDS_SHOWN], "all_brokers": len(found)}


def _by_costs(tables: Tables, terms: Sequence[Row]) -> list[Row]:
    hours = _broker_hours(tables, terms).where("by_traffic > 0")
    found = hours.groupBy("broker", "broker_class").agg(
        F.regr_slope("used", "by_traffic").alias("slope"),
        F.regr_r2("used", "by_traffic").alias("r2"),
        F.try_divide(F.stddev_samp("by_traffic"), F.avg("by_traffic")).alias("varied"),
        F.first("background").alias("background"),
        F.count("*").alias("hours"),
    )
    rest = F.try_divide(1 - F.col("r2"), F.col("r2") * F.greatest(F.col("hours") - 2, F.lit(1)))
    error = NORMAL_95 * F.abs("slope") * F.sqrt(rest)
    enough = f"hours >= {_LEAST_HOURS} AND varied >= {_SPREAD} AND slope IS NOT NULL"
    return rows(found.where(enough).withColumn("error", error).where("error IS NOT NULL"))


def _by_messages(tables: Tables) -> list[Row]:
    msgs = F.col("msgs_in_per_s_mean") + F.col("msgs_out_per_s_mean")
    minutes = tables.table("broker_minutes").where("cpu_limit > 0")
    found = minutes.groupBy("broker", "broker_class").agg(
        F.try_divide(F.sum("cpu_usage_mean"), F.sum(msgs)).alias("slope"),
        F.floor(F.count("*") / 60).alias("hours"),
        F.lit(None).cast("double").alias("error"),
        F.lit(None).cast("double").alias("background"),
    )
    each: dict[str, list[Row]] = {}
    for row in rows(found):
        if row["slope"]:
            each.setdefault(row["broker_class"], []).append(row)
    usual = {name: median(row["slope"] for row in own) for name, own in each.items()}
    return [
        {**row, "slope": row["slope"] / usual[name]} for name, own in each.items() for row in own
    ]


def _show_speeds(found: Row) -> Shown:
    table = grid(
        "Brokers, those furthest from their class first",
        found["brokers"],
        Show("broker", "broker"),
        Show("class", "broker_class", of_class),
        Show("CPU for its traffic", "slope", plain, "times its class",
             more=lambda row: {"tone": "bad" if _surely_odd(row) else ""}),
        Show("90 % interval", "error", plain, "±"),
        Show("background", "background", plain, "% of a core", "CPU without any traffic."),
        Show("hours", "hours", whole),
    )  # fmt: skip
    body = [_speeds_chart(found).html(), figures("The figures", table)]
    return body, [_of_speeds([row for row in found["brokers"] if _surely_odd(row)])]


def _surely_odd(row: Row) -> bool:
    off = abs(row["slope"] - 1.0)
    return bool(off > _DIFFERENT and (row["error"] is None or off - row["error"] > _DIFFERENT / 2))


def _of_speeds(odd: Sequence[Row]) -> Finding:
    slow = [row for row in odd if row["slope"] > 1]
    if slow:
        first = slow[0]
        others = "" if len(slow) == 1 else f", and {len(slow) - 1} more brokers do too"
        text = (
            f"{first['broker']} needs {percent(first['slope'] - 1)} more CPU than its class for "
            f"the same traffic{others}: "
            "look for a noisy neighbour or throttling, or give them a class of their own."
        )
        return Finding(Weight.LOOK, text)
    if odd:
        text = f"{odd[0]['broker']} needs {percent(1 - odd[0]['slope'])} less CPU than its class."
        return Finding(Weight.FINE, text)
    return Finding(Weight.FINE, "No broker needs clearly more CPU than its class for its traffic.")


def _speeds_chart(found: Row) -> Chart:
    upwards = sorted(found["brokers"], key=lambda row: float(row["slope"]))
    ends = [row["slope"] + sign * (row["error"] or 0.0) for row in upwards for sign in (-1, 1)]
    # Wide enough that small differences look small.
    within = [min(1 - _LEAST_RANGE, *ends) - _MARGIN, max(1 + _LEAST_RANGE, *ends) + _MARGIN]
    by = "CPU for its traffic, by the cost model of its class; the lines are 90 % intervals"
    if not found["learned"]:
        by = (
            "CPU for each message, over the median of its class (the job costs would compare "
            "brokers by all of their traffic)"
        )
    which = ""
    if len(upwards) < found["all_brokers"]:
        furthest = f"{len(upwards)} of {found['all_brokers']} brokers"
        which = f" The {furthest} that are furthest from 1."
    data: list[dict[str, Any]] = []
    for place, name in enumerate(sorted({row["broker_class"] for row in upwards})):
        own = [row for row in upwards if row["broker_class"] == name]
        drawn = points(
            [row["slope"] for row in own],
            [],
            shown(of_class(name)),
            COLOURS[place % len(COLOURS)],
            error_x={"type": "data", "array": numbers([row["error"] or 0.0 for row in own])},
            hovertemplate="%{y}: %{x:.2f} times its class<extra></extra>",
        )
        data.append({**drawn, "y": [shown(row["broker"]) for row in own]})
    brokers = [shown(row["broker"]) for row in upwards]
    return Chart(
        title="CPU needed for the same traffic",
        summary=f"{by}. Right of 1 a broker is slower than its class.{which}",
        data=data,
        layout=layout(
            xaxis=axis("times its class", range=within),
            yaxis={"type": "category", "categoryarray": brokers},
            shapes=[straight(x0=1, x1=1, yref="paper", y0=0, y1=1)],
        ),
        height_px=max(240, 110 + 20 * len(upwards)),
    )


SPEEDS: Final = Section("Brokers that are differently fast", "rollup", _read_speeds, _show_speeds)
