"""Reports as one HTML file: the frame of a page, sortable tables, and charts drawn by plotly.js.

Nothing here depends on what is shown. A page fetches nothing: style, scripts and data are in the
file, and its content security policy forbids anything else.
"""

import base64
import errno
import hashlib
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from importlib.resources import files
from itertools import starmap
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from loadmanager.core.errors import LoadManagerError

_VOID: Final = frozenset({"br", "hr", "input", "meta"})


class Html(str):
    """Markup: `tag` does not escape it, unlike a plain text."""

    __slots__ = ()


def _attribute(name: str, value: str | bool | float) -> str:
    written = name.rstrip("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{escape(str(value))}"'


def tag(kind: str, /, *children: str, **attributes: str | bool | float | None) -> Html:
    """Return the element ``kind`` with ``children`` in it.

    In names of attributes a trailing underscore is removed, and others become hyphens. An
    attribute that is None or False is omitted, one that is True has no value.
    """
    written = "".join(
        _attribute(key, value)
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    opened = f"<{kind}{written}>"
    return Html(opened) if kind in _VOID else Html(f"{opened}{joined(children)}</{kind}>")


def joined(parts: Iterable[str]) -> Html:
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


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


Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""A JSON value of a figure."""

_LEAST_POINTS: Final = 3
_TOO_FEW: Final = "there are fewer than three points in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure of plotly.js: its traces and its layout, which must not set colours of text.

    ``summary`` describes it, for readers who cannot see it, and is printed after the title. The
    page draws a chart when it becomes visible. A chart that would be empty, or a line between two
    points, is not drawn: a sentence says so instead.
    """

    title: str
    summary: str
    data: Sequence[Mapping[str, Json]]
    layout: Mapping[str, Json] = field(default_factory=dict)
    height_px: int = 420

    def html(self) -> Html:
        # Bars in a chart with lines do not justify lines between two points.
        deciding = [trace for trace in self.data if trace.get("type") != "bar"] or self.data
        if not any(_is_visible(trace) for trace in deciding):
            return tag("p", tag("strong", self.title), f" is not drawn: {_TOO_FEW}.")
        caption = tag("figcaption", tag("strong", self.title), " ", tag("span", self.summary))
        place = tag(
            "div",
            class_="plot",
            role="img",
            aria_label=f"{self.title}. {self.summary}",
            style=f"height:{self.height_px}px",
        )
        packed = Html(_packed({"data": self.data, "layout": self.layout}))
        return tag("figure", caption, place, tag("script", packed, type="application/x-chart"))


def _is_visible(trace: Mapping[str, Json]) -> bool:
    """Return whether a trace has enough values: lines and heat maps need three points in time."""
    values = trace.get("z", trace.get("y"))
    if trace.get("type") == "bar" and trace.get("orientation") == "h":
        values = trace.get("x")
    if not isinstance(values, Sequence):
        return True
    if trace.get("type") == "heatmap":
        rows = [_known(row) for row in values if isinstance(row, Sequence)]
        return max(rows, default=0) >= _LEAST_POINTS
    return _known(values) >= (_LEAST_POINTS if trace.get("mode") == "lines" else 1)


def _known(values: Sequence[Json]) -> int:
    return sum(value is not None for value in values)


def _packed(figure: Mapping[str, Json]) -> str:
    """Return a figure as base64 of compressed JSON: about a tenth of its size."""
    text = json.dumps(figure, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def numbers(values: ArrayLike, digits: int = 3) -> list[float | None]:
    """Return ``values`` rounded for a figure; values that are not finite become None, a gap."""
    rounded = np.round(np.asarray(values, dtype=np.float64), digits)
    return [value if np.isfinite(value) else None for value in rounded.tolist()]


def shown(text: str) -> str:
    """Return ``text`` escaped for plotly.js, which interprets some markup."""
    return escape(text, quote=False)


_NOT_IN_AN_ID: Final = re.compile(r"[^a-z0-9]+")


class MissingCharts(LoadManagerError):
    """The library that draws charts is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "an HTML report needs plotly, which is not installed; expected: "
            "pip install 'loadmanager[simulator]' or 'loadmanager[pipeline]'"
        )


def page(title: str, *body: str) -> str:
    """Return a whole page. The same title and body give the same bytes."""
    scripts = (_plotly_js(), _packaged("page.js"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(_packaged("page.css"))),
    )
    main = tag("main", tag("h1", title), *body)
    drawn = joined(tag("script", Html(script)) for script in scripts)
    return "<!doctype html>\n" + tag("html", head, tag("body", main, drawn), lang="en") + "\n"


def write_page(path: Path, title: str, *body: str) -> int:
    """Write a whole page to ``path`` and return its size in bytes.

    It is written to a temporary file in the same folder first, so that no reader gets an
    incomplete page.

    Raises:
        MissingCharts: plotly is not installed.
        OSError: it cannot be written.
    """
    content = page(title, *body).encode()
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    return len(content)


def check_place(path: Path) -> None:
    """Check that `write_page` can write to ``path``, by writing an empty file beside it.

    Permissions alone do not tell: root may write everywhere, but not to ``/proc``. A file at
    ``path`` is not changed.

    Raises:
        OSError: a page could not be written, with the reason.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{folder} is no folder to write to", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is no file that a page could replace", str(path))
    try:
        with NamedTemporaryFile(dir=folder, prefix=f".{path.name}.", suffix=".part"):
            pass
    except OSError as error:
        text = f"nothing may be written to {folder} ({error.strerror})"
        raise OSError(error.errno, text, str(path)) from error


def section(title: str, *body: str, anchor: str = "", level: int = 2) -> Html:
    """Return a part of a page with a heading, to which `contents` can link."""
    return tag("section", tag(f"h{level}", title), *body, id=anchor or name_of(title))


def folded(title: str, *body: str, note: str = "", level: int = 3, opened: bool = False) -> Html:
    """Return a part that opens with a click; its charts are drawn then."""
    heading = tag("summary", tag(f"h{level}", title), " ", tag("small", note))
    return tag("details", heading, *body, open=opened)


def contents(parts: Iterable[tuple[str, str]]) -> Html:
    """Return links to sections, given by titles and anchors."""
    links = (
        tag("li", tag("a", title, href=f"#{anchor or name_of(title)}")) for title, anchor in parts
    )
    return tag("nav", tag("ul", *links), aria_label="Contents")


def name_of(title: str) -> str:
    """Return the default anchor of a section."""
    return "part-" + _NOT_IN_AN_ID.sub("-", title.lower()).strip("-")


def _policy(scripts: Iterable[str]) -> str:
    """Return the content security policy: only these scripts run, and nothing is fetched."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    known = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return f"default-src 'none'; script-src {known}; style-src 'unsafe-inline'; img-src data: blob:"


def _packaged(name: str) -> str:
    return files("loadmanager.charts").joinpath(name).read_text(encoding="utf-8")


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - an extra, needed here alone
    except ImportError as error:
        raise MissingCharts from error
    return str(get_plotlyjs())
