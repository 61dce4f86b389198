import json
import os
import platform
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_SIGNIFICANT_DIGITS = 4


class TooSlow(AssertionError):
    """A figure that is over its bound, as it may be once on a machine that others use."""


@cache
def machine() -> dict[str, object]:
    return {"cores": os.cpu_count(), "cpu": _cpu_model(), "python": platform.python_version()}


def emit(name: str, **fields: object) -> None:
    """Print one figure; numbers are cut to four digits, more would be noise."""
    line = {"bench": name, **fields, "machine": machine()}
    sys.stdout.write(json.dumps(_cut(line)) + "\n")
    sys.stdout.flush()


def percentile(values: Iterable[float], percent: int) -> float:
    """Return the smallest value that ``percent`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[-(-len(ordered) * percent // 100) - 1]


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def _cut(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _cut(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(one) for one in value]
    return value
