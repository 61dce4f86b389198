"""``loadmanager drain`` and ``loadmanager unload`` against a server on loopback."""

import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadmanager.adapters.http.operations import Reply, Resource, operation
from loadmanager.admin.brokers import Drains, DrainState, Marked
from loadmanager.admin.bundles import UnloadedBundle, Unloads
from loadmanager.cli import main
from loadmanager.core.balancing import BalancingMode
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.wire.records import DrainMark
from loadmanager.ports.lookup import Conflict, LeaderElsewhere, Missing, Unavailable

BUNDLE = BundleId("public/default/0x00000000_0x40000000")
RANGES = ["0x00000000_0x40000000", "0x40000000_0xffffffff"]
B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")


def unloaded(source: BrokerId | None, target: BrokerId | None) -> UnloadedBundle:
    return UnloadedBundle(bundle=BUNDLE, source=source, target=target, took_s=0.0123)


@dataclass
class Application(Drains):
    elsewhere: str = ""
    refuses: Exception | None = None
    left: int = 5
    stuck_at: int = 0
    let_go_at: int = -1
    stops: bool = False
    unknown: bool = False
    marks: dict[str, DrainMark] = field(default_factory=dict)
    mode: BalancingMode = BalancingMode.ACTIVE
    went: UnloadedBundle = field(default_factory=lambda: unloaded(B1, B2))
    stuck: set[str] = field(default_factory=set)
    unloaded: list[tuple[str, str | None, str | None]] = field(default_factory=list)

    async def unload(
        self, namespace: Namespace, range_text: str | None, destination: BrokerId | None
    ) -> Sequence[UnloadedBundle]:
        if self.elsewhere:
            raise LeaderElsewhere(self.elsewhere)
        self._refuse()
        self.unloaded.append((namespace, range_text, destination))
        if range_text in self.stuck:
            raise Unavailable(f"no other broker can take {namespace}/{range_text} (isolated)")
        bundle = BundleId(f"{namespace}/{range_text}")
        return [self.went.model_copy(update={"bundle": bundle})]

    async def put(self, broker: BrokerId, *, by: str, reason: str, drain: bool) -> None:
        self._refuse()
        self.marks[broker] = DrainMark(since_ms=1, by=by, reason=reason, drain=drain)

    async def unmark(self, broker: BrokerId) -> None:
        self.marks.pop(broker, None)

    async def status(self, broker: BrokerId) -> DrainState:
        if broker in self.marks:
            self.left = max(self.left - 2, self.stuck_at)
        if self.unknown:
            raise Missing(f"{broker}: no such broker is registered or marked")
        if self.left == self.let_go_at:
            self.marks.pop(broker, None)
        return DrainState(
            broker=broker,
            registered=True,
            draining=broker in self.marks or self.stops,
            marked=Marked.model_validate(self.marks[broker]) if broker in self.marks else None,
            bundles_left=self.left,
        )

    def _refuse(self) -> None:
        if self.refuses is not None:
            raise self.refuses


class Others(Resource, tag="others"):
    """What is asked beside unloads and drains: a namespace's bundles, and the balancing mode."""

    def __init__(self, application: Application) -> None:
        self._application = application

    @operation(
        "GET /admin/v2/namespaces/{tenant}/{namespace}/bundles",
        Reply(200, "Boundaries.", dict[str, Any]),
    )
    async def bundles(self) -> dict[str, Any]:
        return {"boundaries": ["0x00000000", "0x40000000", "0xffffffff"]}

    @operation("GET /admin/v2/loadmanager/balancing", Reply(200, "The mode.", dict[str, Any]))
    async def balancing(self) -> dict[str, Any]:
        return {"mode": self._application.mode.value}


Serve = Callable[[Application], str]


@pytest.fixture(name="serve")
def serve_fixture(serve: Callable[..., str]) -> Serve:
    return lambda application: serve(Unloads(application.unload), application, Others(application))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_an_unload_by_way_of_any_sidecar_says_where_the_bundle_went(serve: Serve) -> None:
    leader = Application()
    follower = serve(Application(elsewhere=serve(leader)))
    got = run("unload", BUNDLE, "--to", "b2:8080", "--url", follower)
    told = f"{BUNDLE} moved from b1:8080 to b2:8080 in 0.012 s\n"
    assert (got.exit_code, got.stdout) == (0, told)
    assert leader.unloaded == [("public/default", BUNDLE.rpartition("/")[2], "b2:8080")]


@pytest.mark.parametrize(
    ("went", "told"),
    [
        (unloaded(None, None), "has no owner; there is nothing to unload"),
        (unloaded(B1, B1), "is on b1:8080 already"),
        (unloaded(B1, None), "left b1:8080; it was split meanwhile"),
    ],
)
def test_an_unload_without_a_move_says_so(serve: Serve, went: UnloadedBundle, told: str) -> None:
    got = run("unload", BUNDLE, "--url", serve(Application(went=went)))
    assert (got.exit_code, got.stdout) == (0, f"{BUNDLE} {told}\n")


def test_an_unload_is_told_as_json(serve: Serve) -> None:
    url = serve(Application())
    assert json.loads(run("unload", BUNDLE, "--json", "--url", url).stdout) == {
        "bundle": BUNDLE,
        "source": "b1:8080",
        "target": "b2:8080",
        "tookS": 0.0123,
    }
    told = json.loads(run("unload", "public/default", "--json", "--url", url).stdout)
    assert [one["bundle"].rpartition("/")[2] for one in told] == RANGES


