"""The document docs/pipeline-tables.md: all tables of the pipeline with their columns."""

import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Final

from pyspark.sql.types import StructField

import loadmanager.pipeline
from loadmanager.pipeline.contract import Table
from loadmanager.pipeline.jobs import JOBS

_HEAD: Final = """\
# Tables of the pipeline

Made by `loadmanager pipeline --tables` from the declarations that every job's rows are held to; do
not edit it. [pipeline.md](pipeline.md) describes how the jobs are run.

Tables are Parquet in folders of `--out`. Folders are named by batch or version, of which those
count that a manifest names: read a table with `Store(spark, out).table(name)` of
`loadmanager.pipeline.store` rather than with a pattern over all of its files. Times are UTC.
"""


def described() -> str:
    """Return all tables as Markdown, in the order of the jobs that make them."""
    parts = [_HEAD]
    tables = declared()
    for job, what in JOBS.items():
        made = [table for table in tables if table.job == job]
        if made:
            parts.append(f"## {job}: {what}\n")
            parts += [_described(table) for table in made]
    return "\n".join(parts)


def declared() -> list[Table]:
    """Return all tables that modules of the pipeline declare, sorted by job and name.

    Raises:
        ValueError: two tables have the same name.
    """
    found: dict[str, Table] = {}
    for module in pkgutil.walk_packages(
        loadmanager.pipeline.__path__, f"{loadmanager.pipeline.__name__}."
    ):
        for value in vars(import_module(module.name)).values():
            for table in _tables_in(value):
                if found.setdefault(table.name, table) != table:
                    raise ValueError(f"two tables are called {table.name}; expected one")
    order = list(JOBS)
    return sorted(found.values(), key=lambda table: (order.index(table.job), table.name))


@cache
def _jobs() -> Mapping[str, str]:
    return {table.name: table.job for table in declared()}


def job_of(name: str) -> str | None:
    """Return the job that writes the table ``name``; None for a table that none declares."""
    return _jobs().get(name)


def _tables_in(value: object) -> Iterator[Table]:
    """Yield ``value`` if it is a table, or the tables that it contains."""
    if isinstance(value, Table):
        yield value
    elif isinstance(value, Mapping):
        yield from (one for one in value.values() if isinstance(one, Table))
    elif isinstance(value, (tuple, list, frozenset)):
        yield from (one for one in value if isinstance(one, Table))


def _described(table: Table) -> str:
    by = f" In folders by {', '.join(table.by)}." if table.by else ""
    lines = [f"### {table.name}", "", f"{table.meaning}{by}", "", *_columns(table.schema)]
    return "\n".join([*lines, ""])


def _columns(fields: Iterable[StructField]) -> Iterator[str]:
    yield "| column | type | what it is |"
    yield "|---|---|---|"
    for field in fields:
        meaning = field.metadata.get("meaning", "").replace("|", "\\|")
        yield f"| `{field.name}` | {field.dataType.simpleString()} | {meaning} |"
