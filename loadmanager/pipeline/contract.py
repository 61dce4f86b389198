"""Declarations of tables: their columns and types, and the job that writes each."""

import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import loadmanager.pipeline
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.jobs import JOBS

_TYPES: Final[Mapping[str, DataType]] = MappingProxyType(
    {
        "string": StringType(),
        "bigint": LongType(),
        "int": IntegerType(),
        "double": DoubleType(),
        "boolean": BooleanType(),
        "date": DateType(),
        "timestamp": TimestampType(),
        "array<double>": ArrayType(DoubleType()),
    }
)

Declared = str | StructField | Iterable[StructField]
"""Columns: one field, several fields, or text as `columns` reads it."""


def column(name: str, kind: DataType, meaning: str) -> StructField:
    """Return the declaration of a column that says what it means."""
    return StructField(name, kind, metadata={"meaning": meaning})


def columns(*declared: Declared, **types: DataType) -> StructType:
    """Return a schema; a text has one line ``name type meaning`` for each column.

    A type is one of Spark's simple names, or the name of one of ``types``.
    """
    return StructType([field for one in declared for field in _fields(one, types)])


def _fields(declared: Declared, types: Mapping[str, DataType]) -> Iterator[StructField]:
    if isinstance(declared, StructField):
        yield declared
    elif isinstance(declared, str):
        for line in filter(str.strip, declared.splitlines()):
            name, kind, *words = line.split()
            yield column(name, types.get(kind) or _TYPES[kind], " ".join(words))
    else:
        yield from declared


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: ``schema`` has its columns; the metadata of a field may have a ``meaning``.

    ``job`` is the job that writes it, ``by`` are the columns that partition it into folders.
    """

    name: str
    job: str
    meaning: str
    schema: StructType
    by: tuple[str, ...] = ()

    def conform(self, frame: DataFrame) -> DataFrame:
        """Return ``frame`` with exactly the columns of this table, in its order and types.

        Raises:
            PipelineError: a column is missing.
        """
        missing = [name for name in self.schema.names if name not in frame.columns]
        if missing:
            text = f"table {self.name}: column {', '.join(missing)} is missing"
            raise PipelineError(f"{text}; expected {', '.join(self.schema.names)}")
        return frame.select(
            *(F.col(field.name).cast(field.dataType).alias(field.name) for field in self.schema)
        )


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
