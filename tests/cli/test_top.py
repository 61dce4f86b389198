"""``loadmanager top``: figures first at 80 columns, and a terminal that is given back."""

import io
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from leader_queries import FakeLeaderQueries
from rich.console import Console
from snapshot_samples import hot_and_idle

from loadmanager.cli import main
from loadmanager.cli.cluster import broker_rows
from loadmanager.cli.top_screen import Observation, draw
from loadmanager.core.ids import BrokerId
from loadmanager.core.load import ResourceUsage
from loadmanager.core.snapshot.codec import encode_snapshot
from loadmanager.core.snapshot.document import Snapshot
from loadmanager.core.wire.records import LeaderRecord
from loadmanager.ports.lookup import LookupService

LEAVE_SCREEN = b"\x1b[?1049l"
SHOW_CURSOR = b"\x1b[?25h"
MOVE = {
    "atMs": 1_700_000_000_000,
    "kind": "drain",
    "subject": "t/ns/0x00000000_0x20000000",
    "source": "b1:8080",
    "target": "b2:8080",
}


FOUND = {"largest": 0.8, "bound": 0.4, "boundWithinPolicies": 0.5, "gap": 1.0}


def lines(look: Observation, most_bundles: int = 10, **size: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(draw(look, most_bundles, **size))
    return [line.rstrip() for line in console.export_text().splitlines()]


def look(snapshot: Snapshot, *moves: dict[str, Any]) -> Observation:
    rows = list(broker_rows(snapshot, "b1:8080"))
    return Observation(
        snapshot=snapshot, leader="b1:8080", brokers=rows, moves=moves, optimality=FOUND
    )


def line_of(text: list[str], begin: str) -> str:
    return next(line for line in text if line.startswith(begin))


def test_figures_come_before_the_bar_and_the_scarcest_resource_is_named() -> None:
    snapshot = hot_and_idle()
    (hot, report), *_ = snapshot.reports.items()
    full = replace(report, memory=ResourceUsage(95, 100))
    text = lines(look(replace(snapshot, reports={**snapshot.reports, hot: full})))
    row = line_of(text, "b1:8080")
    assert row.split()[:5] == ["b1:8080", "★", "80%", "memory", "95%"]
    assert row.endswith("████████░░")
    assert max(map(len, text)) <= 80


def test_the_distance_from_the_best_is_shown_as_far_as_it_is_known() -> None:
    now = look(hot_and_idle())
    assert line_of(lines(now), "fullest") == (
        "fullest broker 80.0%; no assignment below 40.0%, within policies 50.0%; gap 100%"
    )
    free = replace(now, optimality={**FOUND, "boundWithinPolicies": 0.4})
    assert line_of(lines(free), "fullest").endswith("below 40.0%; gap 100%")
    young = replace(now, optimality=None)
    assert line_of(lines(young), "fullest") == "fullest broker: not known yet"


def test_figures_are_kept_whole_beside_names_of_any_length() -> None:
    snapshot = hot_and_idle()
    long = BrokerId("pulsar-broker-0.pulsar-broker.production.svc.cluster.local:8080")
    (_, report), *others = snapshot.reports.items()
    text = lines(look(replace(snapshot, reports={long: report, **dict(others)})))
    assert max(map(len, text)) <= 80
    assert " 80%  cpu 80%" in line_of(text, "pulsar-broker-0")


def test_the_last_moves_are_shown_with_both_brokers_if_they_fit() -> None:
    text = lines(look(hot_and_idle(), MOVE))
    assert line_of(text, "22:13:20") == (
        "22:13:20  drain  t/ns/0x00000000_0x20000000  b1:8080 -> b2:8080"
    )
    long = {**MOVE, "source": "broker-1.production.example.org:8080"}
    assert line_of(lines(look(hot_and_idle(), long)), "22:13:20").split()[-1] == "b2:8080"


@pytest.mark.parametrize("height", [24, 16, 14])
def test_the_picture_is_no_higher_than_the_terminal(height: int) -> None:
    text = lines(look(hot_and_idle(), *[MOVE] * 5), height=height)
    assert len(text) <= height
    assert line_of(text, "b1:8080")


class Lookups(LookupService):
    @property
    def leader(self) -> LeaderRecord | None:
        return LeaderRecord(
            broker=BrokerId("b1:8080"),
            service_url="http://b1:8080",
            sidecar_url="http://b1:7750",
            instance="x",
            epoch=4,
        )


@pytest.fixture
def leader_term() -> FakeLeaderQueries:
    return FakeLeaderQueries(content=encode_snapshot(hot_and_idle()))


@pytest.fixture
def url(leader_term: FakeLeaderQueries, serve: Callable[..., str]) -> str:
    return serve(leader_term, lookups=Lookups())  # type: ignore[abstract]  # the rest is never called


class Terminal:
    def __init__(self, *arguments: str) -> None:
        self.fd, inner = pty.openpty()
        termios.tcsetwinsize(inner, (24, 80))
        self.modes = termios.tcgetattr(inner)
        self._inner = inner
        self.shown = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "loadmanager", "top", *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color"},
        )

    def until(self, text: bytes, within_s: float = 30.0) -> None:
        deadline_s = time.monotonic() + within_s
        while text not in self.shown:
            assert time.monotonic() < deadline_s, self.shown
            if select.select([self.fd], [], [], 0.2)[0]:
                self.shown += os.read(self.fd, 65536)

    def ended(self) -> int:
        code = self.process.wait(30)
        while select.select([self.fd], [], [], 0.2)[0]:
            self.shown += os.read(self.fd, 65536)
        return code

    def is_given_back(self) -> bool:
        left = self.shown.rfind(LEAVE_SCREEN) > 0 and self.shown.rfind(SHOW_CURSOR) > 0
        return left and termios.tcgetattr(self._inner) == self.modes

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        os.close(self.fd)
        os.close(self._inner)


