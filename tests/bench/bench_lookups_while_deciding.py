"""How long lookups take at a leader of 1,000 brokers and 100,000 bundles that decides meanwhile.

The HTTP server and the rounds share one event loop, as in a sidecar; the client is a process of
its own, and asks at fixed times, so that a lookup that has to wait counts with its whole wait.
A round is what `bench_round` measures: changed reports taken in, a view with an order for each
bundle, strategy and planner; without writing orders.

``python -m tests.bench.bench_lookups_while_deciding PORT SECONDS`` is the client.
"""

import asyncio
import gc
import json
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from loadmanager.adapters.computing import ThreadedComputing
from loadmanager.core.policies import NO_POLICIES
from loadmanager.core.round_memory import RoundMemory
from loadmanager.leader.cluster_view import REPORTS_A_TURN
from loadmanager.leader.decisions import decide_round
from loadmanager.leader.sight import Sight
from loadmanager.ports.host import Computing, ComputingInline
from tests.adapters.http.conftest import running_servers

ROOT: Final = Path(__file__).parents[2]
CONNECTIONS: Final = 10
ASKS_EVERY_S: Final = 0.01
TOPICS: Final = 100
SECONDS: Final = 6.0
ROUNDS_EVERY_S: Final = 1.0
COMPUTED: Final[dict[str, Computing | None]] = {
    "no rounds": None,
    "on the event loop": ComputingInline(),
    "in a thread": ThreadedComputing(),
    "in a thread, Python's usual switch interval": ThreadedComputing(0.005),
}


async def _ask(port: int, first: int, until_s: float) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    waits_ms = []
    # One after the other, not all at once.
    due_s = time.perf_counter() + first * ASKS_EVERY_S / TOPICS
    while due_s < until_s:
        await asyncio.sleep(due_s - time.perf_counter())
        path = f"/lookup/v2/topic/persistent/public/default/topic-{first % TOPICS}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        assert head.startswith(b"HTTP/1.1 200 ")
        waits_ms.append(1000 * (time.perf_counter() - due_s))
        first += 1
        due_s += ASKS_EVERY_S
    writer.close()
    return waits_ms


async def _client(port: int, seconds: float) -> None:
    until_s = time.perf_counter() + seconds
    each = await asyncio.gather(
        *(_ask(port, number * TOPICS // CONNECTIONS, until_s) for number in range(CONNECTIONS))
    )
    # The first second does not count.
    skipped = int(1 / ASKS_EVERY_S)
    print(json.dumps([wait for waits in each for wait in waits[skipped:]]))


async def _waits_ms(port: int) -> list[float]:
    command = [sys.executable, "-m", "tests.bench.bench_lookups_while_deciding"]
    asking = await asyncio.create_subprocess_exec(
        *command, str(port), str(SECONDS), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await asyncio.wait_for(asking.communicate(), 60)
    return [float(one) for one in json.loads(told)]


@pytest.mark.bench
@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", ["threshold", "joint"])
async def test_lookups_hardly_wait_for_a_round(strategy: str) -> None:
    from figures import emit, percentile  # noqa: PLC0415 - pytest finds it; the client does not
    from leader_round import CHANGED_EVERY, STRATEGIES, LeaderRounds  # noqa: PLC0415 - as above
    from synthetic_cluster import NOW_S, SHAPES, synthetic_brokers  # noqa: PLC0415 - as above

    brokers = list(synthetic_brokers(1000, SHAPES[0]))
    leader = LeaderRounds(brokers, STRATEGIES[strategy])
    changed = [
        [one.report(grown_by=1 + number / 100) for one in brokers[::CHANGED_EVERY]]
        for number in range(int(2 * SECONDS))
    ]
    ordered = {name: one.report().broker for one in brokers for name in one.report().bundles}
    p99_ms = {}

    async def decide(number: int, computing: Computing) -> float:
        began_s = time.perf_counter()
        for taken, report in enumerate(changed[number], 1):
            leader.tracker.report(report, NOW_S / 2)
            if taken % REPORTS_A_TURN == 0:
                await asyncio.sleep(0)
        sight = Sight(
            now_s=NOW_S,
            tally=leader.tracker.tally(),
            assigned=dict(ordered),
            policies=NO_POLICIES,
            passed_over=frozenset(),
        )
        # Nothing remembered, and no doubt about the session.
        decided_by = RoundMemory(), np.random.default_rng(1), False
        _, plan = await computing.compute(decide_round, leader.planner, sight, *decided_by)
        assert plan.moves
        return 1000 * (time.perf_counter() - began_s)

    # A sidecar does not keep twelve rounds' reports: collecting them stops everything, too.
    gc.collect()
    gc.freeze()
    for name, computing in COMPUTED.items():
        times_ms = [0.0]
        async with running_servers() as start_server:
            asking = asyncio.create_task(_waits_ms((await start_server()).port))
            for number in range(len(changed)):
                await asyncio.wait([asking], timeout=ROUNDS_EVERY_S)
                if asking.done():
                    break
                if computing is not None:
                    times_ms.append(await decide(number, computing))
            waits_ms = await asking
        p99_ms[name] = percentile(waits_ms, 99)
        emit(
            "lookups_while_deciding",
            figure=name,
            strategy=strategy,
            lookups=len(waits_ms),
            median_ms=percentile(waits_ms, 50),
            p99_ms=p99_ms[name],
            max_ms=max(waits_ms),
            rounds=len(times_ms) - 1,
            median_round_ms=percentile(times_ms[1:] or times_ms, 50),
            longest_round_ms=max(times_ms),
        )
    gc.unfreeze()
    assert p99_ms["in a thread"] < p99_ms["on the event loop"]


if __name__ == "__main__":
    asyncio.run(_client(int(sys.argv[1]), float(sys.argv[2])))
