import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId, Namespace, TopicName
from loadmanager.demo.traffic import (
    LookupClient,
    Producer,
    TrafficCounts,
    TrafficReport,
    TrafficSettings,
)
from tests.testbed.checker.publishes import (
    Acknowledgement,
    Publish,
    RecordingProducer,
    publishes_in,
)

TOPIC = TopicName("persistent", Namespace("public/demo"), "orders-1")
BUNDLE = BundleId("public/demo/0x00000000_0xffffffff")
OTHER = BundleId("public/other/0x00000000_0xffffffff")


@dataclass
class PretendedNode:
    """Answers lookups with ``owner_url`` and publishes with 204, unless told otherwise.

    With an ``acknowledgement`` it takes messages as the in-memory broker does.

    ``lookup_statuses`` and ``publish_statuses`` are used up first, one a request.
    """

    url: str = ""
    owner_url: str = ""
    lookup_statuses: list[int] = field(default_factory=list)
    publish_statuses: list[int] = field(default_factory=list)
    looked_up: list[str] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
    acknowledgement: dict[str, object] | None = None

    async def lookup(self, request: web.Request) -> web.Response:
        self.looked_up.append(request.match_info["topic"])
        status = self.lookup_statuses.pop(0) if self.lookup_statuses else 200
        if status != 200:
            return web.json_response({"reason": "told to"}, status=status)
        return web.json_response({"httpUrl": self.owner_url or self.url})

    async def publish(self, request: web.Request) -> web.Response:
        status = self.publish_statuses.pop(0) if self.publish_statuses else 204
        if status == 204:
            self.published.append(request.match_info["topic"])
            if self.acknowledgement is not None:
                return web.json_response(self.acknowledgement)
        return web.Response(status=status)


@pytest.fixture
async def node() -> AsyncIterator[PretendedNode]:
    pretended = PretendedNode()
    app = web.Application()
    app.router.add_get("/lookup/v2/topic/persistent/public/demo/{topic}", pretended.lookup)
    app.router.add_post("/publish/persistent/public/demo/{topic}", pretended.publish)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    pretended.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield pretended
    await runner.cleanup()


@pytest.fixture
def dead_url() -> str:
    """Where nothing listens: port 1 is no port of the demo, and refused on loopback."""
    return "http://127.0.0.1:1"


@asynccontextmanager
async def client(urls: Sequence[str], bound_s: float = 10.0) -> AsyncIterator[LookupClient]:
    async with aiohttp.ClientSession() as http:
        yield LookupClient(http, urls, TrafficCounts(), np.random.default_rng(1), bound_s)


async def publish_one(
    lookup: LookupClient, bound_s: float = 10.0, producer: Callable[..., Producer] = Producer
) -> TrafficCounts:
    publishing = producer(TOPIC, BUNDLE, lookup, lookup.counts, bound_s)
    publishing.add(monotonic())
    running = asyncio.create_task(publishing.run())
    await publishing.finish()
    running.cancel()
    return lookup.counts


async def test_a_dead_sidecar_costs_a_try_alone(node: PretendedNode, dead_url: str) -> None:
    async with client([dead_url, node.url, dead_url]) as lookup:
        assert [await lookup.find_owner(TOPIC) for _ in range(4)] == [node.url] * 4
    assert (lookup.counts.lookups, lookup.counts.lookup_errors) == (4, 0)


@pytest.mark.parametrize("status", [500, 503, 404])
async def test_a_bad_answer_of_a_sidecar_is_one_error(node: PretendedNode, status: int) -> None:
    node.lookup_statuses = [status, status]
    async with client([node.url]) as lookup:
        assert await lookup.find_owner(TOPIC) == node.url
    assert (lookup.counts.lookups, lookup.counts.lookup_errors) == (1, 1)
    assert str(status) in lookup.counts.last_lookup_error


async def test_a_lookup_that_nobody_answers_in_time_is_an_error(dead_url: str) -> None:
    async with client([dead_url], bound_s=0.2) as lookup:
        assert await lookup.find_owner(TOPIC) is None
    assert (lookup.counts.lookups, lookup.counts.lookup_errors) == (1, 1)
    assert lookup.counts.last_lookup_error.endswith("no answer in 0.2 s")


