"""Reads recorded traffic in Parquet, in parts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.scores import FloatArray
from loadmanager.simulator.errors import ScenarioError
from loadmanager.simulator.trace_rows import TOPIC, TraceColumns, TraceFaults, TraceRows

_PART_ROWS: Final = 65_536


def parquet_parts(path: Path, faults: TraceFaults) -> Iterator[tuple[TraceColumns, TraceRows]]:
    """Yield the rows of a Parquet file in parts, with the codes of topics.

    Raises:
        ScenarioError: the file has too many faults, or pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra that other scenarios do without
        from pyarrow import parquet  # noqa: PLC0415 - the same
    except ImportError:
        text = "Parquet needs pyarrow; expected it installed: pip install 'loadmanager[simulator]'"
        raise ScenarioError([f"{path}: {text}"]) from None
    try:
        with parquet.ParquetFile(path) as opened:
            yield from _parquet_parts(opened, faults)
    except OSError as error:
        faults.add(None, f"{error.strerror or error}; expected a readable Parquet file")
    # pyarrow raises many different errors for a damaged file.
    except (pa.ArrowException, ValueError, OverflowError, MemoryError) as error:
        faults.add(None, f"{str(error).splitlines()[0]}; expected a Parquet file")


def _parquet_parts(opened: Any, faults: TraceFaults) -> Iterator[tuple[TraceColumns, TraceRows]]:
    schema = opened.schema_arrow
    columns = TraceColumns(schema.names, faults, None)
    _check_types(schema, faults)
    first = 1
    for batch in opened.iter_batches(batch_size=_PART_ROWS):
        numbers = np.arange(first, first + len(batch), dtype=np.int64)
        values = {name: _numbers(batch.column(name)) for name in columns.numbers}
        topics = _topic_codes(batch.column(TOPIC), columns, numbers)
        yield columns, columns.rows(numbers, topics, values)
        first += len(batch)


def _check_types(schema: Any, faults: TraceFaults) -> None:
    from pyarrow import types  # noqa: PLC0415 - an extra

    for column in schema:
        plain = column.type.value_type if types.is_dictionary(column.type) else column.type
        if column.name == TOPIC and not (types.is_string(plain) or types.is_large_string(plain)):
            faults.add(None, f"column {TOPIC} is of type {column.type}; expected texts")
        elif column.name != TOPIC and not (types.is_integer(plain) or types.is_floating(plain)):
            faults.add(None, f"column {column.name} is of type {column.type}; expected numbers")
    faults.check()


def _numbers(column: Any) -> FloatArray:
    """Return numbers of any type as floats; null is NaN."""
    found: FloatArray = _plain(column).cast("float64", safe=False).to_numpy(zero_copy_only=False)
    return found


def _topic_codes(
    column: Any, columns: TraceColumns, numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    encoded = _plain(column).dictionary_encode(null_encoding="encode")
    inside = encoded.indices.to_numpy()
    names = ["" if name is None else name for name in encoded.dictionary.to_pylist()]
    first = np.unique(inside, return_index=True)[1]
    codes = columns.codes(names, numbers[first].tolist())
    return np.asarray(codes[inside])


def _plain(column: Any) -> Any:
    from pyarrow import types  # noqa: PLC0415 - an extra

    return column.dictionary_decode() if types.is_dictionary(column.type) else column
