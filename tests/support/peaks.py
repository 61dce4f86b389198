"""The most memory that a process has had, and that of the Java of a local Spark."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def peak_bytes(process: int | str) -> int:
    """Return the most memory that a process ever had; what it shares with others counts, too."""
    lines = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return next(int(line[1]) * 1024 for line in lines if line[0] == "VmHWM:")


def java_of(spark: "SparkSession") -> int:
    jvm: Any = spark._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())
