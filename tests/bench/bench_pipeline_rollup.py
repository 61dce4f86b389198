"""How fast bundles are rolled up, and in what memory."""

import shutil
from pathlib import Path
from typing import Final

import pytest
from figures import emit
from measured_jobs import run

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]
SIZES: Final = (1_000_000, 16_000_000, 64_000_000)
"""The last is 18 hours of 10,000 bundles that are reported on every ten seconds."""

TARGET_PER_S: Final = 1_000_000
"""Of the largest size."""

NOISE: Final = 1.25
"""How many times its target a figure may miss: two cores are never all for one."""

HEAP: Final = "2g"
"""What the command gives Spark by itself."""

SMALL_HEAP: Final = "600m"
"""Java takes what it may have before it tidies up: what it needs shows where it may have little."""

MOST_GROWTH: Final = 1.3


@pytest.fixture(name="samples", scope="module")
def samples_fixture(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("samples")
    for rows in SIZES:
        run("samples", folder / str(rows), rows)
    return {rows: folder / str(rows) for rows in SIZES}


def test_bundles_are_rolled_up_at_speed(samples: dict[int, Path], tmp_path: Path) -> None:
    took_s: dict[int, float] = {}
    for rows, source in samples.items():
        out = tmp_path / str(rows)
        took_s[rows] = run("rollup", source, out, HEAP)["took_s"]
        shutil.rmtree(out)
        emit("rollup", samples=rows, took_s=took_s[rows], samples_per_s=round(rows / took_s[rows]))
    # By then Java has compiled what runs.
    beyond_per_s = (SIZES[2] - SIZES[1]) / (took_s[SIZES[2]] - took_s[SIZES[1]])
    emit("rollup_beyond", samples=SIZES[1], samples_per_s=round(beyond_per_s))
    assert SIZES[2] / took_s[SIZES[2]] >= TARGET_PER_S / NOISE


def test_more_samples_need_no_more_memory(samples: dict[int, Path], tmp_path: Path) -> None:
    small, large = (
        run("rollup", samples[rows], tmp_path / str(rows), SMALL_HEAP) for rows in SIZES[1:]
    )
    growth = {name: large[name] / small[name] for name in ("peak_mib", "python_peak_mib")}
    emit(
        "rollup_memory",
        heap=SMALL_HEAP,
        times_the_input=SIZES[2] // SIZES[1],
        small=small,
        large=large,
        growth=growth,
        target=MOST_GROWTH,
    )
    assert max(growth.values()) <= MOST_GROWTH
