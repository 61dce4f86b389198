"""The state of a stream between batches, and its files.

    OUT/stream/checkpoint             of Spark: the files of each batch
    OUT/stream/state/000007/sums      sums of minutes that are open after batch 7
    OUT/stream/state/000007/seen      keys of their lines, to detect copies
    OUT/stream/state/000007/state.json   written last: without it the batch is repeated
    OUT/stream_minutes/batch=000007   the minutes that batch 7 completed
    OUT/stream_alerts/batch=000007

A batch reads the state of the previous one and overwrites the remains of an earlier attempt. Spark
repeats an unfinished batch with the same files. So each batch counts exactly once.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.files import Files
from loadmanager.pipeline.streaming.alerts import Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEN: Final = StructType(
    [
        StructField("writer", StringType()),
        StructField("instance", StringType()),
        StructField("seq", LongType()),
        StructField("at_ms", LongType()),
    ]
)
"""The key of a report that was counted."""

_KEPT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a stream: minutes before ``closed_ms`` are complete.

    ``newest_ms`` has the time of the newest report of each broker.
    """

    closed_ms: int = 0
    newest_ms: Mapping[str, int] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)

    @property
    def closed(self) -> datetime:
        """``closed_ms`` as a time."""
        return datetime.fromtimestamp(self.closed_ms / 1000, UTC)

    @property
    def last_ms(self) -> int:
        """The time of the newest report of all brokers; 0 if there was none."""
        return max(self.newest_ms.values(), default=0)

    def to_json(self) -> dict[str, Any]:
        """Return the progress as JSON."""
        return asdict(self) | {"watch": self.watch.to_json()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the progress that `to_json` returned."""
        return cls(
            closed_ms=content["closed_ms"],
            newest_ms=dict(content["newest_ms"]),
            watch=Watch.from_json(content["watch"]),
        )


class Memory:
    """The files of a stream's state below ``out``."""

    def __init__(self, spark: "SparkSession", files: Files, out: str) -> None:
        self._spark = spark
        self._files = files
        self._out = out
        self._states = f"{out}/stream/state"
        self.checkpoint = f"{out}/stream/checkpoint"

    def begin(self) -> None:
        """Delete the results of an earlier stream if its checkpoint is missing."""
        if not self._files.exists(self.checkpoint):
            for name in ("stream", "stream_minutes", "stream_alerts"):
                self._files.delete(f"{self._out}/{name}")

    def latest(self) -> Progress:
        """Return the current progress."""
        return self.progress(sys.maxsize)

    def batch_folder(self, table: str, part: int | str) -> str:
        """Return the folder of the rows of a batch, or of rows that belong to no batch."""
        name = f"{part:06d}" if isinstance(part, int) else part
        return f"{self._out}/{table}/batch={name}"

    def progress(self, batch: int) -> Progress:
        """Return the progress before ``batch``."""
        former = self._former(batch)
        if former is None:
            return Progress()
        where = f"{self._states}/{former}/state.json"
        try:
            return Progress.from_json(json.loads(self._files.read(where)))
        except (ValueError, KeyError, TypeError) as error:
            text = f"{where}: {error!r}; expected the state that a stream wrote"
            raise PipelineError(f"{text}; remove {self._out}/stream to start over") from None

    def frame(self, batch: int, name: str, like: StructType) -> DataFrame:
        """Return ``sums`` or ``seen`` before ``batch``; ``like`` is their schema."""
        former = self._former(batch)
        if former is None:
            return self._spark.createDataFrame([], like)
        return self._spark.read.schema(like).parquet(f"{self._states}/{former}/{name}")

    def keep(self, batch: int, progress: Progress, frames: Mapping[str, DataFrame]) -> None:
        """Write the state after ``batch``, which completes the batch."""
        where = f"{self._states}/{batch:06d}"
        for name, frame in frames.items():
            frame.write.mode("overwrite").parquet(f"{where}/{name}")
        self._files.write(f"{where}/state.json", json.dumps(progress.to_json(), sort_keys=True))
        for name in self._files.names(self._states):
            if name.isdigit() and int(name) <= batch - _KEPT:
                self._files.delete(f"{self._states}/{name}")

    def _former(self, batch: int) -> str | None:
        """Return the folder of the last state before ``batch``."""
        for name in reversed(self._files.names(self._states)):
            whole = self._files.exists(f"{self._states}/{name}/state.json")
            if name.isdigit() and int(name) < batch and whole:
                return name
        return None
