"""What a table of the pipeline promises: its columns, their types, and the job that makes it."""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DataType, StructField, StructType

from loadmanager.pipeline.failures import PipelineError


def column(name: str, kind: DataType, meaning: str) -> StructField:
    """Return the declaration of a column that says what it means."""
    return StructField(name, kind, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: ``schema`` says its columns; each field's metadata may have a ``meaning``.

    ``job`` is the job that makes it. ``by`` are the columns that its folders are named by.
    """

    name: str
    job: str
    meaning: str
    schema: StructType
    by: tuple[str, ...] = ()

    def conform(self, frame: DataFrame) -> DataFrame:
        """Return ``frame`` with this table's columns alone, in their order and of their types.

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
