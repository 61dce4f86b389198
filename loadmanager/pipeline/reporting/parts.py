"""The parts of a report: sections of what tables hold, their tables as HTML, and conclusions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from shlex import quote
from typing import Any, Final

from loadmanager.charts import Best, Cell, Column, Html, folded, joined, section, table, tag
from loadmanager.pipeline.reporting.sources import Row, Tables


class Weight(IntEnum):
    ACT = 3
    LOOK = 2
    FINE = 1
    LACKING = 0


@dataclass(frozen=True, slots=True)
class Finding:
    weight: Weight
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    title: str
    body: Sequence[Html]
    findings: Sequence[Finding] = ()

    def html(self, anchor: str) -> Html:
        return section(self.title, said(self.findings), *self.body, anchor=anchor)


Shown = tuple[Sequence[Html], Sequence[Finding]]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of every report, of the tables of ``job``.

    ``read`` returns what is shown, a bounded number of rows, or None without any; ``shown`` renders
    it without Spark. ``without`` says what None means.
    """

    title: str
    job: str
    read: Callable[[Tables], Row | None]
    shown: Callable[[Row], Shown]
    without: str = ""

    def show(self, found: Row) -> Part:
        body, findings = self.shown(found)
        return Part(title=self.title, body=body, findings=findings)

    def part(self, tables: Tables) -> Part:
        made = tables.made(self.job)
        found = self.read(tables) if made else None
        if found is not None:
            return self.show(found)
        without = self.without or f"The job {self.job} found no rows. "
        return lacking(self.title, self.job, tables.store.out, without if made else "")


@dataclass(frozen=True, slots=True)
class Show:
    """A column of a table: of each row the value ``of`` it (a key, or a function), in a ``form``.

    ``more`` are the note, hover or tone of a cell.
    """

    name: str
    of: str | Callable[[Row], Any]
    form: Callable[[Any], str] = str
    unit: str = ""
    why: str = ""
    best: Best = Best.NEITHER
    more: Callable[[Row], dict[str, str]] = lambda _row: {}

    def cell(self, row: Row) -> Cell:
        value = row[self.of] if isinstance(self.of, str) else self.of(row)
        number = value if isinstance(value, int | float) else None
        return Cell(self.form(value), number, **self.more(row))


def grid(caption: str, rows: Sequence[Row], *columns: Show) -> Html:
    head = [Column(name=o.name, unit=o.unit, explanation=o.why, best=o.best) for o in columns]
    return table(caption, head, [[one.cell(row) for one in columns] for row in rows])


def facts(caption: str, of: str, lines: Iterable[tuple[str, str]]) -> Html:
    """Return a table of texts with their names."""
    columns = [Column(name=of), Column(name="value")]
    return table(caption, columns, [[Cell(name), Cell(value)] for name, value in lines])


def of_first(caption: str, listed: int, every: int) -> str:
    return caption if listed == every else f"{caption}, the first {listed} of {every:,}"


_TONES: Final = {Weight.ACT: "bad", Weight.LOOK: "known", Weight.FINE: "good"}
_LABELS: Final = {Weight.ACT: "Act:", Weight.LOOK: "Look:", Weight.FINE: "Fine:"}


def said(findings: Iterable[Finding]) -> Html:
    return joined(tag("p", *_labelled(one)) for one in findings)


def _labelled(finding: Finding) -> tuple[str, ...]:
    """Return a conclusion after a word for its importance, which is not shown by colour alone."""
    label = _LABELS.get(finding.weight)
    if label is None:
        return (finding.text,)
    return tag("strong", label, class_=_TONES[finding.weight]), " ", finding.text


def lacking(title: str, job: str, out: str, what: str = "") -> Part:
    command = f"loadmanager pipeline {job} --out {quote(out)}"
    words = [what or "There is nothing to show here yet. ", "To make it: ", tag("code", command)]
    return Part(title=title, body=[tag("p", *words)])


def figures(title: str, *body: Html) -> Html:
    return folded(title, *body)


def next_steps(findings: Iterable[Finding], most: int = 6) -> Html:
    order = sorted(findings, key=lambda one: -one.weight)
    chosen = [one for one in order if one.weight > Weight.LACKING][:most]
    if not chosen:
        return tag("p", "There is too little history yet to conclude anything.")
    return tag("ul", *(tag("li", *_labelled(one)) for one in chosen))
