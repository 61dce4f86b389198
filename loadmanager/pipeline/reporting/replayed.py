"""Scores of the replay: what other strategies and settings would have done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from loadmanager.charts import Best, Cell, Chart, Column, Html, Json, numbers, shown, table, tag
from loadmanager.pipeline.reporting.looks import COLOURS, GREY, layout
from loadmanager.pipeline.reporting.parts import Finding, Part, Weight
from loadmanager.pipeline.reporting.sources import Row, Tables, rows
from loadmanager.pipeline.reporting.wording import many, percent, plain

TITLE: Final = "What other strategies would have done"
LISTED: Final = 40
_RECORDED: Final = -1
_BETTER: Final = 0.02
_TRUSTED: Final = frozenset({"high", "fair"})


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Combinations by rank, the recorded one among them, and how far each can be trusted."""

    scores: Sequence[Row]
    trust: Mapping[int, Row]
    count: int


def read(tables: Tables) -> Replayed | None:
    """Return what is to be seen; None if nothing could be replayed."""
    scores = tables.table("replay_scores")
    wanted = (F.col("rank") <= LISTED) | (F.col("combination") == _RECORDED)
    first = rows(scores.where(wanted).orderBy("rank"))
    if not first:
        return None
    named = [row["combination"] for row in first]
    trust = rows(tables.table("replay_trust").where(F.col("combination").isin(named)))
    return Replayed(
        scores=first, trust={row["combination"]: row for row in trust}, count=scores.count()
    )


def show(found: Replayed) -> Part:
    """Return the part."""
    body = [_chart(found).html(), _table(found)]
    evidence = next(iter(found.trust.values()), None)
    if evidence is not None:
        body.append(tag("p", _evidence(evidence)))
    return Part(title=TITLE, body=body, findings=[_finding(found)])


def _finding(found: Replayed) -> Finding:
    recorded = next((row for row in found.scores if row["combination"] == _RECORDED), None)
    others = [row for row in found.scores if row["combination"] != _RECORDED]
    if not others:
        return Finding(Weight.LACKING, "The replay has nothing to compare with what was recorded.")
    best = others[0]
    level = found.trust.get(best["combination"], {}).get("level", "none")
    told = f"In the replay {best['name']} does best ({_in_short(best)}"
    if recorded is None or best["gap"] is None:
        return Finding(Weight.FINE, f"{told}; trust in that: {level}).")
    told += f", against {_in_short(recorded)} as recorded; trust in that: {level})"
    if best["gap"] >= -_BETTER:
        return Finding(Weight.FINE, f"{told}: hardly better than what is in force.")
    if level in _TRUSTED:
        return Finding(Weight.ACT, f"{told}: try it, observing first.")
    return Finding(Weight.LOOK, f"{told}: worth a simulation before it is tried.")


def _in_short(row: Row) -> str:
    """Return what the order is by, and the two that weigh most in it."""
    told = f"penalty {plain(row['penalty'])}, max/mean {plain(row['max_over_mean'])}"
    return f"{told}, {many(row['moves'], 'move')}"


def _evidence(row: Row) -> str:
    told = f"{many(row['rounds'], 'round')} in the history, {row['refused']:,} of them refused"
    if row["bases"]:
        told += (
            f"; {row['reproduced']:,} of {row['bases']:,} base rounds were decided again exactly "
            "as recorded"
        )
    if row["cpu_changed_error"] is not None:
        off = percent(row["cpu_changed_error"], 1)
        told += f"; CPU of brokers whose bundles changed was predicted within {off} of capacity"
    return f"{told}."


def _chart(found: Replayed) -> Chart:
    data: list[Mapping[str, Json]] = []
    for name, colour, symbol, mine in (
        ("replayed", COLOURS[0], "circle", [r for r in found.scores if r["combination"] >= 0]),
        ("as recorded", COLOURS[1], "star", [r for r in found.scores if r["combination"] < 0]),
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
        f"left is better. {many(found.count, 'row')} in all.",
        data=data,
        layout=layout(
            xaxis={
                "title": {"text": "moved, multiple of the traffic an hour"},
                "rangemode": "tozero",
            },
            yaxis={"title": {"text": "max/mean"}},
        ),
    )


def _table(found: Replayed) -> Html:
    columns = [
        Column(name="strategies and settings"),
        Column(name="rank"),
        Column(
            name="penalty", explanation="What the order is by; less is better.", best=Best.LEAST
        ),
        Column(name="max/mean", best=Best.LEAST),
        Column(name="max/mean p95", best=Best.LEAST),
        Column(name="overload", unit="% of brokers' time", best=Best.LEAST),
        Column(name="moves", best=Best.LEAST),
        Column(name="came back", unit="moves", best=Best.LEAST),
        Column(name="connections", unit="that would reconnect", best=Best.LEAST),
        Column(name="trust"),
    ]
    cells = []
    for row in found.scores:
        trust = found.trust.get(row["combination"], {})
        cells.append(
            [
                Cell(row["name"], tone="known" if row["combination"] == _RECORDED else ""),
                Cell(str(row["rank"]), row["rank"]),
                *(
                    Cell(plain(row[n]), row[n])
                    for n in ("penalty", "max_over_mean", "max_over_mean_p95")
                ),
                Cell(percent(row["overload_fraction"], 1), row["overload_fraction"]),
                *(Cell(f"{row[n]:,}", row[n]) for n in ("moves", "returned", "moved_connections")),
                Cell(trust.get("level", ""), hover=trust.get("because") or ""),
            ]
        )
    return table("Strategies and settings, best first", columns, cells)
