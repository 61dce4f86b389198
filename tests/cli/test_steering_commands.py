"""``loadmanager drain`` and ``loadmanager unload`` against a door on loopback."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from loadmanager.adapters.http import HttpDoor
from loadmanager.adapters.http.admin.drains import Drains
from loadmanager.adapters.http.admin.unloads import Unloads
from loadmanager.cli import main
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.core.wire import DrainMark
from loadmanager.ports import (
    BrokerUnknown,
    BundleUnknown,
    DrainStatus,
    LeaderElsewhere,
    LookupService,
    UnloadRefused,
)
from loadmanager.telemetry.lookups import LookupMetrics

BUNDLE = "public/default/0x00000000_0x40000000"


class NoLookup(LookupService):
    """An application that nobody looks anything up in."""


@dataclass
class Application:
    """Unloads and drains; the brokers' bundles go two at each question."""

    elsewhere: str = ""
    refuses: Exception | None = None
    left: int = 5
    stuck_at: int = 0
    let_go_at: int = -1
    by: str = ""
    marks: dict[str, DrainMark] = field(default_factory=dict)
    unloaded: list[tuple[str, str | None, str | None]] = field(default_factory=list)

    async def unload(
        self, namespace: Namespace, range_text: str | None, destination: BrokerId | None
    ) -> None:
        """See `UnloadService`."""
        if self.elsewhere:
            raise LeaderElsewhere(self.elsewhere)
        self._refuse()
        self.unloaded.append((namespace, range_text, destination))

    async def mark(self, broker: BrokerId, *, by: str, reason: str) -> None:
        """See `DrainService`."""
        self._refuse()
        self.marks[broker] = DrainMark(since_ms=1, by=by, reason=reason)

    async def unmark(self, broker: BrokerId) -> None:
        """See `DrainService`."""
        self.marks.pop(broker, None)

    async def status(self, broker: BrokerId) -> DrainStatus:
        """See `DrainService`."""
        if broker in self.marks:
            self.left = max(self.left - 2, self.stuck_at)
        if self.left == self.let_go_at:
            self.marks.pop(broker, None)
        return DrainStatus(
            broker=broker,
            registered=True,
            draining=broker in self.marks,
            mark=self.marks.get(broker),
            bundles_left=self.left,
        )

    def _refuse(self) -> None:
        if self.refuses is not None:
            raise self.refuses


Serve = Callable[[Application], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that serves an application on loopback, and returns its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    doors: list[HttpDoor] = []

    def begin(application: Application) -> str:
        door = HttpDoor(
            NoLookup(),  # type: ignore[abstract]  # none of its methods is ever called
            metrics=LookupMetrics(),
            registry=CollectorRegistry(),
            version="1",
            more_routes=[*Unloads(application).routes(), *Drains(application).routes()],
        )
        doors.append(door)
        started = asyncio.run_coroutine_threadsafe(door.start("127.0.0.1", 0), loop)
        return f"http://127.0.0.1:{started.result(10)}"

    try:
        yield begin
    finally:
        for door in doors:
            asyncio.run_coroutine_threadsafe(door.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_a_bundle_is_unloaded_by_way_of_any_sidecar(serve: Serve) -> None:
    leader = Application()
    follower = serve(Application(elsewhere=serve(leader)))
    got = run("unload", BUNDLE, "--to", "b2:8080", "--url", follower)
    assert (got.exit_code, got.stdout) == (0, f"{BUNDLE} is unloaded\n")
    assert leader.unloaded == [("public/default", BUNDLE.rpartition("/")[2], "b2:8080")]


def test_a_namespace_is_unloaded_whole(serve: Serve) -> None:
    leader = Application()
    assert run("unload", "public/default", "--url", serve(leader)).exit_code == 0
    assert leader.unloaded == [("public/default", None, None)]


@pytest.mark.parametrize(
    ("refusal", "code"), [(BundleUnknown("no such bundle"), 2), (UnloadRefused("draining"), 1)]
)
def test_an_unload_that_is_refused_says_why(serve: Serve, refusal: Exception, code: int) -> None:
    got = run("unload", BUNDLE, "--url", serve(Application(refuses=refusal)))
    assert (got.exit_code, got.stderr) == (code, f"{refusal}\n")


def test_sidecars_that_send_one_another_round_in_circles_are_left(serve: Serve) -> None:
    application = Application()
    application.elsewhere = serve(application)
    got = run("unload", BUNDLE, "--url", application.elsewhere)
    assert got.exit_code == 1
    assert "the leader's sidecar is" in got.stderr


@pytest.mark.parametrize("arguments", [("public",), ("a/b/c/d",), ("a/b", "--to", "b2:8080")])
def test_what_is_no_bundle_is_refused_unasked(arguments: tuple[str, ...]) -> None:
    assert run("unload", *arguments, "--url", "http://127.0.0.1:1").exit_code == 2


def test_a_drain_shows_its_progress_until_the_broker_is_empty(serve: Serve) -> None:
    application = Application()
    got = run("drain", "b1:8080", "--reason", "new disk", "--url", serve(application))
    assert (got.exit_code, got.stdout) == (0, "")
    assert got.stderr.splitlines() == [f"b1:8080: {left} bundles left" for left in (3, 1, 0)]
    mark = application.marks["b1:8080"]
    assert mark.reason == "new disk"
    assert "@" in mark.by


def test_the_last_state_is_told_as_json(serve: Serve) -> None:
    got = run("drain", "b1:8080", "--json", "--url", serve(Application()))
    told: dict[str, Any] = json.loads(got.stdout)
    assert (told["bundlesLeft"], told["draining"], told["broker"]) == (0, True, "b1:8080")


def test_a_broker_that_is_not_empty_in_time_ends_with_1_and_stays_marked(serve: Serve) -> None:
    application = Application(stuck_at=1)
    got = run("drain", "b1:8080", "--timeout", "0.5", "--url", serve(application))
    assert got.exit_code == 1
    assert "1 bundles are left after 0.5 s; it goes on being emptied" in got.stderr
    assert application.marks


def test_a_drain_that_somebody_else_undoes_ends_with_1(serve: Serve) -> None:
    got = run("drain", "b1:8080", "--url", serve(Application(let_go_at=3)))
    assert got.exit_code == 1
    assert "somebody let it go again; 3 bundles are left" in got.stderr


def test_a_drain_is_undone(serve: Serve) -> None:
    application = Application(marks={"b1:8080": DrainMark()})
    url = serve(application)
    got = run("drain", "b1:8080", "--undo", "--url", url)
    assert (got.exit_code, got.stdout) == (0, "b1:8080 may take bundles again\n")
    assert application.marks == {}
    told = json.loads(run("drain", "b1:8080", "--undo", "--json", "--url", url).stdout)
    assert told["marked"] is None


def test_a_broker_that_nobody_knows_ends_with_2(serve: Serve) -> None:
    got = run("drain", "b9:1", "--url", serve(Application(refuses=BrokerUnknown("no b9:1"))))
    assert (got.exit_code, got.stderr) == (2, "no b9:1\n")


def test_a_name_that_is_no_broker_ends_with_2(serve: Serve) -> None:
    got = run("drain", "a/b", "--url", serve(Application()))
    assert got.exit_code == 2
    assert "host:port" in got.stderr
