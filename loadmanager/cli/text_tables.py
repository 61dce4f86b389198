"""Text tables in aligned columns; on a terminal they keep to its width."""

import shutil
import string
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

_GAP: Final = "  "
_LEAST_WRAPPED: Final = 24
"""The least width of a wrapped text beside the other columns; else it follows below them."""


def terminal_width() -> int | None:
    """Return the columns of the terminal that is written to, None for a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitted(line: str, width: int | None) -> str:
    """Return a line of text, wrapped between words if it is longer than ``width``."""
    if width is None or len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip(" "))]
    return "\n".join(
        textwrap.wrap(
            line,
            width,
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, or nothing without rows; a column of which a ``>`` ends the name is right."""
    cells = [[str(cell) for cell in row] for row in rows]
    if cells:
        click.echo("\n".join(["", title, *plain_lines(columns, cells, terminal_width())]))


class _Cells(string.Formatter):
    """Formats values; None, which stands for what is not known, is a dash."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return "-" if value is None else super().format_field(value, format_spec)


Cell = str | Callable[[Mapping[str, Any]], object]
"""A format of a record's values, ``{msgsPerS:,.0f}``, or a function of the record."""

Columns = Mapping[str, Cell]
"""The cells of a table by the names of their columns, as in `print_table`."""


def print_records(title: str, columns: Columns, records: Iterable[Mapping[str, Any]]) -> None:
    """Print a table of JSON objects."""
    cells = _Cells()
    rows = [
        [
            cells.vformat(cell, (), record) if isinstance(cell, str) else cell(record)
            for cell in columns.values()
        ]
        for record in records
    ]
    print_table(title, list(columns), rows)


def utc(wall_ms: int) -> str:
    """Return a time in milliseconds since 1970 as text, in UTC."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def plain_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> list[str]:
    """Return a table in aligned columns, two blanks apart, without lines.

    Columns that do not fit into ``width`` follow below each row, with their names. No
    name and no figure is broken; a text in the last column is wrapped.
    """
    right = [name.endswith(">") for name in columns]
    names = [name.removesuffix(">") for name in columns]
    table = [names, *rows]
    widths = [max(len(row[place]) for row in table) for place in range(len(columns))]
    fitting = len(columns) if width is None else _fitting(widths, width)
    left = 0 if width is None else width - sum(widths[:fitting]) - len(_GAP) * fitting
    wrapped = fitting == len(columns) - 1 and not right[-1] and left >= _LEAST_WRAPPED
    lines: list[str] = []
    for row in table:
        beside = textwrap.wrap(row[-1], left) if wrapped else []
        cells = [
            cell.rjust(cells_width) if to_the_right else cell.ljust(cells_width)
            for cell, cells_width, to_the_right in zip(
                row[:fitting], widths, right[:fitting], strict=False
            )
        ]
        lines.append(_GAP.join([*cells, *beside[:1]]).rstrip())
        indent = " " * (sum(widths[:fitting]) + len(_GAP) * fitting)
        lines += [f"{indent}{more}" for more in beside[1:]]
        if width is not None and not wrapped and row is not names:
            lines += _below(names[fitting:], row[fitting:], width)
    return lines


def _fitting(widths: Sequence[int], width: int) -> int:
    """Return how many of the first columns fit, at least one."""
    used = 0
    for place, cells_width in enumerate(widths):
        used += cells_width + (len(_GAP) if place else 0)
        if used > width:
            return max(place, 1)
    return len(widths)


def _below(names: Sequence[str], cells: Sequence[str], width: int) -> Iterator[str]:
    for name, cell in zip(names, cells, strict=True):
        if cell:
            yield from textwrap.wrap(
                f"{name}: {cell}" if name else cell,
                width,
                initial_indent="    ",
                subsequent_indent="      ",
                break_long_words=False,
                break_on_hyphens=False,
            )


def optimality_line(found: Mapping[str, Any] | None) -> str:
    """Return the line for the leader's answer; None if nothing is known yet."""
    if found is None:
        return "fullest broker: not known yet"
    policies = ""
    if found["boundWithinPolicies"] > found["bound"]:
        policies = f", within policies {found['boundWithinPolicies']:.1%}"
    bound = f"no assignment below {found['bound']:.1%}{policies}"
    return f"fullest broker {found['largest']:.1%}; {bound}; gap {found['gap']:.0%}"
