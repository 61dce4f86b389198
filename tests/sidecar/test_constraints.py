import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from leader_at_work import B1, B2, B3, HOT, THRESHOLD, LeaderAtWork, leader_at_work
from snapshot_samples import report
from waiting import eventually

from loadmanager.admin.brokers import BalancingModes
from loadmanager.admin.decisions import DecisionsQuery, PlanQuery, Plans
from loadmanager.common.constraints import Constraints
from loadmanager.core import znodes
from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace
from loadmanager.core.orders import decode_orders
from loadmanager.core.plan import Reason
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.policies import NO_POLICIES, IsolationPolicy
from loadmanager.core.snapshot.codec import decode_snapshot
from loadmanager.core.wire.policies import encode_boundaries
from loadmanager.ports.lookup import Unavailable, Unfit

NS = Namespace("t/ns")
BUNDLES = Boundaries.even(NS, 8).bundles
ISOLATION = znodes.isolation_policies("east")
DOMAIN_1 = f"{znodes.failure_domains('east')}/d1"
DOMAIN_2 = f"{znodes.failure_domains('east')}/d2"
TO_B2 = {
    "namespaces": ["t/ns"],
    "primary": ["b2"],
    "secondary": [],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
    },
}
TO_B2_READ = IsolationPolicy(namespaces=("t/ns",), primary=("b2",), usage_threshold=0.8)


def written(document: Mapping[str, object]) -> bytes:
    return json.dumps(document).encode()


@pytest.fixture
async def sidecar() -> AsyncIterator[LeaderAtWork]:
    planner = Planner(settings=PlannerSettings(settle_s=0.0))
    async with leader_at_work(planner, round_interval_s=3600) as at_work:
        yield at_work


@pytest.fixture
async def constraints(sidecar: LeaderAtWork) -> AsyncIterator[Constraints]:
    watching = Constraints(sidecar.context, "east")
    watching.open()
    await watching.read()
    yield watching
    watching.close()


def malformed(sidecar: LeaderAtWork, kind: str) -> float:
    name = "loadmanager_malformed_content_total"
    return sidecar.registry.get_sample_value(name, {"kind": kind}) or 0.0


async def local_policies(
    sidecar: LeaderAtWork, namespace: str, group: object = None, count: int = 8
) -> None:
    document = json.loads(encode_boundaries(Boundaries.even(Namespace(namespace), count)))
    document |= {} if group is None else {"namespaceAntiAffinityGroup": group}
    await sidecar.write(znodes.local_policies(Namespace(namespace)), written(document))


async def test_policies_come_change_and_go(sidecar: LeaderAtWork, constraints: Constraints) -> None:
    assert (constraints.complete, constraints.policies) == (True, NO_POLICIES)
    await sidecar.write(ISOLATION, written({"p": TO_B2}))
    await eventually(lambda: constraints.policies.isolation == {"p": TO_B2_READ})
    await sidecar.write(ISOLATION, written({"q": TO_B2}))
    await eventually(lambda: constraints.policies.isolation == {"q": TO_B2_READ})
    await sidecar.hand.delete(ISOLATION)
    await eventually(lambda: constraints.policies.isolation == {})


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({**TO_B2, "namespaces": ["t/(?!a).*"]}, "RE2 does not support"),
        ({**TO_B2, "primary": [7]}, f"{ISOLATION}: odd.primary = [7]; expected"),
        ({**TO_B2, "primary": ["a"] * 1_001}, "with it policies have over 1,000 patterns"),
    ],
)
async def test_a_policy_that_is_refused_is_named_by_readiness_and_by_explain(
    sidecar: LeaderAtWork, constraints: Constraints, odd: Mapping[str, Any], said: str
) -> None:
    await sidecar.write(ISOLATION, written({"odd": odd, "good": TO_B2}))
    await eventually(lambda: constraints.policies.refused)
    assert constraints.policies.governing(NS) == TO_B2_READ
    why = constraints.policies.refusal(NS)
    assert why.startswith(f"isolation policy odd is refused: {said}")
    assert malformed(sidecar, "isolation") == 1
    await eventually(lambda: list(sidecar.context.troubles.values()) == [why])
    await sidecar.write(ISOLATION, written({"good": TO_B2}))
    await eventually(lambda: not constraints.policies.refused)
    await eventually(lambda: not sidecar.context.troubles)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
