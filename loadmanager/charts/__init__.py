"""Reports as one HTML file: the frame of a page, sortable tables, and charts drawn by plotly.js.

The modules do not depend on what is shown. A page fetches nothing: style, scripts and data are in
the file, and its content security policy forbids anything else.
"""

from loadmanager.charts.chart import Chart, Json, numbers, shown
from loadmanager.charts.markup import Html, joined, tag
from loadmanager.charts.page import (
    MissingCharts,
    check_place,
    contents,
    folded,
    page,
    section,
    write_page,
)
from loadmanager.charts.table import Best, Cell, Column, table

__all__ = [
    "Best",
    "Cell",
    "Chart",
    "Column",
    "Html",
    "Json",
    "MissingCharts",
    "check_place",
    "contents",
    "folded",
    "joined",
    "numbers",
    "page",
    "section",
    "shown",
    "table",
    "tag",
    "write_page",
]
