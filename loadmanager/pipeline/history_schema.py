"""The lines of history as Spark sees them, and what makes a line one of them.

Both come from the one declaration in `loadmanager.core.history.kinds`.
"""

from collections.abc import Iterator
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
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
from loadmanager.core.history.schema import ENVELOPE, VERSION, Columns, Field, Kind, Type

CORRUPT: Final = "_corrupt"
"""Where Spark puts the text of a line that it cannot make fit."""

_TYPES: Final[dict[Type, DataType]] = {
    Type.TEXT: StringType(),
    Type.COUNT: LongType(),
    Type.RATE: DoubleType(),
    Type.FLAG: BooleanType(),
}
_EXPECTED: Final = {
    Type.TEXT: "a text",
    Type.COUNT: "a whole number, 0 or more",
    Type.RATE: "a finite number, 0 or more",
    Type.FLAG: "true or false",
}


def line_schema(kind: str) -> StructType:
    """Return the schema of a line of ``kind``, with `CORRUPT` at its end."""
    fields = [_struct_field(one) for one in (*ENVELOPE, *KINDS[kind].fields)]
    return StructType([*fields, StructField(CORRUPT, StringType())])


def fault_of(kind: str, line: Column) -> Column:
    """Return what is wrong with a parsed line of ``kind``, as a text, null for nothing."""
    first = F.when(
        line[CORRUPT].isNotNull(), F.lit(f"no line of kind {kind}: a field is of a wrong form")
    )
    checks = reduce(
        lambda told, check: told.when(check[0], F.lit(check[1])), _checks(KINDS[kind], line), first
    )
    return checks.otherwise(F.lit(None).cast("string"))


def _checks(kind: Kind, line: Column) -> Iterator[tuple[Column, str]]:
    yield line["schema"] != F.lit(VERSION), f"schema: expected {VERSION}"
    for one in (*ENVELOPE, *kind.fields):
        if isinstance(one, Columns):
            yield from _checks_of_columns(one, line[one.name])
        else:
            yield _is_wrong(one, line[one.name]), _told(one.name, one)


def _checks_of_columns(columns: Columns, value: Column) -> Iterator[tuple[Column, str]]:
    yield value.isNull(), f"{columns.name}: expected an object of lists of one length"
    for one in columns.fields:
        yield _is_wrong_list(one, value[one.name]), _told(f"{columns.name}.{one.name}", one)
    size = F.size(value[columns.fields[0].name])
    for one in columns.fields[1:]:
        yield (
            F.size(value[one.name]) != size,
            f"{columns.name}.{one.name}: expected as many items as {columns.fields[0].name}",
        )


def _told(name: str, field: Field) -> str:
    return f"{name}: expected {_EXPECTED[field.type]}{' or null' if field.nullable else ''}"


def _is_wrong(field: Field, value: Column) -> Column:
    if field.listed:
        return _is_wrong_list(field, value)
    missing = value.isNull()
    if field.type in {Type.TEXT, Type.FLAG}:
        return F.lit(False) if field.nullable else missing  # noqa: FBT003 - a value
    outside = ~_within(field, value, value)
    return (value.isNotNull() & outside) if field.nullable else (missing | outside)


def _is_wrong_list(field: Field, value: Column) -> Column:
    wrong = value.isNull()
    if not field.nullable:
        wrong = wrong | F.exists(value, lambda item: item.isNull())
    if field.type in {Type.COUNT, Type.RATE}:
        least, most = F.array_min(value), F.array_max(value)
        wrong = wrong | (least.isNotNull() & ~_within(field, least, most))
    return wrong


def _within(field: Field, least: Column, most: Column) -> Column:
    # In Spark's order NaN is above infinity.
    bound = most < F.lit(float("inf")) if field.type is Type.RATE else most.isNotNull()
    return (least >= 0) & bound


def _struct_field(one: Field | Columns) -> StructField:
    if isinstance(one, Columns):
        inner = StructType([_listed(field) for field in one.fields])
        return StructField(one.name, inner)
    return _listed(one) if one.listed else StructField(one.name, _TYPES[one.type])


def _listed(field: Field) -> StructField:
    return StructField(field.name, ArrayType(_TYPES[field.type]))
