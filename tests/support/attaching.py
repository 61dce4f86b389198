"""`loadmanager attach --balance` as a process at real brokers, and what it tells."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from real_pulsar import RealPulsar


@contextmanager
def balancing(
    cluster: RealPulsar, state_dir: Path, *more: str
) -> Iterator[tuple[subprocess.Popen[str], list[dict[str, Any]]]]:
    """Run the command; yields it and what it has told so far."""
    process = subprocess.Popen(
        command(cluster, state_dir, "--balance", *more), stdout=subprocess.PIPE, text=True
    )
    told: list[dict[str, Any]] = []

    def listen() -> None:
        assert process.stdout is not None
        told.extend(map(json.loads, process.stdout))

    reader = threading.Thread(target=listen)
    reader.start()
    try:
        yield process, told
    finally:
        process.kill()
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


def command(cluster: RealPulsar, state_dir: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "loadmanager", "attach", "--pulsar", cluster.url),
        *("--state-dir", str(state_dir), "--json", *more),
    ]


def first(told: list[dict[str, Any]], key: str, value: object, limit_s: float) -> dict[str, Any]:
    """Wait for what it tells with a value, and return it."""
    deadline_s = time.monotonic() + limit_s
    while True:
        for line in list(told):
            if line.get(key) == value or line.get("task", {}).get(key) == value:
                return line
        assert time.monotonic() < deadline_s, (key, value, told)
        time.sleep(0.05)
