"""Real sidecars by the hundred at one real ZooKeeper: requests, memory, cold start, deaths.

The leader, a successor and one other have processes of their own, and so has the tenth that is
killed. Each broker has a hundred bundles. How many sidecars: LOADMANAGER_BENCH_SIDECARS="3 50"; how
many bundles of each broker: LOADMANAGER_BENCH_BUNDLES_A_BROKER=100; how many lookups wait at
once in the cold start: LOADMANAGER_BENCH_CLIENTS=32.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Final

import psutil
import pytest
from figures import emit, percentile
from swarm import CLIENTS, Group, Swarm, Use, leader_in, swarm

from loadmanager.adapters.zookeeper.embedded import (
    EmbeddedZooKeeper,
    EmbeddedZooKeeperError,
    find_java,
)
from loadmanager.common.cluster_state import UNREAD_FOR_S

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1500)]
SIDECARS: Final = tuple(map(int, os.environ.get("LOADMANAGER_BENCH_SIDECARS", "3 50").split()))
BUNDLES_A_BROKER: Final = int(os.environ.get("LOADMANAGER_BENCH_BUNDLES_A_BROKER", "100"))
CLIENTS_AT_ONCE: Final = int(os.environ.get("LOADMANAGER_BENCH_CLIENTS", CLIENTS))
COUNTED_S: Final = 60.0
"""A round of the leader, and a report of each broker."""

A_PROCESS: Final = 20
"""How many sidecars share an interpreter: with far more they wait for its lock, and leases end."""

SESSION_S: Final = 10.0
TICK_S: Final = 2.0
NEW_LEADER_WITHIN_S: Final = 2.0
MOST_REQUESTS_PER_S: Final = 2.0
MOST_MORE_MIB: Final = 15.0
LEADER_WITHIN_S: Final = SESSION_S + TICK_S + NEW_LEADER_WITHIN_S
memory_mib: dict[int, dict[str, float]] = {}


@pytest.mark.parametrize("sidecars", SIDECARS)
async def test_what_a_swarm_takes(sidecars: int, tmp_path: Path) -> None:
    try:
        find_java()
    except EmbeddedZooKeeperError as error:
        pytest.skip(str(error))
    with EmbeddedZooKeeper(tick_ms=round(1000 * TICK_S)) as server:
        async with swarm(server.address, tmp_path) as many:
            await _measured(many, sidecars, psutil.Process(server.pid))


async def _measured(many: Swarm, sidecars: int, server: psutil.Process) -> None:
    bundles = BUNDLES_A_BROKER * sidecars
    report = partial(emit, "swarm", sidecars=sidecars, bundles=bundles)
    dying = max(1, sidecars // 10)
    rest = max(0, sidecars - 3 - dying)

    began_s = monotonic()
    for _role in ("leader", "successor"):
        await many.add(1)
        await many.ready()
    groups = [dying, *(min(A_PROCESS, rest - begun) for begun in range(0, rest, A_PROCESS))]
    tenth, *_ = await asyncio.gather(*map(many.add, groups))
    await many.ready(within_s=300.0)
    if sidecars > 2 + dying:  # One without a role, because it registers last.
        await many.add(1)
        await many.ready()
    report(event="start", seconds=monotonic() - began_s)

    await many.create_namespace(bundles)
    await many.draw_topics()
    await _start_cold(many, bundles, server, report)
    # Lists that nobody needs are read one a second, after a while.
    await asyncio.sleep(UNREAD_FOR_S + sidecars + 20.0)
    most, memory_mib[sidecars] = await _count_requests(many, "at rest", server, report)
    assert most <= MOST_REQUESTS_PER_S
    await many.ask_all("change_loads", on=True)
    await _count_requests(many, "loads change", server, report)
    await many.ask_all("change_loads", on=False)
    await many.all_served(within_s=60.0)  # A round may have ordered moves just now.
    await many.check()
    await _kill_some(many, tenth, report)
    await many.check()
    if sidecars > 3 and 3 in memory_mib:
        assert memory_mib[sidecars]["other"] - memory_mib[3]["successor"] <= MOST_MORE_MIB


async def _start_cold(
    many: Swarm, bundles: int, server: psutil.Process, report: Callable[..., None]
) -> None:
    before, server_before, began_s = await many.use(), _spent(server), monotonic()
    answers = await many.look_up(CLIENTS_AT_ONCE)
    served_s = await many.all_served(within_s=60.0) - began_s
    after, server_after = await many.use(), _spent(server)
    leader = leader_in(await many.ask_all("state"))
    latencies_s = [one for answer in answers for one in answer["latencies_s"]]
    report(
        event="cold start",
        clients=CLIENTS_AT_ONCE,
        seconds=served_s,
        bundles_per_s=bundles / served_s,
        requests_a_bundle=(sum(after.asked.values()) - sum(before.asked.values())) / bundles,
        cpu_ms_a_bundle={
            "sidecars": 1000 * (after.all_cpu_s - before.all_cpu_s) / bundles,
            "of them the leader": 1000 * (after.cpu_s[leader] - before.cpu_s[leader]) / bundles,
            "zookeeper": 1000 * (server_after["cpu_s"] - server_before["cpu_s"]) / bundles,
        },
        lookup_median_s=median(latencies_s),
        lookup_p99_s=percentile(latencies_s, 99),
        retried=sum(sum(answer["retried"].values()) for answer in answers),
    )


async def _count_requests(
    many: Swarm, state: str, server: psutil.Process, report: Callable[..., None]
) -> tuple[float, dict[str, float]]:
    """Return the most requests a second of a sidecar without a role, and MiB by role.

    Memory and CPU are those of sidecars that have a process of their own.
    """
    before, server_before = await many.use(), _spent(server)
    await asyncio.sleep(COUNTED_S)
    after, server_after = await many.use(), _spent(server)
    roles = await _roles(many, after)
    rates = {role: list(_rates(names, before, after)) for role, names in roles.items()}
    over_s = after.at_s - before.at_s
    own = {group.names[0] for group in many.living if len(group.names) == 1}
    alone = {role: name for role, names in roles.items() for name in names if name in own}
    memory = {role: after.memory_bytes[name] / 2**20 for role, name in alone.items()}
    report(
        event=state,
        requests_per_s={role: sum(each) / len(each) for role, each in rates.items() if each},
        most_requests_per_s={role: max(each) for role, each in rates.items() if each},
        memory_mib_alone=memory,
        cpu_fraction_alone={
            role: (after.cpu_s[name] - before.cpu_s[name]) / over_s for role, name in alone.items()
        },
        zookeeper_per_s={
            key: (server_after[key] - server_before[key]) / over_s for key in server_after
        },
        zookeeper_mib=server.memory_info().rss / 2**20,
    )
    return max(rates["other"], default=0.0), memory


async def _kill_some(many: Swarm, tenth: Group, report: Callable[..., None]) -> None:
    killed_s = monotonic()
    lost = (await tenth.ask("state"))["serving"]
    await tenth.kill()
    served_s = await many.all_served(within_s=120.0) - killed_s
    report(event="a tenth is killed", seconds=served_s, bundles_lost=lost, killed=len(tenth.names))

    states = await many.ask_all("state")
    leader = next(one for one in many.living if leader_in(states) in one.names)
    lost = (await leader.ask("state"))["serving"]
    killed_s, killed = monotonic(), len(leader.names)
    await leader.kill()
    led = await many.until(leader_in, within_s=60.0)
    led_s = max(float(one["at_s"]) for one in led) - killed_s
    served_s = await many.all_served(within_s=120.0) - killed_s
    report(
        event="the leader is killed",
        seconds=led_s,
        served_s=served_s,
        bundles_lost=lost,
        killed=killed,
    )
    assert led_s <= LEADER_WITHIN_S


async def _roles(many: Swarm, use: Use) -> Mapping[str, Sequence[str]]:
    leader = leader_in(await many.ask_all("state"))
    successors = [name for name in use.successors if name != leader]
    return {
        "leader": [leader],
        "successor": successors,
        "other": [name for name in use.asked if name not in {leader, *successors}],
    }


def _rates(names: Sequence[str], before: Use, after: Use) -> Iterator[float]:
    for name in names:
        yield (after.asked[name] - before.asked[name]) / (after.at_s - before.at_s)


def _spent(server: psutil.Process) -> dict[str, float]:
    """Return CPU seconds and bytes so far; what is written includes the log of transactions."""
    spent, moved = server.cpu_times(), server.io_counters()
    moved_bytes: Any = moved
    return {
        "cpu_s": spent.user + spent.system,
        "read_bytes": float(moved_bytes.read_chars),
        "written_bytes": float(moved_bytes.write_chars),
    }