async def test_a_policy_that_became_unreadable_stays_as_it_was(
    sidecar: LeaderAtWork, constraints: Constraints, content: bytes
) -> None:
    await sidecar.write(ISOLATION, written({"p": TO_B2}))
    await eventually(lambda: constraints.policies.isolation)
    await sidecar.write(ISOLATION, content)
    await eventually(lambda: malformed(sidecar, "isolation") == 1)
    assert constraints.policies.isolation == {"p": TO_B2_READ}


async def test_the_first_failure_domain_by_name_has_a_broker(
    sidecar: LeaderAtWork, constraints: Constraints
) -> None:
    await sidecar.write(DOMAIN_2, written({"brokers": [B1, B2]}))
    await sidecar.write(DOMAIN_1, written({"brokers": [B1]}))
    await eventually(lambda: constraints.policies.domains == {B1: "d1", B2: "d2"})
    await sidecar.hand.delete(DOMAIN_1)
    await eventually(lambda: constraints.policies.domains == {B1: "d2", B2: "d2"})
    await sidecar.write(DOMAIN_1, written({"brokers": ["b1"]}))  # It cannot be read.
    await eventually(lambda: malformed(sidecar, "failure_domain") == 1)
    assert constraints.policies.domains == {B1: "d2", B2: "d2"}


async def test_anti_affinity_groups_come_change_and_go(
    sidecar: LeaderAtWork, constraints: Constraints
) -> None:
    await sidecar.hand.create("/admin/local-policies/t/cluster/ns", b"{}")  # A folder of others.
    await local_policies(sidecar, "t/ns", "g")
    await local_policies(sidecar, "t/plain")
    await local_policies(sidecar, "u/ns", "h")
    await eventually(lambda: constraints.policies.anti_affinity == {"t/ns": "g", "u/ns": "h"})
    assert malformed(sidecar, "local_policies") == 0
    await local_policies(sidecar, "t/other", 3)
    await eventually(lambda: malformed(sidecar, "local_policies") == 1)
    await local_policies(sidecar, "t/ns")
    await eventually(lambda: constraints.policies.anti_affinity == {"u/ns": "h"})
    await sidecar.hand.delete("/admin/local-policies/u/ns")
    await sidecar.hand.delete("/admin/local-policies/u")
    await eventually(lambda: constraints.policies.anti_affinity == {})


async def lead(sidecar: LeaderAtWork) -> None:
    await sidecar.led(*(report(name, 0.1, {}) for name in (B1, B2, B3)))


async def test_isolated_namespaces_are_only_where_they_belong(sidecar: LeaderAtWork) -> None:
    await sidecar.write(ISOLATION, written({"p": TO_B2}))
    await lead(sidecar)
    owners = {await sidecar.leading.assign(bundle) for bundle in BUNDLES}
    assert owners == {B2}
    other = Boundaries.even(Namespace("t/shared"), 8).bundles
    assert {await sidecar.leading.assign(bundle) for bundle in other} == {B1, B3}


async def test_namespaces_of_one_group_are_kept_apart(sidecar: LeaderAtWork) -> None:
    names = [Namespace(f"t/n{number}") for number in range(3)]
    for name in names:
        await local_policies(sidecar, name, "g", count=1)
    await lead(sidecar)
    owners = [await sidecar.leading.assign(Boundaries.even(name, 1).bundles[0]) for name in names]
    assert sorted(owners) == [B1, B2, B3]


async def test_constraints_are_part_of_a_live_snapshot(sidecar: LeaderAtWork) -> None:
    await sidecar.write(ISOLATION, written({"p": TO_B2}))
    await sidecar.write(DOMAIN_1, written({"brokers": [B1]}))
    await local_policies(sidecar, "t/ns", "g")
    await lead(sidecar)

    def all_read() -> bool:
        policies = sidecar.leader_term.look().view.policies
        return bool(policies.isolation and policies.anti_affinity and policies.domains)

    await eventually(all_read)
    got = decode_snapshot("live", await sidecar.explainer.snapshot()).policies
    assert got.isolation == {"p": TO_B2_READ}
    assert got.anti_affinity == {NS: "g"}
    assert got.domains == {B1: "d1"}


@pytest.fixture
async def hot() -> AsyncIterator[LeaderAtWork]:
    async with leader_at_work(THRESHOLD, reports=HOT) as at_work:
        yield at_work


@pytest.fixture
async def idle() -> AsyncIterator[LeaderAtWork]:
    async with leader_at_work(THRESHOLD, round_interval_s=3600, reports=HOT) as at_work:
        yield at_work


