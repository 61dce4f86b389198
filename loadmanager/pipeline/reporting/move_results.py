"""Moves and their effect: verdicts, costs for clients, returned bundles, and predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Cell, Chart, Column, Html, shown, table
from loadmanager.pipeline.costs import UNITS
from loadmanager.pipeline.move_effects.predictions import SHARE
from loadmanager.pipeline.reporting.formats import (
    COLOURS,
    UNKNOWN,
    VERDICTS,
    bars,
    diagonal,
    layout,
    many,
    moment,
    named,
    percent,
    plain,
    points,
    span,
)
from loadmanager.pipeline.reporting.parts import Finding, Part, Weight, figures
from loadmanager.pipeline.reporting.sources import Row, Tables, rows

TITLE: Final = "Moves and their effect"
SAMPLE: Final = 1200


def summary_table(summary: Sequence[Row]) -> Html:
    columns = [
        Column(name="cause"),
        Column(name="strategy", explanation="Shedder and placement."),
        Column(name="moves"),
        Column(name="judged"),
        Column(name="helped", unit="% of judged"),
        Column(name="hurt", unit="% of judged"),
        Column(name="gain", unit="points of load", explanation="They came closer."),
        Column(name="returns", unit="moves", explanation="Brought a bundle back."),
        Column(name="pause", unit="median, s"),
        Column(name="pause p95", unit="s"),
        Column(name="messages delayed"),
        Column(name="connections", unit="that had to reconnect"),
    ]  # fmt: skip
    cells = []
    for row in summary:
        judged = row["judged"]
        hurt = row["hurt"] / judged if judged else None
        gain = row["gain_mean"]
        cells.append(
            [
                Cell(row["cause"]),
                Cell(row["shedder"], note=row["placement"]),
                *(Cell(f"{row[name]:,}", row[name]) for name in ("moves", "judged")),
                Cell(percent(row["helped_fraction"]), row["helped_fraction"]),
                Cell(percent(hurt), hurt),
                Cell(UNKNOWN if gain is None else f"{100 * gain:+.2f}", gain),
                Cell(f"{row['returns']:,}", row["returns"]),
                *(Cell(plain(row[name]), row[name]) for name in ("pause_p50_s", "pause_p95_s")),
                Cell(f"{row['messages_delayed']:,.0f}", row["messages_delayed"]),
                Cell(f"{row['connections']:,}", row["connections"]),
            ]
        )
    return table("What moves came to, by cause and strategy", columns, cells)


def worst_table(worst: Sequence[Row]) -> Html:
    columns = [
        Column(name="bundle"),
        Column(name="when"),
        Column(name="from"),
        Column(name="to"),
        Column(name="cause"),
        Column(name="difference expected", unit="% of capacity"),
        Column(name="difference found", unit="% of capacity"),
    ]
    cells = [
        [
            Cell(row["bundle"]),
            Cell(moment(row["at_ms"]), row["at_ms"]),
            Cell(row["source"]),
            Cell(row["target"]),
            Cell(row["cause"]),
            *(
                Cell(percent(row[name], 1), row[name])
                for name in ("spread_expected", "spread_after")
            ),
        ]
        for row in worst
    ]
    return table("Moves that made source and target less even", columns, cells)


def returned_table(returned: Sequence[Row], facts: Mapping[str, Any]) -> Html:
    columns = [
        Column(name="bundle"),
        Column(name="came back", unit="times"),
        Column(name="for balance", unit="times", explanation="Not for drains and the like."),
        Column(name="moves"),
        Column(name="brokers"),
        Column(name="away", unit="median, s"),
        Column(name="pause", unit="s in all"),
        Column(name="messages delayed"),
        Column(name="usual cause"),
    ]
    cells = [
        [
            Cell(row["bundle"]),
            *(Cell(f"{row[name]:,}", row[name])
              for name in ("returns", "returns_for_balance", "moves", "brokers")),
            *(Cell(plain(row[name]), row[name]) for name in ("median_back_s", "pause_s")),
            Cell(f"{row['messages_delayed']:,.0f}", row["messages_delayed"]),
            Cell(row["usual_cause"]),
        ]
        for row in returned
    ]  # fmt: skip
    within = span(facts.get("back_within_s"))
    return table(f"Bundles that came back to a broker within {within}", columns, cells)


def errors_table(predictions: Sequence[Row]) -> Html:
    columns = [
        Column(name="resource"),
        Column(name="model"),
        Column(name="changes", explanation="Targets and times that could be compared."),
        Column(name="added", unit="mean"),
        Column(name="error", unit="mean"),
        Column(name="bias", unit="mean", explanation="Above 0: too much was predicted."),
        Column(name="error", unit="% of what was added"),
    ]
    cells = [
        [
            Cell(named(row["resource"]), note=UNITS[row["resource"]]),
            Cell(row["model"].replace("_", " ")),
            Cell(f"{row['changes']:,}", row["changes"]),
            *(Cell(plain(row[n]), row[n]) for n in ("realised_mean", "error_mean", "bias_mean")),
            Cell(percent(row["error_fraction"], 1), row["error_fraction"]),
        ]
        for row in predictions
    ]
    return table("What moves were to add to their targets, against what they did", columns, cells)


def reasons_table(reasons: Sequence[Row]) -> Html:
    columns = [Column(name="reason"), Column(name="moves")]
    cells = [[Cell(row["reason"]), Cell(f"{row['count']:,}", row["count"])] for row in reasons]
    return table("Moves without a verdict", columns, cells)


"""The number of moves in charts; tables include all."""

_LISTED: Final = 20
_GOOD, _POOR = 0.7, 0.5
_THRASHING: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class MoveResults:
    """The input of this part; ``sample`` and ``changes`` are some of the moves."""

    facts: Mapping[str, Any]
    summary: Sequence[Row]
    sample: Sequence[Row] = ()
    worst: Sequence[Row] = ()
    returned: Sequence[Row] = ()
    bouncing: int = 0
    reasons: Sequence[Row] = ()
    pauses: Sequence[Row] = ()
    predictions: Sequence[Row] = ()
    changes: Sequence[Row] = ()


def read(tables: Tables) -> MoveResults | None:
    summary = rows(tables.table("move_summary").orderBy(F.desc("moves")))
    if not summary:
        return None
    effects = tables.table("move_effects")
    # Sampled by a hash of bundle and time, so that repeated reports show the same moves.
    drawn = effects.orderBy(F.xxhash64("bundle", "at")).limit(SAMPLE)
    judged = effects.where("verdict <> 'unknown'")
    columns = ("bundle", "source", "target", "cause", "verdict", "spread_expected", "spread_after")
    worst = judged.where("verdict = 'hurt'").orderBy("gain").limit(_LISTED)
    cpu = "target_change.cpu"
    changes = (
        effects.where(f"{cpu}.realised IS NOT NULL")
        .groupBy("target", F.col("ordered_at").cast("long").alias("at_s"))
        .agg(*(F.first(f"{cpu}.{name}").alias(name) for name in _CHANGE))
        .orderBy(F.xxhash64("target", "at_s"))
        .limit(SAMPLE)
    )
    ping_pong = tables.table("ping_pong")
    predictions = rows(tables.table("move_predictions").orderBy("resource", "model"))
    return MoveResults(
        facts=tables.facts,
        summary=summary,
        sample=rows(drawn.where("verdict <> 'unknown'").select(*columns)),
        worst=rows(worst.select(*columns, F.unix_millis("at").alias("at_ms"))),
        returned=rows(ping_pong.where(F.col("rank") <= _LISTED).orderBy("rank")),
        bouncing=ping_pong.count(),
        reasons=rows(
            effects.where("verdict = 'unknown'")
            .groupBy("reason")
            .count()
            .orderBy(F.desc("count"))
            .limit(_LISTED)
        ),
        pauses=_pauses(effects),
        predictions=predictions,
        changes=rows(changes),
    )


_CHANGE: Final = (SHARE, "realised")


def _pauses(effects: DataFrame) -> list[Row]:
    """Return the numbers of pauses between powers of the square root of two, in seconds."""
    known = effects.where("pause_s > 0")
    step = F.floor(F.log2("pause_s") * 2)
    counted = known.groupBy(step.alias("step")).count().orderBy("step")
    return rows(counted)


def show(found: MoveResults) -> Part:
    body = [_verdicts(found.summary).html(), summary_table(found.summary)]
    if found.sample:
        body.append(_spreads(found).html())
        body.append(figures("Moves that hurt most", worst_table(found.worst)))
    if found.pauses:
        body.append(_pause_chart(found.pauses).html())
    if found.changes:
        body.append(_predicted(found.changes).html())
        body.append(figures("How far off the predictions were", errors_table(found.predictions)))
    if found.returned:
        text = f"Bundles that went back, the first of {many(found.bouncing, 'bundle')}"
        body.append(figures(text, returned_table(found.returned, found.facts)))
    if found.reasons:
        body.append(figures("Why moves could not be judged", reasons_table(found.reasons)))
    return Part(title=TITLE, body=body, findings=_findings(found))


def _total(summary: Sequence[Row], name: str) -> float:
    return float(sum(row[name] or 0 for row in summary))


def _findings(found: MoveResults) -> list[Finding]:
    moves, judged, helped, hurt, returns = (
        round(_total(found.summary, name))
        for name in ("moves", "judged", "helped", "hurt", "returns")
    )
    delayed = _total(found.summary, "messages_delayed")
    pauses = span(_total(found.summary, "pause_s"))
    paid = f"clients waited {pauses} in all (about {plain(delayed)} messages)"
    findings = []
    if judged:
        share = helped / judged
        weight = Weight.FINE if share >= _GOOD else Weight.LOOK if share >= _POOR else Weight.ACT
        words = (
            f"Of {many(judged, 'move')} that could be judged, {percent(share)} made source and "
            f"target more even and {percent(hurt / judged)} less; {paid}."
        )
        if weight is Weight.ACT:
            words += " Raise the shedder's threshold, or choose another strategy."
        findings.append(Finding(weight, words))
    else:
        findings.append(
            Finding(
                Weight.LACKING, f"{many(moves, 'move')}, none of which could be judged; {paid}."
            )
        )
    if returns > _THRASHING * moves:
        first = found.returned[0]["bundle"] if found.returned else "?"
        within = span(found.facts.get("back_within_s"))
        findings.append(
            Finding(
                Weight.ACT,
                f"{percent(returns / moves)} of all moves brought a bundle back within {within}: "
                f"the strategy thrashes, worst with {first}. Try others by the job replay.",
            )
        )
    return findings


def _verdicts(summary: Sequence[Row]) -> Chart:
    names = [f"{row['cause']}<br>{shown(row['shedder'])}" for row in summary]
    unknown = [row["moves"] - row["judged"] for row in summary]
    columns = {
        "helped": [row["helped"] for row in summary],
        "no difference": [row["no_difference"] for row in summary],
        "hurt": [row["hurt"] for row in summary],
        "unknown": unknown,
    }
    return Chart(
        title="Did moves help?",
        summary="Moves by cause and strategy. A move helped if source and target were closer "
        "after it than they would have been had both only done what untouched brokers did.",
        data=[bars(names, values, name, VERDICTS[name]) for name, values in columns.items()],
        layout=layout(
            barmode="stack",
            yaxis={"title": {"text": "moves"}},
            xaxis={"type": "category"},
        ),
        height_px=360,
    )


def _spreads(found: MoveResults) -> Chart:
    data = []
    for verdict in ("helped", "no difference", "hurt"):
        mine = [row for row in found.sample if row["verdict"] == verdict]
        if mine:
            data.append(
                points(
                    [row["spread_expected"] for row in mine],
                    [row["spread_after"] for row in mine],
                    verdict,
                    VERDICTS[verdict],
                    text=[_path(row) for row in mine],
                    hovertemplate="%{text}<br>expected %{x:.1%}, found %{y:.1%}<extra></extra>",
                )
            )
    top = max(max(row["spread_expected"], row["spread_after"]) for row in found.sample)
    window = span(found.facts.get("window_s"))
    return Chart(
        title="Difference between source and target",
        summary=f"In load, % of capacity, mean of {window} before and after. Below the dotted line "
        f"a move made it smaller than was to be expected. {many(len(found.sample), 'move')} drawn.",
        data=data,
        layout=layout(
            xaxis={"title": {"text": "expected without the move"}, "tickformat": ".0%",
                   "rangemode": "tozero"},
            yaxis={"title": {"text": "found after it"}, "tickformat": ".0%",
                   "rangemode": "tozero"},
            shapes=[diagonal(top)],
        ),
    )  # fmt: skip


def _path(row: Row) -> str:
    return shown(f"{row['bundle']}: {row['source']} to {row['target']} ({row['cause']})")


def _pause_chart(pauses: Sequence[Row]) -> Chart:
    names = [f"{span(2 ** (row['step'] / 2))}" for row in pauses]
    return Chart(
        title="For how long clients waited",
        summary="Moves by the time in which no broker served the bundle; each bar holds those from "
        "its time to the next bar's.",
        data=[bars(names, [row["count"] for row in pauses], "moves", COLOURS[0])],
        layout=layout(
            xaxis={"type": "category", "title": {"text": "pause from"}},
            yaxis={"title": {"text": "moves"}},
        ),
        height_px=300,
    )


def _predicted(changes: Sequence[Row]) -> Chart:
    mine = [row for row in changes if row[SHARE] is not None]
    every = [row[name] for row in changes for name in _CHANGE if row[name] is not None]
    return Chart(
        title="CPU that moves added to their targets",
        summary="Percent of one core: what it was to be by shares of traffic against what was "
        "measured, without the growth of untouched brokers. On the dotted line a prediction is "
        "right.",
        data=[
            points(
                [row["realised"] for row in mine],
                [row[SHARE] for row in mine],
                "shares of traffic",
                COLOURS[1],
                hovertemplate="used %{x:.3g}, predicted %{y:.3g}<extra></extra>",
            )
        ],
        layout=layout(
            xaxis={"title": {"text": "measured, % of one core"}},
            yaxis={"title": {"text": "predicted, % of one core"}},
            shapes=[{**diagonal(max(every)), "x0": min(every), "y0": min(every)}],
        ),
    )
