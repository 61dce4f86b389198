"""What a leader answers over HTTP when brokers report the largest figures that are allowed."""

import json
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from largest_reports import FULL, MOST_USED, idle_report, largest_report
from leader_at_work import LeaderAtWork, leader_at_work
from prometheus_client.parser import text_string_to_metric_families
from waiting import eventually

from loadmanager.admin.brokers import Brokers
from loadmanager.admin.decisions import Plans
from loadmanager.admin.topics import Topics
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import Mode
from loadmanager.core.snapshot.codec import decode_snapshot
from loadmanager.core.wire.reports import encode_loads
from loadmanager.simulator.strategies import parse_strategies
from tests.adapters.http.conftest import RunningServer, StartServer
from tests.adapters.http.test_admin_over_http import FakeTopics

B1, B2, B3 = (BrokerId(f"b{number}:8080") for number in (1, 2, 3))
CUT = Boundaries.even(Namespace("acme/prod"), 12)
REPORTS = (
    largest_report(B1, CUT.bundles[:8]),
    largest_report(B2, CUT.bundles[8:]),
    idle_report(B3, ()),
)
OURS = "/admin/v2/loadmanager"


Largest = tuple[LeaderAtWork, RunningServer]


@pytest.fixture
async def largest(start_server: StartServer) -> AsyncIterator[Largest]:
    """Open a server before a leader whose brokers are as full as can be, after two rounds."""
    async with leader_at_work(Planner()) as sidecar:
        await sidecar.create_namespace(CUT)
        await sidecar.report(*REPORTS)
        sidecar.lead()
        await sidecar.rounds(2)
        for one in REPORTS:
            sidecar.context.metrics.show_usage(one)
        resources = (
            Brokers(sidecar.context, "east", Topics(sidecar.context, FakeTopics({}))),
            Plans(sidecar.leading),
            sidecar.explainer,
        )
        yield (
            sidecar,
            await start_server(
                more_routes=tuple(route for one in resources for route in one.routes()),
                registry=sidecar.registry,
                metrics=sidecar.context.metrics.lookup,
            ),
        )
        unexpected = "loadmanager_unexpected_errors_total"
        assert not any(
            sample.value
            for family in sidecar.registry.collect()
            for sample in family.samples
            if sample.name == unexpected
        )


def no_constant(text: str) -> Any:
    raise AssertionError(f"{text} in JSON")


async def asked(server: RunningServer, path: str) -> Any:
    got = await server.ask(path)
    assert got.status == 200, got.text
    return json.loads(got.text, parse_constant=no_constant)


async def test_the_figures_are_told_as_they_are_and_every_strategy_plans_with_them(
    largest: Largest,
) -> None:
    _, leader = largest
    told = await asked(leader, f"{OURS}/snapshot")
    snapshot = decode_snapshot("x", json.dumps(told).encode())
    reported = {name: one.bundles for name, one in snapshot.reports.items()}
    assert reported == {one.broker: one.bundles for one in REPORTS}
    assert snapshot.reports[B1].cpu == MOST_USED
    told = await asked(leader, "/admin/v2/broker-stats/load-report")
    assert (told["numBundles"], told["numConsumers"]) == (8, 8 * FULL.consumers)
    assert told["msgRateIn"] == 8 * FULL.msgs_in_per_s
    assert told["cpu"] == {"usage": MOST_USED.usage, "limit": MOST_USED.limit}
    for pair, mode in product(parse_strategies("*"), Mode):
        wish = f"shedder={pair.shedder}&placement={pair.placement}&mode={mode.value}"
        told = await asked(leader, f"{OURS}/plan?{wish}")
        assert told["moves"] or told["refusals"]
    for subject in (B1, B3, CUT.bundles[0]):
        assert (await asked(leader, f"{OURS}/explain?subject={subject}"))["subject"] == subject
    assert "decisions" in await asked(leader, f"{OURS}/decisions?limit=1000")
    metrics = await leader.ask("/metrics")
    families = text_string_to_metric_families(metrics.text)
    samples = [sample for one in families for sample in one.samples]
    assert all(math.isfinite(sample.value) for sample in samples)
    shown = [one.value for one in samples if one.name == "pulsar_lb_cpu_usage"]
    assert max(shown) == 100 * MOST_USED.usage / MOST_USED.limit


@pytest.mark.parametrize("broker", [B1, B2])
async def test_figures_beyond_every_bound_in_a_node_fail_no_request(
    largest: Largest, broker: BrokerId
) -> None:
    (usual,) = (one for one in REPORTS if one.broker == broker)
    absurd = replace(FULL, msgs_in_per_s=1e308, bytes_out_per_s=1e308)
    content = encode_loads(replace(usual, bundles=dict.fromkeys(usual.bundles, absurd)))
    sidecar, server = largest
    await sidecar.write(znodes.loads(broker), content)
    await eventually(lambda: broker not in sidecar.context.cluster_state.loads.reports)
    for path in ("snapshot", "plan", f"explain?subject={B3}", "decisions"):
        await asked(server, f"{OURS}/{path}")
    got = await server.ask("/admin/v2/broker-stats/load-report")
    if broker == B1:
        assert got.status == 503
        assert f"{znodes.loads(B1)}: " in got.json()["reason"]
    else:
        assert got.status == 200
    assert (await server.ask("/metrics")).status == 200