async def orders_away(hot: LeaderAtWork) -> int:
    found = 0
    for broker in (B2, B3):
        node = await hot.hand.get(znodes.orders(broker))
        found += len(decode_orders("", node.data).bundles) if node and node.data else 0
    return found


async def test_a_paused_leader_moves_nothing_and_says_why(hot: LeaderAtWork) -> None:
    steering = BalancingModes(hot.context)
    await steering.put(BalancingMode.PAUSED, by="ann", reason="new disks")
    hot.lead()
    await hot.rounds(5)
    assert await orders_away(hot) == 0
    account = hot.explainer.account(B1)
    assert account.balancing.mode is BalancingMode.PAUSED
    assert (account.balancing.by, account.balancing.reason) == ("ann", "new disks")
    assert Reason.SHEDDING_OFF in {one.reason for one in account.explanation.grounds}
    shown = {
        mode: hot.registry.get_sample_value("loadmanager_balancing", {"mode": mode})
        for mode in ("active", "observing", "paused")
    }
    assert shown == {"active": 0, "observing": 0, "paused": 1}
    # The next leader rests, too, until it is resumed.
    await hot.stop_leading()
    hot.lead()
    await hot.rounds(2)
    assert hot.leader_term.look().balancing.mode is BalancingMode.PAUSED
    assert await orders_away(hot) == 0
    await steering.put(BalancingMode.ACTIVE, by="", reason="")
    async with asyncio.timeout(30):
        while not await orders_away(hot):  # noqa: ASYNC110 - another task orders
            await asyncio.sleep(0.01)


async def test_an_observing_leader_enters_moves_and_orders_none(hot: LeaderAtWork) -> None:
    await BalancingModes(hot.context).put(BalancingMode.OBSERVING, by="", reason="")
    hot.lead()

    def observed() -> bool:
        wish = DecisionsQuery(limit=1, kinds=["observed"])
        return bool(hot.leading.leader_term and hot.explainer.listed(wish))

    await eventually(observed)
    assert await orders_away(hot) == 0


async def test_a_mode_that_stands_keeps_who_wanted_it_first(idle: LeaderAtWork) -> None:
    steering = BalancingModes(idle.context)
    assert await steering.state() == Balancing()
    await steering.put(BalancingMode.PAUSED, by="ann", reason="")
    await steering.put(BalancingMode.PAUSED, by="bob", reason="")
    state = await steering.state()
    assert (state.mode, state.by) == (BalancingMode.PAUSED, "ann")
    assert state.since_ms > 0


async def test_spoilt_content_pauses_who_never_read_any_other(hot: LeaderAtWork) -> None:
    await hot.write(znodes.BALANCING, b"{}")
    hot.lead()
    await hot.rounds(3)
    assert hot.leader_term.look().balancing.mode is BalancingMode.PAUSED
    assert await orders_away(hot) == 0
    with pytest.raises(Unavailable):
        await BalancingModes(hot.context).state()
    await BalancingModes(hot.context).put(BalancingMode.ACTIVE, by="", reason="")
    await eventually(lambda: hot.leader_term.look().balancing.mode is BalancingMode.ACTIVE)


async def test_a_preview_shows_the_next_moves_and_makes_none(idle: LeaderAtWork) -> None:
    idle.lead()
    await eventually(lambda: idle.leading.leader_term and idle.leader_term.look().averages)
    before = idle.leader_term.look().memory
    preview_now = Plans(idle.leading).plan
    preview = await preview_now(PlanQuery())
    assert {move.source for move in preview.moves} == {B1}
    assert idle.leader_term.look().memory == before
    assert await orders_away(idle) == 0
    assert (await preview_now(PlanQuery())).moves == preview.moves


async def test_another_strategy_or_setting_is_tried_on_the_same_view(idle: LeaderAtWork) -> None:
    idle.lead()
    await eventually(lambda: idle.leading.leader_term and idle.leader_term.look().averages)
    preview_now = Plans(idle.leading).plan
    preview = await preview_now(PlanQuery(shedder="overload"))
    assert preview.in_force["shedder"]["strategy"] == "overload"
    none = await preview_now(PlanQuery(settings=("moves_per_round=0",)))
    assert none.moves == []
    assert Reason.ROUND_BUDGET in {one.reason for one in none.refusals}
    for wish in (PlanQuery(shedder="none"), PlanQuery(settings=("threshold=x",))):
        with pytest.raises(Unfit):
            await preview_now(wish)
