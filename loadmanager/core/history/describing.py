"""The document of the format, made from its one declaration."""

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

What sidecars with a `[history]` section (or `loadmanager demo --history DIR`, `loadmanager simulate
--history DIR`, `loadmanager attach --history DIR`) write: every load report and every decision, for
the pipeline or for any program that reads JSON lines. This page is made by `loadmanager history
format`. The version of the format is **{VERSION}**; the operator guide says how to switch it on.

## Files

    DIR/date=2026-11-21/hour=22/reports-broker-1_8080-5f2a90c1d07be344-000000000001.jsonl.gz
    DIR/date=2026-11-21/hour=22/rounds-broker-1_8080-5f2a90c1d07be344-000000000001.jsonl.gz
    DIR/date=2026-11-21/hour=22/_rounds-broker-1_8080-5f2a90c1d07be344-000000000731.jsonl.gz

- `date` and `hour` are those of the lines' `at_ms` in UTC; a file holds lines of one hour only. A
  clock that is set back begins a new file in the earlier hour.
- Two streams: `reports`, what an agent published of its own broker, and `rounds`, what a leader
  saw and decided. A sidecar that never leads writes no `rounds` files.
- The name goes on with the writer's broker id (whatever is not a letter, digit, dot or dash is
  `_`), its `instance` and the `seq` of the first line. No two files ever have the same name, so
  any number of writers may share a directory.
- A file that begins with `_` is being written. Spark and Hadoop leave such files alone. When it
  is whole it is synced to disk and renamed; a file without `_` never changes again. What a killed
  writer leaves behind is made whole (every line that was flushed is kept, half of a line is cut
  off) and renamed by the sidecar of the same broker when it starts.
- Each file is gzip in several members, one for each flush. Any gzip reader takes them for one
  stream, and Spark reads the file as it is. A crash, or a power cut after a flush, loses no line
  of an earlier member.

## Lines

Each line is one JSON object in UTF-8, with the fields of the envelope first, in this order:

"""

_RULES: Final = f"""
- Every field of a kind is always there. One that may be null says so; lists may be empty. Fields
  that are not listed here may be added under the same version: readers ignore them. The means and
  variances of a report were added: lines of 0.1 lack them, and readers take them for null.
  `schema` grows when a reader of the former version would misread something.
- **columns** are an object of lists of one length: the first items of all lists belong together,
  and so on. In Spark: `inline(arrays_zip(bundles.bundle, ...))`, after comparing the lengths.
- Numbers are finite: a number is at most {TOTAL.most:g}, a whole number at most 2^60, which sums
  over all bundles of a cluster stay below. They are written so that reading gives the same 64
  bits.
- A **time** is a whole number of milliseconds since 1970 in UTC, on the clock of the process that
  wrote it: 0 or more, and less than {TIMES_END_MS} (the year 2100). A line with a later one is
  spoilt: a clock that far ahead says nothing, and no day or minute can be computed from it.
- Rates are means over `window_s`. CPU is in percent of one core (400 are four cores), memory in
  MiB, bandwidth in kbit/s, as in Pulsar's load reports. A limit of 0 means that the resource was
  not measured.
- `seq` has no gap within (`writer`, `instance`, stream). A gap is a file that is missing
  (retention deletes the oldest first) or a line that was spoilt; the same `seq` twice is a line
  that was copied. Lines that the writer itself had to give up are reported by a `lost_reports` or
  `lost_rounds` line, and use up no `seq`.
- Order by `seq`, not by `at_ms`: wall clocks jump.
- A load report is named by `broker` and `reported_at_ms`.

## What a replay needs

A `round` with `base` true can be replayed by itself: it has the brokers as the leader saw them,
what was under way, the strategies' `memory` and the `constraints`, and the `bundles` lines of the
same `epoch` and `round` before it hold the owner of each bundle and all averages. From there on,
every `tick` says which reports were taken up, by their `reported_at_ms`, and whether one sample
of every listed bundle was added to all averages (`tick` of the round
says how many had been when it was decided); that gives the view of the rounds that are no
base, and the same averages as the leader's own. (Simulations write no ticks.) The first round of
a term is a base, so is one after a change of settings or constraints, and every
`base_every_rounds`-th.

## Kinds
"""


def described() -> str:
    """Return ``docs/history-format.md``."""
    parts = [_BEGINNING, *_table(ENVELOPE), _RULES]
    for kind in KINDS.values():
        parts += _kind(kind)
    return "".join(parts)


def _kind(kind: Kind) -> Iterator[str]:
    yield f"\n### `{kind.name}` ({kind.stream.value})\n\n{kind.meaning}\n\n"
    yield from _table(kind.fields)


def _table(fields: Iterable[Field | Columns]) -> Iterator[str]:
    yield "| field | form | what it is |\n|---|---|---|\n"
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
