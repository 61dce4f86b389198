"""Declarations of tables: their columns and types, and the job that writes each."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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

from loadmanager.pipeline.failures import PipelineError

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
