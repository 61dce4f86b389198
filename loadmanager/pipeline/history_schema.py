"""Spark schemas of the lines of history, derived from their declaration in the core."""

from collections.abc import Iterable
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from loadmanager.core.history.kinds import KINDS
from loadmanager.core.history.schema import ENVELOPE, Columns, Field, Type
from loadmanager.pipeline.contract import column

_TYPES: Final[dict[Type, DataType]] = {
    Type.TEXT: StringType(),
    Type.COUNT: LongType(),
    Type.TIME: LongType(),
    Type.RATE: DoubleType(),
    Type.FLAG: BooleanType(),
}


def line_schema(kind: str) -> StructType:
    return StructType([_field(one) for one in (*ENVELOPE, *KINDS[kind].fields)])


def columns_of(kind: str, name: str) -> Columns:
    """Return the group of parallel lists of that name in a line of ``kind``."""
    found = next(one for one in KINDS[kind].fields if one.name == name)
    if not isinstance(found, Columns):
        raise TypeError(f"{kind}.{name} is no columns")
    return found


def fields_of(kind: str) -> tuple[StructField, ...]:
    """Return the fields of a line except its groups of lists."""
    return plain(one for one in KINDS[kind].fields if isinstance(one, Field))


def plain(fields: Iterable[Field]) -> tuple[StructField, ...]:
    return tuple(_field(one) for one in fields)


def row_of(columns: Columns) -> StructType:
    return StructType([column(one.name, _TYPES[one.type], one.meaning) for one in columns.fields])


def _field(one: Field | Columns) -> StructField:
    if isinstance(one, Columns):
        lists = [
            column(each.name, ArrayType(_TYPES[each.type]), each.meaning) for each in one.fields
        ]
        return column(one.name, StructType(lists), one.meaning)
    kind = _TYPES[one.type]
    return column(one.name, ArrayType(kind) if one.listed else kind, one.meaning)
