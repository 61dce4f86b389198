"""A Spark session with the settings that all jobs share."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from loadmanager.pipeline.runtime import (
    SparkUnavailable,
    check_memory,
    environment,
    java_home,
    shim_folder,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")

_ALWAYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.parquet.compression.codec": "zstd",
        # Its own bar is written over ours.
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Where jobs run. ``more`` are Spark's own settings; they win over ours.

    ``driver_memory`` is a size such as ``2g``; with a ``local`` master it is all that
    Spark gets, so it is checked against what the host has.
    """

    master: str = "local[*]"
    driver_memory: str = "2g"
    more: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def local(self) -> bool:
        """Whether everything runs in this host's one JVM."""
        return self.master.startswith("local")


@contextlib.contextmanager
def spark_session(settings: SessionSettings, name: str) -> Iterator["SparkSession"]:
    """Yield a session for the job ``name``; stops it at the end.

    Raises:
        SparkUnavailable: PySpark, Java or memory is missing, or the master cannot be reached.
    """
    check_memory(settings.driver_memory)
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        told = "Spark is not installed; pip install 'loadmanager[pipeline]'"
        raise SparkUnavailable(told) from None
    os.environ.update(environment(java_home(shim_folder())))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(settings.master).appName(f"loadmanager {name}")
    for key, value in _conf(settings).items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        # Spark's own and Py4J's errors have no common class; all mean the same here.
        raise SparkUnavailable(f"Spark does not start at {settings.master}: {error}") from error
    try:
        yield session
    finally:
        session.stop()


def _conf(settings: SessionSettings) -> dict[str, str]:
    conf = {
        **_ALWAYS,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
    }
    if settings.local:
        conf["spark.driver.bindAddress"] = conf["spark.driver.host"] = "127.0.0.1"
    return conf | dict(settings.more)
