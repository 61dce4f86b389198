"""What the live page costs leaders and followers of 1,000 brokers x 100,000 bundles."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import pytest
from figures import TooSlow, emit
from leader_at_work import LeaderAtWork, leader_at_work
from pydantic import BaseModel
from served_page import served_page
from synthetic_cluster import BUNDLES_PER_BROKER, synthetic_brokers
from waiting import eventually

from loadmanager.adapters.http.assign_client import HttpAssignClient
from loadmanager.adapters.http.live.feed import OverviewReader
from loadmanager.adapters.http.replies import json_reply
from loadmanager.admin.overview import overview_document
from loadmanager.common.overview import MOST_BROKERS, MOST_DECISIONS, MOST_TASKS
from loadmanager.core import znodes
from loadmanager.core.orders import encode_owned
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.shedding import ThresholdShedder
from loadmanager.core.wire.registrations import encode_registration
from loadmanager.core.wire.reports import encode_loads
from loadmanager.leader.overview import OverviewRequests
from loadmanager.ports.leading import LeaderElsewhere

pytestmark = [pytest.mark.bench, pytest.mark.timeout(400)]

BROKERS: Final = 1000
BUNDLES: Final = BROKERS * BUNDLES_PER_BROKER
VIEWERS: Final = 10
WATCHED_S: Final = 20.0
TARGET_CORES: Final = 0.01
NEVER_S: Final = 1e6


@asynccontextmanager
async def large_leader() -> AsyncIterator[LeaderAtWork]:
    """Yield a leader that has done a round with moves and does nothing more by itself."""
    settings = PlannerSettings(settle_s=0.0, moves_per_round=1000, moves_per_hour=1000)
    planner = Planner(shedder=ThresholdShedder(min_bytes_per_s=0.0), settings=settings)
    async with leader_at_work(planner) as leader:
        for broker in synthetic_brokers(BROKERS, "hot5pct"):
            one = broker.report()
            await leader.write(znodes.registration(one.broker), encode_registration(one))
            await leader.write(znodes.loads(one.broker), encode_loads(one))
            owned = encode_owned(dict.fromkeys(one.bundles, 1))
            await leader.write(znodes.owned(one.broker), owned)
        state = leader.context.cluster_state
        await eventually(lambda: len(state.loads.reports) == BROKERS)
        leader.lead()
        # Who owns what is read once somebody needs it, as one who leads does.
        await eventually(lambda: len(state.owners) == BUNDLES)
        await leader.rounds(1)
        now = leader.settings.now
        rests = replace(now.rhythm, tick_interval_s=NEVER_S, round_interval_s=NEVER_S)
        leader.settings.now = replace(now, rhythm=rests)
        await asyncio.sleep(5.0)
        yield leader


async def used_cores() -> float:
    """Return what this process uses for a while, in processor seconds a second."""
    began_s, used_s = time.monotonic(), time.process_time()
    await asyncio.sleep(WATCHED_S)
    return (time.process_time() - used_s) / (time.monotonic() - began_s)


@asynccontextmanager
async def viewers_of(url: str) -> AsyncIterator[None]:
    """Have a page read ten times over, by processes of their own: reading is not the server's."""
    command = ("curl", "--silent", "--no-buffer", "--output", "/dev/null")
    viewers = [
        await asyncio.create_subprocess_exec(*command, f"{url}/live/events") for _ in range(VIEWERS)
    ]
    try:
        await asyncio.sleep(3.0)
        yield
        assert all(one.returncode is None for one in viewers)
    finally:
        for one in viewers:
            one.terminate()
            await one.wait()


async def cost_of_viewers(reader: OverviewReader, name: str) -> None:
    """Measure, and compare it with what it may be."""
    idle = await used_cores()
    async with served_page(reader) as url, viewers_of(url):
        watched = await used_cores()
    event = await reader()
    assert event.startswith(b"event: overview")
    cores = watched - idle
    emit(
        name,
        brokers=BROKERS,
        bundles=BUNDLES,
        viewers=VIEWERS,
        cores=cores,
        idle_cores=idle,
        event_bytes=len(event),
    )
    if cores > TARGET_CORES:
        raise TooSlow(f"{cores:.4f} cores; expected {TARGET_CORES}")


LEADER: Final = """
import sys
from aiohttp import web

async def overview(request):
    return web.Response(body=DOCUMENT, content_type="application/json")

DOCUMENT = sys.stdin.buffer.read()
app = web.Application()
app.router.add_get("/admin/v2/loadmanager/overview", overview)
web.run_app(app, host="127.0.0.1", port=0, print=lambda text: print(text.split()[3], flush=True))
"""


@asynccontextmanager
async def leader_that_answers(document: bytes) -> AsyncIterator[str]:
    """Yield where a process of its own answers with an overview."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        LEADER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(document)
    process.stdin.write_eof()
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.flaky(reruns=1, only_rerun=["TooSlow"])
async def test_ten_viewers_cost_less_than_a_hundredth_of_a_core() -> None:
    async with large_leader() as leader:
        requests = OverviewRequests(
            leader.context, leader.leading, leader.explainer, cluster="large"
        )
        seen = requests.overview()
        assert (seen.brokers_in_all, len(seen.brokers)) == (BROKERS, MOST_BROKERS)
        assert len(leader.context.cluster_state.owners) == BUNDLES
        assert len(seen.tasks.tasks) == MOST_TASKS
        assert len(seen.decisions) == MOST_DECISIONS
        reader = OverviewReader(lambda: overview_document(requests.overview()), "b1:8080")
        await cost_of_viewers(reader, "live_page")
        document = json_reply(overview_document(requests.overview())).body
    assert isinstance(document, bytes)
    async with leader_that_answers(document) as url:
        line = HttpAssignClient()

        def elsewhere() -> BaseModel:
            raise LeaderElsewhere(url)

        try:
            await cost_of_viewers(OverviewReader(elsewhere, "b2:8080", line), "live_page_follower")
        finally:
            await line.close()
