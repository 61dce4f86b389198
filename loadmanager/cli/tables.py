"""Tables for people: with lines on a terminal that has rich, in plain columns elsewhere."""

import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

import click


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, or nothing without rows; a column of which a ``>`` ends the name is right."""
    cells = [[str(cell) for cell in row] for row in rows]
    if not cells:
        return
    if sys.stdout.isatty() and find_spec("rich") is not None:
        _print_rich(title, columns, cells)
    else:
        click.echo("\n".join(["", title, *plain_lines(columns, cells)]))


def plain_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table in aligned columns, two blanks apart, without lines."""
    right = [name.endswith(">") for name in columns]
    table = [[name.removesuffix(">") for name in columns], *rows]
    widths = [max(len(row[place]) for row in table) for place in range(len(columns))]
    return [
        "  ".join(
            cell.rjust(width) if to_the_right else cell.ljust(width)
            for cell, width, to_the_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in table
    ]


def _print_rich(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:  # pragma: no cover - needs a terminal
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(
            name.removesuffix(">"),
            justify="right" if name.endswith(">") else "left",
            overflow="fold",
        )
    for row in rows:
        # Names hold brackets, which rich would take for markup.
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
