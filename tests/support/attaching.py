"""`loadmanager attach --balance` as a process at real brokers, and what it tells."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from real_pulsar import RealPulsar

from loadmanager.pulsar.state import SWITCHES

PATIENCE_S: Final = 240.0
"""So long anything may take on a busy machine; a test waits no longer than it needs to."""


@contextmanager
def balancing(
    cluster: RealPulsar, state_dir: Path, *more: str
) -> Iterator[tuple[subprocess.Popen[str], list[dict[str, Any]]]]:
    """Run the command; yields it and what it has told so far, ``ended`` last of all.

    Pulsar's settings are restored even where a test fails, so that it can be tried once more.
    """
    with _telling(command(cluster, state_dir, "--balance", *more)) as (process, told):
        try:
            yield process, told
        finally:
            killed = process.poll() is None
            process.kill()
            process.wait()
            if killed:
                subprocess.run(command(cluster, state_dir, "--restore"), check=False, timeout=60)


@contextmanager
def observing(cluster: RealPulsar, state_dir: Path, *more: str) -> Iterator[list[dict[str, Any]]]:
    """Run the command without moves; yields what it has told so far."""
    with _telling(command(cluster, state_dir, *more)) as (_, told):
        yield told


@contextmanager
def _telling(argv: list[str]) -> Iterator[tuple[subprocess.Popen[str], list[dict[str, Any]]]]:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    told: list[dict[str, Any]] = []

    def listen() -> None:
        assert process.stdout is not None
        told.extend(map(json.loads, process.stdout))
        code = process.wait()
        at = datetime.now(tz=UTC).isoformat(timespec="milliseconds")
        told.append({"at": at, "event": f"the process ended with {code}", "ended": code})

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
    # All brokers are on this host, whose CPU the extensible manager reports as that of each.
    cores = ("--cores", "0.7") if cluster.manager == "extensible" else ()
    return [
        *(sys.executable, "-m", "loadmanager", "attach", "--pulsar", cluster.url),
        *("--state-dir", str(state_dir), "--json", *cores, *more),
    ]


def overridden(cluster: RealPulsar) -> dict[str, str]:
    values: dict[str, str] = cluster.json("/admin/v2/brokers/configuration/values")
    return {key: value for key, value in values.items() if key in SWITCHES}


def first(told: list[dict[str, Any]], key: str, value: object) -> dict[str, Any]:
    def has_value(line: dict[str, Any]) -> bool:
        return bool(line.get(key) == value or line.get("task", {}).get(key) == value)

    return told_until(told, has_value)


def told_until(
    told: list[dict[str, Any]],
    wanted: Callable[[dict[str, Any]], bool],
    limit_s: float = PATIENCE_S,
    since: int = 0,
) -> dict[str, Any]:
    """Wait for a line that is wanted, leaving out the first ``since``; return the first one."""
    deadline_s = time.monotonic() + limit_s
    while True:
        for line in told[since:]:
            if wanted(line):
                return line
        over = "ended" in told[-1] if told else False
        if over or time.monotonic() >= deadline_s:
            pytest.fail("\n".join(map(_brief, told)))
        time.sleep(0.05)


def _brief(line: dict[str, Any]) -> str:
    if task := line.get("task"):
        ends = f"{task['source']} -> {task['target']}"
        return (
            f"{line['at']} {task['kind']} {task['bundle']} {ends}: {task['state']} {task['reason']}"
        )
    if "verdict" in line:
        rates = [round(one["msgsInPerS"]) for one in line["brokers"]]
        why = [f"{one['about']} {one['reason']}: {one['detail']}" for one in line["refusals"]]
        held = f"{line['held']} {line['missing']} {why}"
        return f"{line['at']} {line['verdict']} {rates} msg/s {held}"
    return f"{line['at']} {line['event']}"


def ended_tasks(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tasks that have ended; each that was ordered has, and says why it went wrong."""
    tasks = [line["task"] for line in told if "task" in line]
    ended = [one for one in tasks if one["state"] != "ordered"]
    ordered = {one["number"] for one in tasks if one["state"] == "ordered"}
    assert ordered <= {one["number"] for one in ended}
    assert all(one["reason"] for one in ended if one["state"] != "serving")
    return ended


def even(line: dict[str, Any], at_most: float = 1.25) -> bool:
    """Return whether a line is a whole window in which traffic is even."""
    return bool(line.get("whole") and (line["maxOverMean"] or 9) <= at_most)