async def test_a_message_goes_to_the_owner_who_is_remembered(node: PretendedNode) -> None:
    async with client([node.url]) as lookup:
        producer = Producer(TOPIC, BUNDLE, lookup, lookup.counts)
        running = asyncio.create_task(producer.run())
        for _ in range(3):
            producer.add(monotonic())
        await producer.finish()
        running.cancel()
    assert node.published == ["orders-1"] * 3
    assert (lookup.counts.published, lookup.counts.waiting, lookup.counts.lookups) == (3, 0, 1)


@pytest.mark.parametrize("status", [404, 421, 503])
async def test_a_broker_that_refuses_is_looked_up_again(node: PretendedNode, status: int) -> None:
    node.publish_statuses = [status, status]
    async with client([node.url]) as lookup:
        counts = await publish_one(lookup)
    assert (counts.published, counts.publish_retries, counts.publish_errors) == (1, 2, 0)
    assert counts.lookups == 3


async def test_a_dead_owner_is_looked_up_again(node: PretendedNode, dead_url: str) -> None:
    node.owner_url = dead_url
    async with client([node.url]) as lookup:
        publishing = asyncio.create_task(publish_one(lookup))
        while len(node.looked_up) < 3:  # noqa: ASYNC110 - the server counts, no event to wait for
            await asyncio.sleep(0.01)
        node.owner_url = node.url
        counts = await publishing
    assert (counts.published, counts.publish_errors) == (1, 0)
    assert counts.publish_retries >= 2


async def test_a_message_nobody_takes_is_an_error(node: PretendedNode, dead_url: str) -> None:
    node.owner_url = dead_url
    async with client([node.url]) as lookup:
        counts = await publish_one(lookup, bound_s=0.2)
    assert (counts.published, counts.publish_errors, counts.waiting) == (0, 1, 0)
    assert dead_url in counts.last_publish_error


async def attempts_of(node: PretendedNode, bound_s: float = 10.0) -> list[Publish]:
    found: list[Publish] = []
    async with client([node.url]) as lookup:
        recording = partial(RecordingProducer, record=found.append)
        await publish_one(lookup, bound_s, recording)
    return found


async def test_each_attempt_is_recorded_with_the_answer_of_the_broker(node: PretendedNode) -> None:
    node.publish_statuses = [421]
    node.acknowledgement = {
        "incarnation": "i1",
        "bundle": BUNDLE,
        "fencingToken": 7,
        "clockSeconds": 1.5,
    }
    attempts = await attempts_of(node)
    said = Acknowledgement(incarnation="i1", bundle=BUNDLE, fencing_token=7, clock_s=1.5)
    assert [(one.status, one.acknowledgement) for one in attempts] == [(421, None), (200, said)]
    assert {(one.topic, one.broker) for one in attempts} == {
        ("persistent://public/demo/orders-1", node.url.removeprefix("http://"))
    }
    assert all(one.sent_s < one.answered_s < monotonic() for one in attempts)


async def test_the_generator_places_every_bundle_then_publishes_until_it_is_stopped(
    node: PretendedNode, tmp_path: Path
) -> None:
    path = tmp_path / "traffic.json"
    settings = TrafficSettings(
        sidecar_urls=(node.url,),
        namespace="public/demo",
        hash_name="murmur3",
        bundles=4,
        topics=10,
        seed=1,
        rate_per_s=100.0,
    )
    settings.save(path)
    record = tmp_path / "publishes.jsonl"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.testbed.checker.publishes", str(path), str(record)),
        stdout=PIPE,
    )
    assert process.stdout is not None
    placed = TrafficReport.from_line((await process.stdout.readline()).decode())
    progress = TrafficReport.from_line((await process.stdout.readline()).decode())
    process.terminate()
    rest, _ = await process.communicate()
    final = TrafficReport.from_line(rest.splitlines()[-1].decode())
    assert [placed.kind, progress.kind, final.kind] == ["placed", "progress", "final"]
    assert (placed.lookups, placed.published) == (10, 0)
    assert len(set(node.looked_up[:10])) == 10
    assert final.published == len(node.published) > 0
    assert (final.waiting, final.publish_errors, final.lookup_errors) == (0, 0, 0)
    assert process.returncode == 0
    assert len([*publishes_in(record.read_text())]) == final.published


@pytest.mark.parametrize("line", ["", "[]", "{", '{"kind": "final"}', '{"cow": 1}'])
def test_a_line_that_is_no_report_is_refused(line: str) -> None:
    with pytest.raises(MalformedContent, match="traffic generator"):
        TrafficReport.from_line(line)
