"""What sidecars ask of the service: little at rest, and nothing because others' loads change."""

import asyncio

import pytest
from counted_requests import by_role, counted_cluster
from stories import served
from structlog.testing import capture_logs

from loadmanager.core import znodes
from tests.testbed.faults.cluster import topic_in
from tests.testbed.faults.virtual_time import run

COUNTED_S = 120.0


def test_a_sidecar_makes_less_than_a_request_a_second_at_rest() -> None:
    async def program() -> None:
        async with counted_cluster(5) as (cluster, service):
            await served(cluster, 20)
            await asyncio.sleep(300.0)
            service.forget()
            await asyncio.sleep(COUNTED_S)
            for agent in by_role(cluster)["other"]:
                asked = service.asked_by([agent])
                assert 0 < sum(asked.values()) < COUNTED_S
                assert asked["sync"] == 0

    run(program())


@pytest.mark.parametrize("sidecars", [3, 5])
def test_what_a_leader_asks_at_rest_grows_with_brokers_by_a_report_and_the_orders_a_minute(
    sidecars: int,
) -> None:
    async def program() -> None:
        async with counted_cluster(sidecars) as (cluster, service):
            await served(cluster, 4 * sidecars)
            await asyncio.sleep(300.0)
            service.forget()
            await asyncio.sleep(COUNTED_S)
            asked = service.asked_by(by_role(cluster)["leader"])
            ordered = sum(znodes.orders(host.name) in service.nodes for host in cluster.hosts)
            rounds = asked["children /namespace"]
            assert 1 <= rounds <= 2
            reports, orders = asked["get /loadbalance/loads"], asked["get /loadbalance/orders"]
            assert reports == pytest.approx(sidecars * COUNTED_S / 60, abs=1)
            assert orders == ordered * rounds
            assert asked["heartbeat"] == pytest.approx(COUNTED_S / 1.5, abs=1)
            assert asked.total() - asked["heartbeat"] - reports - orders <= 12

    run(program())


@pytest.mark.parametrize("sidecars", [6, pytest.param(24, marks=pytest.mark.thorough)])
def test_what_many_placements_ask_of_zookeeper_is_predicted_in_the_log(sidecars: int) -> None:
    async def program() -> None:
        async with counted_cluster(sidecars) as (cluster, service):
            boundaries = await cluster.make_namespace(16 * sidecars)
            first, *others = (topic_in(boundaries, one) for one in boundaries.bundles)
            await cluster.leader.look_up(first)  # The folder of locks is there for the others.
            await asyncio.sleep(60.0)
            service.forget()
            with capture_logs() as logged:
                await asyncio.gather(*map(cluster.leader.look_up, others))
                await asyncio.sleep(1.0)
            batches = [one for one in logged if one["event"] == "orders.batch.begun"]
            expected = sum(one["requests_expected"] for one in batches)
            assert sum(one["bundles"] for one in batches) > 12 * sidecars
            asked = service.asked_by(cluster.living)
            # Once a broker and namespace, or once a term: boundaries and the epoch.
            once = ("exists", "sync", "get /admin/local-policies", "get /loadbalance/epoch")
            timed = ("heartbeat", "get /loadbalance/loads")
            made = sum(n for name, n in asked.items() if not name.startswith((*once, *timed)))
            assert made == pytest.approx(expected, rel=0.05)

    run(program())


def test_loads_that_change_are_read_by_the_leader_and_two_others() -> None:
    async def program() -> None:
        async with counted_cluster(5) as (cluster, service):
            await asyncio.sleep(60.0)
            service.forget()
            for step in range(10):
                for host in cluster.hosts:
                    host.cpu_fraction = 0.1 + 0.4 * (step % 2)
                await asyncio.sleep(30.0)
            roles = by_role(cluster)
            assert len(roles["other"]) == 2
            for role, agents in roles.items():
                reads = service.asked_by(agents)["get /loadbalance/loads"]
                assert reads == 0 if role == "other" else reads > 20

    run(program())
