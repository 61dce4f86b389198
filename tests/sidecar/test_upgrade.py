"""From version 0.1 to format 2 as docs/upgrade.md has it: what stays in ZooKeeper meanwhile.

`LEFT` is what a cluster of version 0.1 with three brokers left behind when it was stopped.
"""

import json
import zlib
from typing import Any

from stories import story

from loadmanager.common.cluster_conditions import ClusterDisagrees
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId
from tests.testbed.faults.cluster import NAMESPACE, Cluster

PLACES = {
    "broker0:8080": ["0x00000000_0x2aaaaaaa", "0xaaaaaaa8_0xd5555552", "0xd5555552_0xffffffff"],
    "broker1:8080": ["0x55555554_0x7ffffffe"],
    "broker2:8080": ["0x2aaaaaaa_0x55555554", "0x7ffffffe_0xaaaaaaa8"],
}
SIX = Boundaries.even(NAMESPACE, 6)
MEMORY: dict[str, Any] = {
    "usage": {},
    "highHits": {},
    "lowHits": {},
    "roundsOver": 0,
    "planned": {},
    "turn": 0,
    "turnOrder": [],
    "shedAtS": {},
}
STATE: dict[str, Any] = {
    "memory": {
        "shedder": {**MEMORY, "usage": dict.fromkeys(PLACES, 0.1)},
        "placement": MEMORY,
        "movedAtS": {},
        "startedAtMs": dict.fromkeys(PLACES, 1_700_000_000_000),
    },
    "averages": {bundle: [10, 178, 0, *[0.0] * 8] for bundle in SIX.bundles},
    "running": {broker: [1_700_000_000_000, 0.1, 0.0] for broker in PLACES},
    "departedAtS": {},
    "splitRestsS": {},
}
LEFT = {
    "/admin/local-policies/acme/orders": b'{"bundles":{"boundaries":["0x00000000","0x2aaaaaaa",'
    b'"0x55555554","0x7ffffffe","0xaaaaaaa8","0xd5555552","0xffffffff"],"numBundles":6}}',
    **{f"/loadbalance/agents/{broker}": b"" for broker in PLACES},
    "/loadbalance/brokers": b"",
    "/loadbalance/cluster": b'{"hash":"murmur3"}',
    "/loadbalance/epoch": b"broker0:8080/0",
    **{
        f"/loadbalance/orders/{broker}": json.dumps(
            {"epoch": 1, "bundles": {"acme/orders": ranges}, "handovers": {}, "splits": {}}
        ).encode()
        for broker, ranges in PLACES.items()
    },
    "/loadbalance/owned": b"",
    "/loadbalance/state": zlib.compress(json.dumps(STATE).encode()),
    **{f"/namespace/{bundle.rpartition('/')[0]}": b"" for bundle in SIX.bundles},
}


@story(0)
async def test_each_broker_takes_the_bundles_that_it_had(cluster: Cluster) -> None:
    for path, content in LEFT.items():
        await cluster.write(path, content)
    assert cluster.service.dump()[znodes.EPOCH].stat.version == 1
    hosts = [cluster.add_host() for _ in PLACES]
    early = cluster.start(hosts[0])
    await cluster.until(lambda: not early.alive)
    assert isinstance(early.failure, ClusterDisagrees)
    assert {path: cluster.service.dump()[path].data for path in LEFT} == LEFT
    await cluster.write(znodes.CLUSTER, b'{"format":2,"hash":"murmur3"}')
    for host in hosts:
        cluster.start(host)
    await cluster.ready()
    await cluster.settled(SIX.bundles)
    for broker, ranges in PLACES.items():
        (host,) = (one for one in hosts if one.name == BrokerId(broker))
        assert sorted(host.serving) == [f"{NAMESPACE}/{one}" for one in ranges]
    assert cluster.service.epochs == [2]
    await cluster.until(lambda: bool(cluster.warnings("leadership.state.inherited")))
    assert [one["bundles"] for one in cluster.warnings("leadership.state.inherited")] == [6]
    assert not cluster.warnings("znode.content.refused")
