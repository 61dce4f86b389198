"""Samples of bundles as ingest writes them, to measure rollups: DIR ROWS."""

import sys
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

BROKERS: Final = 100
BUNDLES: Final = 100
INTERVAL_MS: Final = 10_000
RATES: Final = ("msgs_in_per_s", "msgs_out_per_s", "bytes_in_per_s", "bytes_out_per_s")
MONDAY_MS: Final = 1_767_571_200_000
_HOUR: Final = 3_600_000 // INTERVAL_MS
_SCHEMA: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("bundle", pa.string()),
        ("at_ms", pa.int64()),
        ("interval_s", pa.float64()),
        ("window_s", pa.float64()),
        *((rate, pa.float64()) for rate in RATES),
    ]
)
_REPEATED: Final = [name for name in _SCHEMA.names if name not in RATES]
"""Columns with a dictionary; measured rates have none, as ingest writes them."""


def write(directory: Path, rows: int) -> None:
    """Write samples as ingest lays them out: a broker's hour after another, several files."""
    rng = np.random.default_rng(1)
    reports = rows // (BROKERS * BUNDLES)
    folder = directory / "date=2026-01-05"
    folder.mkdir(parents=True)
    for number, first in enumerate(range(0, reports, _HOUR)):
        times = np.arange(first, min(reports, first + _HOUR))
        file = folder / f"{number:03d}.parquet"
        with pq.ParquetWriter(file, _SCHEMA, compression="zstd", use_dictionary=_REPEATED) as to:
            for broker in range(BROKERS):
                to.write_table(_reports(broker, times, rng))


def _reports(broker: int, times: NDArray[np.int64], rng: np.random.Generator) -> pa.Table:
    """Return the reports of a broker with the numbers ``times``, one row for each bundle."""
    at_ms = MONDAY_MS + broker * 37 + 11 * (times % 7) + (times + 1) * INTERVAL_MS
    size = len(times) * BUNDLES
    rates = rng.lognormal(5.0, 1.0, (size, 4)).round(3)
    names = pa.array([_name(broker * BUNDLES + place) for place in range(BUNDLES)])
    columns = {
        "cluster": pa.repeat(pa.scalar("bench"), size),
        "bundle": names.take(pa.array(np.tile(np.arange(BUNDLES), len(times)))),
        "at_ms": np.repeat(at_ms, BUNDLES),
        "interval_s": np.full(size, INTERVAL_MS / 1000),
        "window_s": np.full(size, 5.0),
        **dict(zip(RATES, rates.T, strict=True)),
    }
    return pa.table(columns, schema=_SCHEMA)


def _name(number: int) -> str:
    first, last = number * 400_000, (number + 1) * 400_000
    return f"tenant-{number % 7}/orders-{number % 40}/0x{first:08x}_0x{last:08x}"


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
