import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from whole_demo import Demo, run_demo

from loadmanager.adapters.history.storage import check_history

pytestmark = [pytest.mark.processes, pytest.mark.timeout(500)]


def keeps_every_promise(summary: dict[str, Any]) -> bool:
    counts = ("double_owned", "lookup_errors", "publish_errors")
    return [summary[name] for name in counts] == [0, 0, 0]


FIGURES = re.compile(r"(\d+) s  load .*max/mean ([\d.]+) .*moves (\d+) ")
LONGEST_S = 300.0


def until_even_for(seconds: float, lines: Iterator[str]) -> None:
    """Read what a demo prints until its brokers have been even for so long, however soon that is.

    The last ten seconds are what its summary calls the end.
    """
    since_s = 0.0
    for line in lines:
        if found := FIGURES.search(line):
            at_s, max_over_mean, moves = map(float, found.groups())
            since_s = since_s if moves and max_over_mean <= 1.2 else at_s
            if at_s - since_s >= seconds:
                return
            assert at_s < LONGEST_S, line
    pytest.fail("the demo ended by itself")


def test_a_stranger_joins_sees_skewed_traffic_balanced_and_stops_it(tmp_path: Path) -> None:
    data_dir, history = tmp_path / "data", tmp_path / "history"
    demo = subprocess.Popen(
        [
            *(sys.executable, "-m", "loadmanager", "demo", "--json"),
            *("--data-dir", str(data_dir), "--history", str(history)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stderr is not None
    told = []
    while "msg/s" not in (line := demo.stderr.readline()):
        assert demo.poll() is None
        told.append(line.strip())
    first = told.index("The cluster is up. Join it from another terminal:") + 1
    commands = told[first : told.index("Its addresses:")]
    for command in commands:
        pasted = shlex.split(f"{command} --times 1" if " top " in command else command)
        done = subprocess.run(pasted, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.count("rror")) == (0, 0), done
        assert "127.0.0.1" in done.stdout or "0x" in done.stdout, done
    (page,) = (line.split()[-1] for line in told if line.startswith("live page"))
    done = subprocess.run(["curl", "-s", page], capture_output=True, text=True, check=True)
    assert '<section id="balance"' in done.stdout
    until_even_for(12.0, iter(demo.stderr.readline, ""))
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=120)
    assert demo.returncode == 0, err
    assert processes_of(data_dir) == []
    summary = json.loads(out)
    assert keeps_every_promise(summary)
    # It is about 2; where the first move comes early, loads after it count, too.
    assert summary["imbalance_start"] >= 1.3
    assert summary["imbalance_end"] <= 1.25
    assert summary["settings"]["sidecar"]["zookeeper"]["session_timeout_s"] == 4
    assert summary["moves"] > 0
    assert summary["taken_over"] == 0
    assert summary["published"] > summary["seconds"] * 120 * 0.5
    assert summary["lookups"] > summary["seconds"] * 20 * 0.4
    found = check_history(history)
    assert (found.faults, found.missing, found.unfinished, found.given_up) == ([], 0, 0, 0)
    assert {"report", "tick", "round", "bundles", "move", "hand_over"} <= found.kinds.keys()


@pytest.mark.thorough
def test_a_killed_leader_is_made_up_for_without_an_error_and_history_tells_of_it(
    demo_with_a_killed_leader: Demo,
) -> None:
    summary = demo_with_a_killed_leader.summary
    assert keeps_every_promise(summary)
    assert summary["leader_before"] in summary["killed_broker"]
    assert summary["leader_after"] not in (None, summary["leader_before"])
    # Of the 30 s that the traffic goes on after the kill; `make bench` tells the figures.
    assert 0 < summary["new_leader_s"] < 25
    assert 0 < summary["reserved_s"] < 30
    assert 0 < summary["publish_gap_s"] < 30
    assert summary["taken_over"] > 0
    found = check_history(demo_with_a_killed_leader.history)
    assert (found.faults, found.missing, found.unfinished, found.given_up) == ([], 0, 0, 0)
    # Nobody told that a term ended: both leaders were killed.
    assert found.kinds["term"] >= 2


@pytest.mark.thorough
def test_a_demo_with_kills_ends_by_itself_with_its_summary(tmp_path: Path) -> None:
    summary = run_demo(tmp_path / "data", "--kill", "broker-1@3", "--kill", "leader@8")
    assert keeps_every_promise(summary)
    assert len(summary["kills"]) == 2
    assert 8 + 40 <= summary["seconds"] < 8 + 45
    assert all(kill["reserved_s"] for kill in summary["kills"])


def processes_of(data_dir: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended while we looked
        if str(data_dir) in words:
            found.append(words)
    return found
