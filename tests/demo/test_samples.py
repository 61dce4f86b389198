"""The cluster as seen over HTTP."""

import json
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.demo.cluster import Member
from loadmanager.demo.figures import BrokerSample, ClusterSample, Observer, cpu_fraction

B1, B2 = BrokerId("127.0.0.1:8081"), BrokerId("127.0.0.1:8082")
X = BundleId("public/demo/0x00000000_0xffffffff")
CONTROL = "known to brokers and sidecars"
METRICS = """\
# HELP pulsar_lb_cpu_usage percent
# TYPE pulsar_lb_cpu_usage gauge
pulsar_lb_cpu_usage{broker="127.0.0.1:8081",cluster="demo",metric="loadBalancing"} 41.5
pulsar_lb_cpu_usage{cluster="demo",broker="127.0.0.1:8082",metric="loadBalancing"} 1.2e+02
pulsar_lb_memory_usage{broker="127.0.0.1:8081",cluster="demo",metric="loadBalancing"} 9.0
"""


@pytest.mark.parametrize(("broker", "expected"), [(B1, 0.415), (B2, 1.2), ("b:1", None)])
def test_the_cpu_fraction_is_that_of_the_named_broker(
    broker: BrokerId, expected: float | None
) -> None:
    assert cpu_fraction(METRICS, broker) == expected


async def test_one_look_tells_leader_loads_and_owners_and_who_did_not_answer() -> None:
    stats = {"bundles": {X: {"msgRateIn": 2.5, "msgRateOut": 0.0}}}
    app = web.Application()

    async def answer(request: web.Request) -> web.Response:
        if "broker" in request.path.split("/")[1]:
            assert request.headers["Authorization"] == f"Bearer {CONTROL}"
        else:
            assert "Authorization" not in request.headers
        texts = {
            "/metrics": METRICS.replace("127.0.0.1:8081", request.host),
            "/loadmanager-broker/v1/stats": json.dumps(stats),
            "/admin/v2/brokers/leaderBroker": json.dumps({"brokerId": B2}),
        }
        return web.Response(text=texts[request.path])

    app.router.add_get("/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    alive = BrokerId(f"127.0.0.1:{runner.addresses[0][1]}")
    nowhere = "http://127.0.0.1:1"
    members = (
        Member(1, BrokerId("127.0.0.1:1"), nowhere, Path()),
        Member(2, alive, f"http://{alive}", Path()),
        Member(3, B2, nowhere, Path(), killed=True),
    )
    async with aiohttp.ClientSession() as http:
        look = await Observer(http, members, CONTROL).sample()
    await runner.cleanup()
    silent = BrokerSample(name="broker-1", broker=BrokerId("127.0.0.1:1"))
    seen = BrokerSample(name="broker-2", broker=alive, cpu_fraction=0.415, bundles={X: 2.5})
    dead = BrokerSample(name="broker-3", broker=B2, killed=True)
    assert look == ClusterSample(look.at_s, B2, (silent, seen, dead))
    assert look.loads == {alive: 0.415}
    assert look.owners == {X: alive}
    assert [b.state for b in look.brokers] == ["no answer", "serving", "killed"]
    assert seen.msgs_per_s == 2.5
