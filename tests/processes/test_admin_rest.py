import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster_processes import ProcessCluster, process_cluster
from seed_samples import head, write_seed
from surface import surface

from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace, TopicName
from loadmanager.demo.cluster import NAMESPACE, Member

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
CLUSTER = "demo"


@dataclass(frozen=True, slots=True)
class Sidecar:
    processes: ProcessCluster
    member: Member

    async def send(self, method: str, path: str) -> tuple[int, Any]:
        url = f"{self.member.sidecar_url}/admin/v2/{path}"
        async with self.processes.http.request(method, url) as answer:
            is_json = answer.content_type == "application/json"
            return answer.status, await (answer.json() if is_json else answer.text())

    async def get(self, path: str) -> Any:
        status, content = await self.send("GET", path)
        assert status == 200, content
        return content


async def publish(processes: ProcessCluster, topic: TopicName, sidecar: Sidecar) -> str:
    path = f"{topic.domain}/{topic.namespace}/{topic.local}"
    url = f"{sidecar.member.sidecar_url}/lookup/v2/topic/{path}"
    async with processes.http.get(url) as found:
        assert found.status == 200, await found.text()
        owner = str((await found.json())["httpUrl"])
    async with processes.http.post(f"{owner}/publish/{path}", data=b"x") as sent:
        assert sent.status == 200, await sent.text()
    return owner.removeprefix("http://")


async def test_one_sidecar_knows_what_another_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = dict.fromkeys(Boundaries.even(Namespace(NAMESPACE), 4).bundles, 100.0)
    seed = write_seed(tmp_path / "seed.json.gz", head(time.time_ns() // 10**6, CLUSTER), sizes)
    monkeypatch.setenv("LOADMANAGER_HISTORY__SEED", str(seed))
    async with process_cluster(tmp_path, brokers=2, bundles=4) as processes:
        await processes.start()
        first, second = (Sidecar(processes, one) for one in processes.cluster.members)
        await _the_leader_begins_with_a_seed(first, second)
        await _topics_are_told_of_both_brokers(first, second)
        await _brokers_and_their_bundles(first, second)


async def _topics_are_told_of_both_brokers(first: Sidecar, second: Sidecar) -> None:
    await first.processes.look_up_every_bundle()
    # Where bundles go that nobody has measured is chance: all may be on one broker.
    for number, bundle in enumerate(first.processes.boundaries.bundles):
        target = (first, second)[number % 2].member.broker
        path = f"{NAMESPACE}/{bundle.rpartition('/')[2]}/unload?destinationBroker={target}"
        assert await first.send("PUT", f"namespaces/{path}") == (204, "")
    topics = [TopicName("persistent", Namespace(NAMESPACE), f"t{number}") for number in range(8)]
    owners = {await publish(first.processes, topic, second) for topic in topics}
    assert owners == {first.member.broker, second.member.broker}
    for sidecar in (first, second):
        told = await sidecar.get(f"namespaces/{NAMESPACE}/topics?mode=ALL")
        assert {str(topic) for topic in topics} <= set(told)
    stats = await first.get("broker-stats/topics")
    assert set(stats) == {NAMESPACE}
    assert 0 < len(stats[NAMESPACE]) < 4


async def _brokers_and_their_bundles(first: Sidecar, second: Sidecar) -> None:
    brokers = sorted(one.member.broker for one in (first, second))
    assert await first.get("brokers") == await second.get(f"brokers/{CLUSTER}") == brokers
    owned = [await first.get(f"brokers/{CLUSTER}/{broker}/ownedNamespaces") for broker in brokers]
    assert sum(map(len, owned)) == 4
    leader = (await first.get("brokers/leaderBroker"))["brokerId"]
    assert leader == (await second.get("brokers/leaderBroker"))["brokerId"]
    follower = next(one for one in (first, second) if one.member.broker != leader)
    async with first.processes.http.get(f"{follower.member.sidecar_url}/openapi.json") as answer:
        described = await answer.json()
    assert described["paths"].keys() == {one.path for one in surface()}
    url = f"{follower.member.sidecar_url}/admin/v2/loadmanager/plan"
    async with first.processes.http.get(url, allow_redirects=False) as answer:
        assert answer.status == 307
    assert isinstance((await follower.get("loadmanager/plan"))["moves"], list)
    bundle = next(iter(owned[0])).rpartition("/")[2]
    path = f"namespaces/{NAMESPACE}/{bundle}/unload?destinationBroker="
    assert (await follower.send("PUT", f"{path}127.0.0.1:1"))[0] == 409
    assert (await follower.send("PUT", f"{path}{brokers[1]}"))[0] == 204
    now = await second.get(f"brokers/{CLUSTER}/{brokers[1]}/ownedNamespaces")
    assert f"{NAMESPACE}/{bundle}" in now


async def _the_leader_begins_with_a_seed(first: Sidecar, second: Sidecar) -> None:
    """Neither sidecar of a new cluster has a past: the first leader has read the seed."""

    async def used() -> bool:
        told = []
        for one in (first, second):
            async with one.processes.http.get(f"{one.member.sidecar_url}/metrics") as answer:
                told.append(await answer.text())
        return any('loadmanager_seeds_total{result="used"} 1.0' in text for text in told)

    async with asyncio.timeout(60):
        while not await used():  # noqa: ASYNC110 - another process reads it
            await asyncio.sleep(0.05)
    snapshot = await second.get("loadmanager/snapshot")
    assert len(snapshot["bundles"]) == 4
    long_term = [one["longTermData"] for one in snapshot["bundles"].values()]
    assert all(one["numSamples"] >= 30 and one["msgRateIn"] > 0 for one in long_term)