@pytest.mark.parametrize("keeps", [0, 1])
def test_each_bundle_of_a_namespace_that_can_move_is_unloaded(serve: Serve, keeps: int) -> None:
    stuck, leader = f"public/default/{RANGES[0]}", Application(stuck=set(RANGES[:keeps]))
    got = run("unload", "public/default", "--url", serve(leader))
    assert got.exit_code == keeps
    assert got.stdout.splitlines() == [
        f"public/default/{one} moved from b1:8080 to b2:8080 in 0.012 s" for one in RANGES[keeps:]
    ]
    assert [one for _, one, _ in leader.unloaded] == RANGES
    assert got.stderr.splitlines() == keeps * [
        f"{stuck} did not move: no other broker can take {stuck} (isolated)",
        "1 of 2 bundles of public/default did not move",
    ]


def test_an_unload_without_an_answer_says_how_to_see_what_became_of_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        got = run("unload", BUNDLE, "--url", url, "--timeout", "0.2")
    assert got.exit_code == 1
    assert got.stderr.splitlines() == [
        f"{url}: no answer within 0.2 s",
        f"{BUNDLE} may move all the same: `loadmanager explain {BUNDLE}`",
    ]


@pytest.mark.parametrize(
    ("command", "refusal", "code"),
    [
        (("unload", BUNDLE), Missing("no such bundle"), 2),
        (("unload", BUNDLE), Conflict("draining"), 1),
        (("drain", "b9:1"), Missing("no b9:1"), 2),
        (("cordon", "b9:1"), Missing("no b9:1"), 2),
    ],
)
def test_a_refusal_is_told(
    serve: Serve, command: tuple[str, str], refusal: Exception, code: int
) -> None:
    got = run(*command, "--url", serve(Application(refuses=refusal)))
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


def test_a_name_that_is_no_broker_ends_with_2(serve: Serve) -> None:
    got = run("drain", "a/b", "--url", serve(Application()))
    assert (got.exit_code, "host:port" in got.stderr) == (2, True)


def test_a_drain_shows_its_progress_until_the_broker_is_empty(serve: Serve) -> None:
    application = Application()
    got = run("drain", "b1:8080", "--reason", "new disk", "--url", serve(application))
    told = "b1:8080 is empty.\nIt takes no bundle until: loadmanager drain --undo b1:8080\n"
    assert (got.exit_code, got.stdout) == (0, told)
    assert got.stderr.splitlines() == [f"b1:8080: {left} bundles left" for left in (3, 1, 0)]
    mark = application.marks["b1:8080"]
    assert mark.reason == "new disk"
    assert "@" in mark.by
    got = run("drain", "b1:8080", "--json", "--url", serve(Application()))
    last = json.loads(got.stdout)
    assert (last["bundlesLeft"], last["draining"], last["broker"]) == (0, True, "b1:8080")


def test_a_broker_is_cordoned_and_uncordoned(serve: Serve) -> None:
    application = Application()
    url = serve(application)
    got = run("cordon", "b1:8080", "--reason", "odd", "--url", url)
    told = "b1:8080 takes no bundle until: loadmanager uncordon b1:8080\n"
    assert (got.exit_code, got.stdout) == (0, told)
    mark = application.marks["b1:8080"]
    assert (mark.reason, mark.drain, "@" in mark.by) == ("odd", False, True)
    assert run("uncordon", "b1:8080", "--url", url).stdout == "b1:8080 takes bundles again\n"
    assert application.marks == {}


@pytest.mark.parametrize(
    ("behaves", "says", "marked"),
    [
        ({"stuck_at": 1}, "1 bundles are left after 0.5 s; the drain goes on", True),
        ({"let_go_at": 3}, "the drain was undone meanwhile; 3 bundles are left", False),
    ],
)
def test_a_drain_that_does_not_end_well_ends_with_1(
    serve: Serve, behaves: dict[str, int], says: str, *, marked: bool
) -> None:
    application = Application(**behaves)  # type: ignore[arg-type]  # both are numbers
    got = run("drain", "b1:8080", "--timeout", "0.5", "--url", serve(application))
    assert (got.exit_code, says in got.stderr) == (1, True)
    assert bool(application.marks) is marked


NEXT = "From the next round on, balancing moves bundles to it as the load requires."
PAUSED = "Balancing is paused: rounds move nothing to it until `loadmanager resume`."


@pytest.mark.parametrize(
    ("mode", "next_step"), [(BalancingMode.ACTIVE, NEXT), (BalancingMode.PAUSED, PAUSED)]
)
def test_undone_drains_say_what_is_next(serve: Serve, mode: BalancingMode, next_step: str) -> None:
    application = Application(marks={"b1:8080": DrainMark()}, left=0, mode=mode)
    url = serve(application)
    got = run("drain", "b1:8080", "--undo", "--url", url)
    assert got.exit_code == 0
    assert application.marks == {}
    lines = got.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("b1:8080 takes bundles again; it has 0.", next_step)
    told = json.loads(run("drain", "b1:8080", "--undo", "--json", "--url", url).stdout)
    assert told["marked"] is None


@pytest.mark.parametrize(
    ("behaves", "told"),
    [
        ({"stops": True}, "still drains: it is stopping or unhealthy"),
        ({"unknown": True}, "b1:8080 is not registered; it takes bundles again once it is.\n"),
    ],
)
def test_undone_drains_of_brokers_that_still_drain_or_are_gone_are_told(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, behaves: dict[str, bool], told: str
) -> None:
    monkeypatch.setattr("loadmanager.cli.balancing._SEEN_WITHIN_S", 0.3)
    application = Application(**behaves)  # type: ignore[arg-type]  # both are flags
    got = run("drain", "b1:8080", "--undo", "--url", serve(application))
    assert (got.exit_code, told in got.stdout) == (0, True)