@pytest.fixture
def terminal(url: str) -> Iterator[Terminal]:
    shown = Terminal("--url", url, "--interval", "0.3")
    yield shown
    shown.close()


def test_q_ends_it_and_gives_the_terminal_back(terminal: Terminal) -> None:
    terminal.until(b"busiest bundles")
    assert termios.tcgetattr(terminal._inner) != terminal.modes
    os.write(terminal.fd, b"xq")
    assert terminal.ended() == 0
    assert terminal.is_given_back()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + 15), (signal.SIGHUP, 128 + 1)]
)
def test_a_signal_gives_it_all_back(terminal: Terminal, number: signal.Signals, code: int) -> None:
    terminal.until(b"busiest bundles")
    terminal.process.send_signal(number)
    assert terminal.ended() == code
    assert terminal.is_given_back()


def test_without_an_answer_it_stays(terminal: Terminal, leader_term: FakeLeaderQueries) -> None:
    terminal.until(b"busiest bundles")
    leader_term.away = True
    terminal.shown = b""
    terminal.until(b"no news: no leader is at work")
    terminal.until(b"busiest bundles")
    leader_term.away = False
    terminal.shown = b""
    terminal.until(b"busiest bundles")
    assert terminal.process.poll() is None


def test_without_a_terminal_pictures_are_printed(url: str, leader_term: FakeLeaderQueries) -> None:
    got = CliRunner().invoke(main, ["top", "--url", url, "--times", "2", "--interval", "0.2"])
    assert got.exit_code == 0, got.output
    assert got.output.count("busiest bundles") == 2
    assert "\x1b" not in got.output
    assert max(map(len, got.output.splitlines())) <= 80
    leader_term.away = True
    got = CliRunner().invoke(main, ["top", "--url", url, "--times", "1"])
    assert (got.exit_code, got.stderr) == (1, "no leader is at work\n")
