"""docs/history-format.md, from the declaration of the format."""

from collections.abc import Iterable, Iterator
from typing import Final

from loadmanager.core.bounds import TIMES_END_MS, TOTAL
from loadmanager.core.history.kinds import KINDS
from loadmanager.core.history.schema import (
    ENVELOPE,
    VERSION,
    Columns,
    Field,
    Kind,
    Type,
)

_JSON: Final = {
    Type.TEXT: "text",
    Type.COUNT: "whole number ≥ 0",
    Type.TIME: "time",
    Type.RATE: "number ≥ 0",
    Type.FLAG: "true or false",
}

_BEGINNING: Final = f"""# History

Sidecars with a `[history]` section (and `loadmanager demo --history DIR`, `loadmanager simulate
--history DIR`, `loadmanager attach --history DIR`) record every load report and every decision, for
the pipeline or for any program that reads JSON lines. The version of the format is **{VERSION}**;
the operator guide describes how to enable it.

## Files

    DIR/date=2026-11-21/hour=22/reports-broker-1_8080-5f2a90c1d07be344-000000000001.jsonl.gz
    DIR/date=2026-11-21/hour=22/rounds-broker-1_8080-5f2a90c1d07be344-000000000001.jsonl.gz
    DIR/date=2026-11-21/hour=22/_rounds-broker-1_8080-5f2a90c1d07be344-000000000731.jsonl.gz

- `date` and `hour` are those of the lines' `at_ms` in UTC; a file holds lines of one hour only. If
  a clock is set back, a new file in the earlier hour begins.
- Two streams: `reports`, which agents publish of their own brokers, and `rounds`, what a leader
  observed and decided. A sidecar that never leads writes no `rounds` files.
- The rest of the name is the writer's broker id (any character other than a letter, digit, dot or
  dash is replaced by `_`), its `instance` and the `seq` of the first line. No two files have the
  same name, so any number of writers may share a directory.
- A file whose name begins with `_` is being written. Spark and Hadoop ignore such files. When it
  is complete it is synced to disk and renamed; a file without `_` never changes. The sidecar of the
  same broker completes the files of a killed writer when it starts: every flushed line is kept, an
  incomplete one is cut off.
- Each file is gzip in several members, one for each flush. Any gzip reader, Spark's included, reads
  them as one stream. A crash, or a power cut after a flush, loses no line of an earlier member.

## Lines

Each line is one JSON object in UTF-8, with the fields of the envelope first, in this order:

"""

_RULES: Final = f"""
- Every field of a kind is always present. Nullable fields are marked; lists may be empty. Fields
  that are not listed here may be added under the same version: readers ignore them. The means and
  variances of a report were added later: lines of 0.1 lack them, and readers treat them as null.
  `schema` grows when a reader of the former version would misread something.
- **columns** are an object of lists of equal length: the first items of all lists belong together,
  and so on. In Spark: `inline(arrays_zip(bundles.bundle, ...))`, after comparing the lengths.
- Numbers are finite: a number is at most {TOTAL.most:g}, a whole number at most 2^60; sums over
  all bundles of a cluster stay below that. Writing and reading preserves all 64 bits.
- A **time** is a whole number of milliseconds since 1970 in UTC, on the clock of the process that
  wrote it: 0 or more, and less than {TIMES_END_MS} (the year 2100). A line with a later time is
  malformed: no valid day or minute can be computed from it.
- Rates are means over `window_s`. CPU is in percent of one core (400 are four cores), memory in
  MiB, bandwidth in kbit/s, as in Pulsar's load reports. A limit of 0 means that the resource was
  not measured.
- `seq` has no gap within (`writer`, `instance`, stream). A gap means a missing file
  (retention deletes the oldest first) or a malformed line; a repeated `seq` means a copied line.
  Lines that the writer itself dropped are reported by a `lost_reports` or
  `lost_rounds` line, and use no `seq`.
- Order by `seq`, not by `at_ms`: wall clocks jump.
- A load report is identified by `broker` and `reported_at_ms`.

## What a replay needs

A `round` with `base` true can be replayed by itself: it has the brokers as the leader saw them,
orders under way, the strategies' `memory` and the `constraints`, and the `bundles` lines of the
same `epoch` and `round` before it have the owner of each bundle and all averages. From there on,
every `tick` lists the reports that were processed, by their `reported_at_ms`, and whether one
sample of every listed bundle was added to all averages (`tick` of a round is the number of ticks
before its decision). From these follow the views of the other rounds, with the same averages as
the leader's own. (Simulations write no ticks.) Base rounds are the first round of a term, the
first one after a change of settings or constraints, and every `base_every_rounds`-th.

## Kinds
"""


def history_reference() -> str:
    """Return ``docs/history-format.md``."""
    parts = [_BEGINNING, *_table(ENVELOPE), _RULES]
    for kind in KINDS.values():
        parts += _kind(kind)
    return "".join(parts)


def _kind(kind: Kind) -> Iterator[str]:
    yield f"\n### `{kind.name}` ({kind.stream.value})\n\n{kind.meaning}\n\n"
    yield from _table(kind.fields)


def _table(fields: Iterable[Field | Columns]) -> Iterator[str]:
    yield "| field | form | description |\n|---|---|---|\n"
    for known in fields:
        if isinstance(known, Columns):
            yield f"| `{known.name}` | columns | {known.meaning} |\n"
            for column in known.fields:
                yield f"| `{known.name}.{column.name}` | {_form(column, column=True)} | "
                yield f"{column.meaning} |\n"
        else:
            yield f"| `{known.name}` | {_form(known)} | {known.meaning} |\n"


def _form(known: Field, *, column: bool = False) -> str:
    form = _JSON[known.type] + (" or null" if known.nullable else "")
    return f"list of {form}" if known.listed or column else form
