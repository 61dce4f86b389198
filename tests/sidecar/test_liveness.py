"""What hangs is overdue and is to be restarted; what waits, rests or moves nothing is alive."""

import asyncio
import math
from collections.abc import Callable

import pytest
from stories import served, story

from loadmanager.common.balancing_mode import BalancingModeRequests
from loadmanager.common.liveness import LEAST_S, Liveness
from loadmanager.core.balancing import BalancingMode
from loadmanager.leader.election import Election
from loadmanager.leader.rounds import Rounds
from tests.testbed.faults.cluster import Cluster


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
def test_work_is_overdue_after_three_intervals(
    interval_s: float, passed_s: float, why: str
) -> None:
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
    steering = BalancingModeRequests(cluster.leader.context)
    await steering.put(BalancingMode.PAUSED, by="ann", reason="new disks")
    await asyncio.sleep(100.0)
    assert _overdue(cluster) == ["", "", ""]
    monkeypatch.setattr(Rounds, "_round", _hang)
    await asyncio.sleep(LEAST_S + 10.0)
    leader = cluster.leader
    assert leader.context.liveness.overdue().startswith("no round has begun for ")
    assert sorted(_overdue(cluster))[:2] == ["", ""]
    # Once another one leads, this one has no rounds to begin.
    monkeypatch.undo()
    await (await cluster.operator()).delete("/loadbalance/leader")
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
