"""Tables that can be sorted by any column, explain their columns, and mark the best values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import starmap

from loadmanager.charts.markup import Html, joined, tag


class Best(StrEnum):
    LEAST = "least"
    MOST = "most"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    unit: str = ""
    explanation: str = ""
    best: Best = Best.NEITHER


@dataclass(frozen=True, slots=True)
class Cell:
    """The text of a cell; rows are sorted by ``value``, or by the text if that is None.

    ``note`` is printed small after the text; ``hover`` is shown on hover. ``tone`` is a class of
    the style sheet: good, bad, known.
    """

    text: str
    value: float | None = None
    note: str = ""
    hover: str = ""
    tone: str = ""


Row = Sequence[Cell]


def table(caption: str, columns: Sequence[Column], rows: Sequence[Row]) -> Html:
    """Return a table. The first column names its rows."""
    best = [_best(column, [row[place] for row in rows]) for place, column in enumerate(columns)]
    numbers = [any(row[place].value is not None for row in rows) for place in range(len(columns))]
    head = tag("thead", tag("tr", *map(_header, columns, numbers)))
    cells = (zip(row, range(len(columns)), best, numbers, strict=True) for row in rows)
    body = tag("tbody", *(tag("tr", *starmap(_cell, row)) for row in cells))
    whole = tag("table", tag("caption", caption), head, body)
    return tag("div", whole, class_="scrolled", tabindex=0, role="group", aria_label=caption)


def _best(column: Column, cells: Sequence[Cell]) -> float | None:
    """Return the best value of a column, or None if all are equally good."""
    known = [cell.value for cell in cells if cell.value is not None and math.isfinite(cell.value)]
    if column.best is Best.NEITHER or not known or min(known) == max(known):
        return None
    return min(known) if column.best is Best.LEAST else max(known)


def _header(column: Column, number: bool) -> Html:
    words = [tag("span", column.name)]
    if column.unit:
        words.append(tag("small", column.unit))
    button = tag("button", *words, type="button", title=column.explanation or None)
    return tag("th", button, class_="number" * number or None, scope="col", aria_sort="none")


def _cell(cell: Cell, place: int, best: float | None, number: bool) -> Html:
    marked = best is not None and cell.value == best
    words = [cell.text]
    if cell.note:
        words.append(joined((" ", tag("small", cell.note))))
    if marked:
        words.append(tag("span", " (best)", class_="unseen"))
    tones = " ".join(filter(None, ("number" * number, cell.tone, "best" * marked)))
    return tag(
        "td" if place else "th",
        *words,
        class_=tones or None,
        scope=None if place else "row",
        title=cell.hover or None,
        data_sort=None if cell.value is None else _for_script(cell.value),
    )


def _for_script(value: float) -> str:
    """Return a number as the script of the page parses it."""
    return repr(float(value)).replace("inf", "Infinity")
