from collections.abc import Mapping
from typing import TYPE_CHECKING

from loadmanager.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class GivenStore(Store):
    """What is derived is stored below ``out``, as ever."""

    def __init__(self, spark: "SparkSession", out: str, tables: Mapping[str, "DataFrame"]) -> None:
        super().__init__(spark, out)
        self._tables = tables

    def table(self, name: str) -> "DataFrame":
        return self._tables[name] if name in self._tables else super().table(name)
