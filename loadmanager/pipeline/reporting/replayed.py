"""Scores of the replay: effect of other strategies and settings on the recorded traffic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Best, Cell, Chart, Column, Html, Json, numbers, shown, table, tag
from loadmanager.pipeline.replay.advice import Advice, Verdict
from loadmanager.pipeline.replay.combinations import default_pair
from loadmanager.pipeline.replay.trust import Level
from loadmanager.pipeline.reporting.formats import (
    COLOURS,
    GREY,
    UNKNOWN,
    layout,
    many,
    percent,
    plain,
)
from loadmanager.pipeline.reporting.parts import Finding, Part, Weight
from loadmanager.pipeline.reporting.sources import Row, Tables, one_row, rows

TITLE: Final = "What other strategies would have done"
BEST: Final = 5
_DRAWN: Final = 40
_WEIGHTS: Final = {
    Verdict.TRY: Weight.ACT,
    Verdict.STAY: Weight.FINE,
    Verdict.NONE: Weight.LACKING,
}


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Combinations by rank, including the recorded rounds, and the advice of the replay.

    ``bound`` is the mean lower bound of the largest load; None if no leader recorded it.
    """

    scores: Sequence[Row]
    trust: Mapping[int, Row]
    count: int
    advice: Advice
    bound: float | None = None


def read(tables: Tables) -> Replayed | None:
    """Return the input of this part; None if the replay was made by a version without advice."""
    advice = (tables.store.facts("replay") or {}).get("advice")
    if advice is None:
        return None
    scores = tables.table("replay_scores")
    wanted = (F.col("rank") <= _DRAWN) | (F.col("shedder") == "") | _is_default()
    first = rows(scores.where(wanted).orderBy("rank"))
    named = [row["combination"] for row in first]
    trust = rows(tables.table("replay_trust").where(F.col("combination").isin(named)))
    return Replayed(
        scores=first,
        trust={row["combination"]: row for row in trust},
        count=scores.count(),
        advice=Advice.of(advice),
        bound=one_row(tables.table("optimality").agg(F.avg("bound").alias("bound")))["bound"],
    )


def _is_default() -> SparkColumn:
    return F.concat_ws("+", "shedder", "placement") == "+".join(default_pair())


def show(found: Replayed) -> Part:
    advice = found.advice
    behind = [
        tag(kind, text)
        for what, why in advice.behind.items()
        for kind, text in (("dt", what), ("dd", why))
    ]
    body = [tag("dl", *behind)] if behind else []
    if found.scores:
        body += [_chart(found).html(), _table(found)]
    evidence = next(iter(found.trust.values()), None)
    if evidence is not None:
        body.append(tag("p", _evidence(evidence)))
    weight = _WEIGHTS[advice.verdict]
    if weight is Weight.ACT and advice.sure is Level.LOW:
        weight = Weight.LOOK
    return Part(title=TITLE, body=body, findings=[Finding(weight, advice.text)])


def _evidence(row: Row) -> str:
    text = f"{many(row['rounds'], 'round')} in the history, {row['refused']:,} of them refused"
    if row["bases"]:
        text += (
            f"; {row['reproduced']:,} of {row['bases']:,} base rounds were decided again exactly "
            "as recorded"
        )
    if row["cpu_changed_error"] is not None:
        off = percent(row["cpu_changed_error"], 1)
        text += f"; CPU of brokers whose bundles changed was predicted within {off} of capacity"
    return f"{text}."


def _chart(found: Replayed) -> Chart:
    data: list[Mapping[str, Json]] = []
    for name, colour, symbol, mine in (
        ("other strategies", COLOURS[0], "circle", [r for r in found.scores if r["shedder"]]),
        ("in force", COLOURS[1], "star", [r for r in found.scores if not r["shedder"]]),
    ):
        if mine:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "x": numbers([row["moved_per_hour"] for row in mine], 4),
                    "y": numbers([row["max_over_mean"] for row in mine], 4),
                    "text": [shown(row["name"]) for row in mine],
                    "marker": {
                        "color": colour,
                        "symbol": symbol,
                        "size": 14 if symbol == "star" else 9,
                        "opacity": 0.85,
                        "line": {"width": 1, "color": GREY},
                    },
                    "hovertemplate": "%{text}<br>max/mean %{y:.3f}, moved %{x:.3f} of the traffic "
                    "each hour<extra></extra>",
                }
            )
    return Chart(
        title="Balance and what it costs",
        summary="How uneven brokers would have been (largest load over the mean, over time) "
        "against how much of the cluster's traffic would have moved each hour. Down and to the "
        "left is better. What was in force is drawn from the recorded owners and spread anew.",
        data=data,
        layout=layout(
            xaxis={
                "title": {"text": "moved, multiple of the traffic an hour"},
                "rangemode": "tozero",
            },
            yaxis={"title": {"text": "max/mean"}},
        ),
    )


def _listed(found: Replayed) -> list[Row]:
    tried = [row for row in found.scores if row["shedder"]]
    default = [row for row in tried if (row["shedder"], row["placement"]) == default_pair()]
    chosen = [*tried[:BEST], *default[:1]]
    kept = {row["combination"] for row in chosen}
    return [row for row in found.scores if not row["shedder"] or row["combination"] in kept]


def _table(found: Replayed) -> Html:
    columns = [
        Column(name="strategies and settings"),
        Column(
            name="penalty", explanation="What the order is by; less is better.", best=Best.LEAST
        ),
        Column(name="max/mean", best=Best.LEAST),
        Column(name="p95", explanation="Max/mean, 95 % of the time at most.", best=Best.LEAST),
        Column(name="largest load", unit="mean", best=Best.LEAST),
        Column(name="overload", unit="% of time", best=Best.LEAST),
        Column(name="moves", unit="an hour", best=Best.LEAST),
        Column(name="back", unit="an hour", best=Best.LEAST),
        Column(name="reconnects", unit="an hour", best=Best.LEAST),
        Column(name="trust"),
    ]
    cells = [_cells(found, row) for row in _listed(found)]
    if found.bound is not None:
        bound = (UNKNOWN, "1", "1", percent(found.bound, 1), *[UNKNOWN] * 5)
        cells.append([Cell("bound", tone="known"), *(Cell(text, tone="number") for text in bound)])
    caption = f"The best {BEST} of {many(found.count, 'row')}, the default, and what was in force"
    return table(caption, columns, cells)


def _cells(found: Replayed, row: Row) -> list[Cell]:
    trust = found.trust.get(row["combination"], {})
    hours = row["covered_s"] / 3600
    fractions = ("largest", "overload_fraction")
    return [
        Cell(row["name"], tone="" if row["shedder"] else "known"),
        *(Cell(plain(row[n]), row[n]) for n in ("penalty", "max_over_mean", "max_over_mean_p95")),
        *(Cell(percent(row[name], 1), row[name]) for name in fractions),
        *(
            Cell(plain(row[n] / hours, 2), row[n] / hours)
            for n in ("moves", "returned", "moved_connections")
        ),
        Cell(trust.get("level", ""), hover=trust.get("because") or ""),
    ]
