"""The jobs by name, and the input of a job.

A job reads tables, calls pure functions from data frames to data frames, writes their results,
and returns a few lines that summarise the outcome.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from loadmanager.pipeline.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The input of a job.

    ``history`` is the directory or URL that sidecars write to; only some jobs need it.
    ``since`` (inclusive) and ``until`` (exclusive) are in UTC; None means no bound. ``options``
    are the options of single jobs. ``print_line`` prints a line while the job runs.
    """

    spark: "SparkSession"
    store: "Store"
    history: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    print_line: Callable[[str], None] = lambda _line: None


Job = Callable[[Work], list[str]]
"""Runs, and returns the lines that summarise the outcome."""

JOBS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ingest": "history to typed tables; only files that are new",
        "rollup": "loads per minute, hour and day, profiles, imbalance over time",
        "moves": "effect of each move, and its cost for clients",
        "costs": "costs of messages, bytes, topics and connections, with intervals",
        "replay": "effect of other strategies and settings on the recorded traffic",
        "report": "one HTML file with all of it",
    }
)
"""The purpose of each job, in the order in which they depend on each other."""

_MODULES: Final[Mapping[str, str]] = MappingProxyType(
    {"moves": "move_effects", "costs": "costs", "report": "reporting.job"}
)
"""The modules of jobs that are not ``job`` in the folder of the job's name."""


def job(name: str) -> Job:
    """Return the job of a name of `JOBS`: ``run`` of its module."""
    module = _MODULES.get(name, f"{name}.job")
    found: Job = import_module(f"loadmanager.pipeline.{module}").run
    return found
