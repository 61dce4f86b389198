"""Totals of ingested history, and of what could not be ingested."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Cell, Column, Html, table
from loadmanager.pipeline.reporting.formats import many, moment, percent, span
from loadmanager.pipeline.reporting.parts import Finding, Part, Weight
from loadmanager.pipeline.reporting.sources import Row, Tables, bounds_ms, one_row, rows, sound

TITLE: Final = "What was read"
LISTED: Final = 20
_MANY: Final = 0.001


@dataclass(frozen=True, kw_only=True)
class Intake:
    """Totals of all batches, reasons of quarantined lines, and records that writers dropped."""

    batches: int
    totals: dict[str, int]
    reasons: Sequence[Row]
    lost: Sequence[Row]
    first_ms: int | None
    last_ms: int | None
    brokers: int


def read(tables: Tables) -> Intake:
    batches = tables.store.batches()
    names = ("read", "kept", "quarantined", "duplicate")
    totals = {n: sum(one.manifest["lines"].get(n, 0) for one in batches) for n in names}
    # A reason may contain values of the line; the words before them identify it.
    about = F.regexp_extract("reason", r"^[^:;,0-9]*", 0)
    grouped = (
        tables.store.table("quarantine")
        .groupBy(about.alias("about"))
        .agg(
            F.count("*").alias("lines"),
            F.min("reason").alias("reason"),
            F.min("file").alias("file"),
        )
        .orderBy(F.desc("lines"), "about")
    )
    lost = [
        {"stream": stream, **row}
        for stream in ("reports", "rounds")
        for row in rows(
            tables.table(f"lost_{stream}")
            .groupBy("why")
            .agg(F.sum("records").alias("records"), F.countDistinct("writer").alias("writers"))
            .orderBy("why")
        )
    ]
    load = tables.table("broker_load")
    bounds = bounds_ms(sound(load), "at")
    return Intake(
        batches=len(batches),
        totals=totals,
        reasons=rows(grouped.limit(LISTED)),
        lost=lost,
        first_ms=bounds[0] if bounds else None,
        last_ms=bounds[1] if bounds else None,
        brokers=one_row(load.agg(F.countDistinct("broker").alias("brokers")))["brokers"],
    )


def show(found: Intake) -> Part:
    body = [_totals(found)]
    if found.reasons:
        body.append(_reasons(found.reasons))
    if found.lost:
        body.append(_lost(found.lost))
    return Part(title=TITLE, body=body, findings=_findings(found))


def _findings(found: Intake) -> list[Finding]:
    read, bad = found.totals["read"], found.totals["quarantined"]
    findings = []
    if bad > _MANY * read:
        words = f"{many(bad, 'line')} of {read:,} ({percent(bad / read, 2)}) could not be used"
        first = f": {found.reasons[0]['reason']}" if found.reasons else ""
        findings.append(Finding(Weight.LOOK, f"{words}{first}."))
    given_up = sum(row["records"] for row in found.lost)
    if given_up:
        words = f"Sidecars had to give up {many(given_up, 'record')}: {found.lost[0]['why']}."
        findings.append(Finding(Weight.LOOK, words))
    return findings


def _totals(found: Intake) -> Html:
    facts = [
        ("lines read", f"{found.totals['read']:,}"),
        ("of them kept", f"{found.totals['kept']:,}"),
        ("quarantined", f"{found.totals['quarantined']:,}"),
        ("duplicate", f"{found.totals['duplicate']:,}"),
        ("batches", f"{found.batches:,}"),
        ("brokers that reported", f"{found.brokers:,}"),
    ]
    if found.first_ms is not None and found.last_ms is not None:
        facts += [
            ("first report", moment(found.first_ms)),
            ("last report", moment(found.last_ms)),
            ("time between", span((found.last_ms - found.first_ms) / 1000)),
        ]
    columns = [Column(name="of all history"), Column(name="number")]
    return table("Totals", columns, [[Cell(name), Cell(value)] for name, value in facts])


def _reasons(reasons: Sequence[Row]) -> Html:
    columns = [
        Column(name="reason, an example"),
        Column(name="lines"),
        Column(name="a file with it"),
    ]
    cells = [
        [
            Cell(row["reason"] or ""),
            Cell(f"{row['lines']:,}", row["lines"]),
            Cell(row["file"] or ""),
        ]
        for row in reasons
    ]
    return table("What was quarantined", columns, cells)


def _lost(lost: Sequence[Row]) -> Html:
    columns = [
        Column(name="stream"),
        Column(name="why"),
        Column(name="records"),
        Column(name="sidecars"),
    ]
    cells = [
        [
            Cell(row["stream"]),
            Cell(row["why"]),
            Cell(f"{row['records']:,}", row["records"]),
            Cell(f"{row['writers']:,}", row["writers"]),
        ]
        for row in lost
    ]
    return table("What sidecars had to give up", columns, cells)
