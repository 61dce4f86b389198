import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from stories import place_all, served, story
from structlog.testing import capture_logs

from loadmanager.admin.brokers import BalancingModes
from loadmanager.agent.load_reports import HealthWatch, Sampler
from loadmanager.agent.ownership import OwnershipWorker
from loadmanager.common.context import LEAST_S, Liveness, UnexpectedErrors
from loadmanager.core.balancing import BalancingMode
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.planner import Planner
from loadmanager.leader.decisions import Decider
from loadmanager.leader.election import STAND_BACK_S, Election
from loadmanager.leader.task_controller import OrderBook
from loadmanager.leader.term import LeaderTerm
from loadmanager.ports.lookup import Missing
from loadmanager.telemetry.metrics import LABEL_VALUES, Metrics
from loadmanager.wiring.application import Sidecar
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import Cluster

COUNTER = "loadmanager_unexpected_errors_total"


class HandClock:
    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return round(self.now_s * 1000)

    async def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


def test_a_place_logs_one_trace_a_minute_and_counts_every_error() -> None:
    registry, clock = CollectorRegistry(), HandClock()
    unexpected = UnexpectedErrors(clock, Metrics(registry))
    followed: list[str] = []
    unexpected.followers.append(lambda place, _: followed.append(place))
    with capture_logs() as logs:
        for clock.now_s in (0.0, 1.0, 59.9, 60.0, 61.0):
            unexpected.caught("round", ValueError("odd"))
        unexpected.caught("tick", ValueError("other"))
    assert [(one["place"], one["not_logged"], one["error"]) for one in logs] == [
        ("round", 0, "ValueError: odd"),
        ("round", 2, "ValueError: odd"),
        ("tick", 0, "ValueError: other"),
    ]
    assert all(isinstance(one["exc_info"], ValueError) for one in logs)
    assert registry.get_sample_value(COUNTER, {"place": "round"}) == 5.0
    assert followed == ["round"] * 5 + ["tick"]


HARM = 77_777
"""Producers in a report that makes rounds fail."""


def harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every round fail that sees a broker with so many producers for each bundle."""
    decide = Planner.round

    def failing(self: Planner, view: Any, *args: Any, **named: Any) -> Any:
        if (view.brokers.connections >= HARM).any():
            raise OverflowError("a sum does not fit")
        return decide(self, view, *args, **named)

    monkeypatch.setattr(Planner, "round", failing)


def left_out(agent: Agent) -> float:
    return agent.metric("loadmanager_brokers_left_out")


def rounds(agent: Agent, outcome: str) -> float:
    return agent.metric("loadmanager_rounds_total", outcome=outcome)


def rounds_done(agent: Agent) -> float:
    """A round is refused if its only moves are of bundles that are being split."""
    return sum(rounds(agent, outcome) for outcome in ("quiet", "moved", "refused"))


@story(sidecars=5)
async def test_a_broker_whose_report_makes_rounds_fail_is_left_out_named_and_taken_in_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, culprit = cluster.leader, cluster.hosts[3]
    await served(cluster, 16)
    done = rounds(leader, "quiet")
    await cluster.until(lambda: rounds(leader, "quiet") > done + 3)  # All reports are sound.
    harm(monkeypatch)
    culprit.figures = {"producerCount": HARM}
    await cluster.until(lambda: culprit.name in cluster.leader_term.look().quarantined)
    assert left_out(leader) >= 1.0
    assert leader.metric(COUNTER, place="round") >= 1.0
    told = [
        one for one in cluster.warnings("broker.report.left_out") if one["broker"] == culprit.name
    ]
    assert "does not fit" in told[-1]["error"]
    with pytest.raises(Missing, match=r"left out of all decisions until .* does not fit"):
        leader.app.explainer.account(culprit.name)
    # Rounds go on with the others, and nobody stops leading.
    done = rounds(leader, "quiet") + rounds(leader, "moved")
    await cluster.until(lambda: rounds(leader, "quiet") + rounds(leader, "moved") > done + 3)
    culprit.figures = {}
    await cluster.until(lambda: left_out(leader) == 0.0)
    assert culprit.name in cluster.leader_term.look().view.brokers.names
    assert rounds(leader, "failed") == 0
    assert cluster.service.epochs == [1]
    assert cluster.leader is leader


@story()
async def test_a_leader_whose_rounds_fail_three_times_leaves_the_lead_to_another(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, decide = cluster.leader, Decider.round
    leader_term = former.app.leading.leader_term
    assert leader_term is not None

    def failing(self: Decider, *args: Any, **named: Any) -> Any:
        if former.leads:
            raise ZeroDivisionError("of this process alone")
        return decide(self, *args, **named)

    monkeypatch.setattr(Decider, "round", failing)
    await cluster.until(lambda: len(cluster.service.epochs) == 2)
    assert former.metric(COUNTER, place="round") == 3.0
    assert cluster.leader is not former
    assert former.alive
    assert former.metric("loadmanager_leader") == 0.0
    assert cluster.warnings("leadership.term.given_up")[-1]["stand_back_s"] == STAND_BACK_S
    await served(cluster, 4)


@story(sidecars=1)
async def test_where_every_round_fails_no_broker_is_left_out_and_a_sole_sidecar_leads_again_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide, fails = Planner.round, True

    def failing(self: Planner, *args: Any, **named: Any) -> Any:
        if fails:
            raise OverflowError("a sum does not fit")
        return decide(self, *args, **named)

    monkeypatch.setattr(Planner, "round", failing)
    agent = cluster.agents[0]
    await cluster.until(lambda: cluster.warnings("leadership.term.given_up"))
    assert left_out(agent) == 0.0
    assert cluster.warnings("broker.report.cause_not_found")
    fails = False
    given_up_s = agent.context.clock.monotonic_s()
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=STAND_BACK_S + 5.0)
    assert agent.context.clock.monotonic_s() - given_up_s >= STAND_BACK_S - 1.0
    await cluster.until(lambda: rounds(agent, "quiet") > 0)
    await served(cluster, 4)


@story()
async def test_a_failed_term_is_given_up(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    read, victim = OrderBook.read, cluster.agents[1]

    async def failing(self: OrderBook) -> None:
        if victim.leads:
            raise RuntimeError("never seen before")
        await read(self)

    monkeypatch.setattr(OrderBook, "read", failing)
    for agent in cluster.agents:
        if agent.leads and agent is not victim:
            await agent.kill()
    await cluster.until(lambda: len(cluster.service.epochs) >= 2, within_s=SESSION_S + 1.0)
    await cluster.until(lambda: any(a.leads and a is not victim for a in cluster.living))
    assert victim.alive
    await cluster.until(lambda: cluster.leader.app.leading.leader_term is not None)


Breaks = tuple[type, str, str]
ONCE: dict[str, Breaks] = {
    "tick": (LoadTracker, "sample", "tick"),
    "placing": (Decider, "choose", "placing"),
    "report": (Sampler, "sample", "report"),
    "health": (HealthWatch, "_failed_check", "health"),
    "gauges": (Sidecar, "_show_once", "gauges"),
}


def breaking(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> Callable[[], bool]:
    method, failed = getattr(kind, name), False

    def failing(*args: Any, **named: Any) -> Any:
        nonlocal failed
        if not failed:
            failed = True
            raise LookupError("never seen before")
        return method(*args, **named)

    monkeypatch.setattr(kind, name, failing)
    return lambda: failed


@pytest.mark.parametrize("what", ONCE)
@story()
async def test_an_error_in_any_loop_is_counted_and_the_loop_goes_on(
    cluster: Cluster, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name, place = ONCE[what]
    failed = breaking(monkeypatch, kind, name)
    boundaries = await cluster.make_namespace(4)
    placing = asyncio.ensure_future(place_all(cluster, boundaries))
    await cluster.until(failed)
    await cluster.until(lambda: sum(a.metric(COUNTER, place=place) for a in cluster.agents) == 1.0)
    await placing
    assert all(agent.alive for agent in cluster.agents)
    assert cluster.service.epochs == [1]


@story()
async def test_a_membership_that_fails_unexpectedly_begins_anew(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    boundaries = await served(cluster, 6)
    failed = breaking(monkeypatch, OwnershipWorker, "retry_refused")
    await cluster.until(failed)
    await cluster.until(lambda: any(a.metric(COUNTER, place="membership") for a in cluster.agents))
    (agent,) = [a for a in cluster.agents if a.metric(COUNTER, place="membership") == 1.0]
    assert agent.alive
    await cluster.until(lambda: agent.app.member.registered)
    await cluster.settled(boundaries.bundles)


LARGEST = {
    **dict.fromkeys(("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut"), 1e15),
    **dict.fromkeys(("topics", "producerCount", "consumerCount"), 2**40),
    "cacheSize": 2**50,
}
ABSURD = {"producerCount": 2**62, "consumerCount": 2**62, "msgRateIn": 4e307, "cacheSize": -1}


@pytest.mark.parametrize("figures", [LARGEST, ABSURD], ids=["largest", "absurd"])
@pytest.mark.parametrize("shedder", ["ThresholdShedder", "AvgShedder", "TransferShedder", "joint"])
def test_one_broker_with_the_largest_or_with_absurd_figures_disturbs_nothing(
    shedder: str, figures: dict[str, float]
) -> None:
    @story(shedding={"strategy": shedder}, placement={"strategy": None})
    async def tell(cluster: Cluster) -> None:
        boundaries = await served(cluster, 6)
        leader, teller = cluster.leader, cluster.hosts[1]
        teller.figures = figures
        view = cluster.leader_term.look
        if figures is LARGEST:
            await cluster.until(lambda: view().view.brokers.connections.max() >= 2**41, every_s=0.5)
        else:
            agent = cluster.agent_of(teller.name)
            await cluster.until(
                lambda: agent.metric("loadmanager_malformed_content_total", kind="stats") > 0,
                every_s=0.5,
            )
        done = rounds_done(leader)
        await cluster.until(lambda: rounds_done(leader) > done + 5, every_s=0.5)
        leader.app.explainer.account(teller.name)
        leader.app.explainer.account(boundaries.bundles[0])
        for agent in cluster.agents:
            counted = [agent.metric(COUNTER, place=one) for one in LABEL_VALUES["place"]]
            assert counted == [0.0] * len(counted)
        assert cluster.service.epochs == [1]

    tell()


@pytest.mark.parametrize(
    ("interval_s", "passed_s", "why"),
    [
        (100.0, 299.0, ""),
        (100.0, 301.0, "no round has begun for 301 s"),
        (1.0, LEAST_S, ""),
        (1.0, LEAST_S + 1.0, "no round has begun for 31 s"),
        (math.inf, 1e6, ""),
    ],
)
def test_work_is_overdue_after_3_intervals(interval_s: float, passed_s: float, why: str) -> None:
    now_s = 50.0
    alive = Liveness(lambda: now_s)
    assert alive.overdue() == ""
    alive.begun("round", lambda: interval_s)
    now_s += passed_s
    assert alive.overdue() == why
    alive.begun("round", lambda: interval_s)
    assert alive.overdue() == ""
    now_s += 1e9
    alive.over("round")
    assert alive.overdue() == ""


async def _hang(*_: object) -> None:
    await asyncio.Event().wait()


def _overdue(cluster: Cluster) -> list[str]:
    return [agent.context.liveness.overdue() for agent in cluster.living]


@story()
async def test_a_leader_whose_rounds_hang_is_overdue_and_standbys_are_alive(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served(cluster, 4)
    await asyncio.sleep(100.0)
    assert _overdue(cluster) == ["", "", ""]
    steering = BalancingModes(cluster.leader.context)
    await steering.put(BalancingMode.PAUSED, by="ann", reason="new disks")
    await asyncio.sleep(100.0)
    assert _overdue(cluster) == ["", "", ""]
    monkeypatch.setattr(LeaderTerm, "_round", _hang)
    await asyncio.sleep(LEAST_S + 10.0)
    leader = cluster.leader
    assert leader.context.liveness.overdue().startswith("no round has begun for ")
    assert sorted(_overdue(cluster))[:2] == ["", ""]
    # Once another one leads, this one has no rounds to begin.
    monkeypatch.undo()
    await cluster.delete("/loadbalance/leader")
    await cluster.until(lambda: not any(_overdue(cluster)))


@story(2)
async def test_an_election_that_does_not_turn_is_overdue(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (standby,) = (agent for agent in cluster.living if not agent.leads)
    turn: Callable[[Election], object] = Election._next_turn

    async def hang(election: Election) -> None:
        if election is standby.app.election:
            await _hang()
        await turn(election)  # type: ignore[misc]  # it is a coroutine

    monkeypatch.setattr(Election, "_next_turn", hang)
    await asyncio.sleep(150.0)
    assert "no turn of the election has begun for" in standby.context.liveness.overdue()
    assert cluster.leader.context.liveness.overdue() == ""
