"""When a session of the simulated ensemble ends, and the bound that is made of that."""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest
from stories import story

from loadmanager.ports.coordination import Node
from tests.testbed.faults.agent import SESSION_S
from tests.testbed.faults.answers_watch import LAGS_IN_A_CHAIN
from tests.testbed.faults.cluster import Cluster
from tests.testbed.faults.service import TimedService
from tests.testbed.faults.session import ClientSession
from tests.testbed.faults.virtual_time import run
from tests.testbed.faults.wires import Gate, Losses

HALF_TICK_S = 1.0


def _ends_after_s(
    requests_at_s: Sequence[float], cut_at_s: float, *, half_tick_s: float, fails: bool
) -> float:
    """Return when the session ends, counted from a full tick, as these times are.

    Reports are made at each half of it.
    """
    service_ended_s = 0.0

    async def program() -> None:
        nonlocal service_ended_s
        loop, service = asyncio.get_running_loop(), TimedService()
        service.half_tick_s, service.fails = half_tick_s, lambda: fails
        rng = Random(1)  # noqa: S311 - to be repeatable
        session = ClientSession(service, Gate(), rng, Losses(), timeout_s=SESSION_S)
        began_s = loop.time() + 2 * HALF_TICK_S
        began_s -= began_s % (2 * HALF_TICK_S)
        await asyncio.sleep(began_s - loop.time())
        await session.start()
        for at_s in requests_at_s:
            await asyncio.sleep(began_s + at_s - loop.time())
            await session.heartbeat()
        await asyncio.sleep(began_s + cut_at_s - loop.time())
        session_id = session.session.session_id
        session.suspend()
        for _ in range(2000):
            if service.lives(session_id):
                service_ended_s = loop.time() - began_s
                await asyncio.sleep(0.01)

    run(program())
    return service_ended_s


REGULAR = [0.1 * number for number in range(1, 208)]


@pytest.mark.parametrize(
    ("requests_at_s", "cut_at_s", "half_tick_s", "fails", "ends_after_s"),
    [
        # Requests since the last report do not count where the follower fails.
        (REGULAR, 20.75, HALF_TICK_S, True, 20.0),
        (REGULAR, 20.75, HALF_TICK_S, False, 20.7),
        (REGULAR, 20.75, 0.0, True, 20.7),
        # Pings go every third of the timeout: at 13.3 s, reported at 14 s.
        ([10.0, 14.9], 14.95, HALF_TICK_S, True, 14.0),
        ([10.0, 14.9], 15.05, HALF_TICK_S, True, 15.0),
        # One that has just begun has its whole time.
        ([0.4], 0.5, HALF_TICK_S, True, 0.0),
    ],
)
def test_a_session_ends_by_what_was_reported_of_it(
    requests_at_s: Sequence[float],
    cut_at_s: float,
    half_tick_s: float,
    fails: bool,
    ends_after_s: float,
) -> None:
    ends_s = _ends_after_s(requests_at_s, cut_at_s, half_tick_s=half_tick_s, fails=fails)
    assert ends_s == pytest.approx(ends_after_s + SESSION_S, abs=0.02)


@story(2)
async def test_a_late_server_and_late_replies_add_up(cluster: Cluster) -> None:
    await cluster.write("/elsewhere", b"before")
    agent = next(one for one in cluster.living if not one.leads)
    server = cluster.service.add_server()
    agent.coordination.connect_to(server)
    told_at_s: dict[bytes, float] = {}

    def told(node: Node | None) -> None:
        if node is not None:
            told_at_s[node.data] = asyncio.get_running_loop().time()

    agent.coordination.watch("/elsewhere", told)
    await cluster.until(lambda: agent.coordination.is_on(server) and told_at_s)
    cluster.service.lag(server, 1.0)
    agent.coordination.delay_replies(0.5)
    lag_s = agent.coordination.lag_s
    assert lag_s == 1.5
    began_s = asyncio.get_running_loop().time()
    await cluster.write("/elsewhere", b"after")
    await cluster.until(lambda: b"after" in told_at_s)
    # The event is as late as both, and the read that it asks for takes time again.
    assert lag_s < told_at_s[b"after"] - began_s < LAGS_IN_A_CHAIN * lag_s
