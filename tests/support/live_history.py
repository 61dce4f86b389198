from functools import partial
from pathlib import Path
from typing import Any, Final

from history_sinks import Archive
from stories import placed, published, start_hosts

from loadmanager.adapters.history.sink import recorded
from loadmanager.core.history.records import Origin
from loadmanager.core.history.schema import KINDS
from loadmanager.core.orders import SplitOrder
from tests.testbed.faults.cluster import NAMESPACE, Cluster, make_config, play

SECTIONS: Final[dict[str, Any]] = {
    "split": {"enabled": False},
    "leader": {"round_interval_s": 5.0, "tick_interval_s": 1.0},
    "report": {"sample_interval_s": 1.0, "min_interval_s": 2.0, "max_interval_s": 10.0},
    "history": {"base_every_rounds": 3, "broker_class": "large"},
}


def write_live_history(directory: Path) -> Archive:
    archive = Archive()

    async def tell(cluster: Cluster) -> None:
        cluster.build = archive.kept
        await start_hosts(cluster, 3)
        boundaries, topics = await placed(cluster, 4)
        # More and more, and each topic at a rate of its own.
        async with published(
            cluster,
            topics,
            250,
            every_s=0.5,
            times=lambda number, turn: (number + 1) * (1 + turn % 7),
        ):
            await _bases(cluster, archive, 3)
            moving, cut, *_ = boundaries.bundles
            source = cluster.server(moving)
            target = next(host for host in cluster.hosts if host is not source)
            leader = cluster.leader.app
            await leader.bundle_requests.unload(NAMESPACE, moving.rpartition("/")[2], target.name)
            await _bases(cluster, archive, 2)
            order = SplitOrder("range_equally_divide")
            await leader.bundle_requests.split(NAMESPACE, cut.rpartition("/")[2], order)
            await cluster.until(lambda: archive.count("cut"), within_s=60.0)
            await _bases(cluster, archive, 3)
            lost = next(one for one in cluster.living if one is not cluster.leader)
            await lost.kill()
            await _bases(cluster, archive, 4)

    play(tell, 0, config=make_config(**SECTIONS), checked=False)
    for sink in archive.sinks:
        with recorded(directory, Origin("live", sink.writer, "ab12")) as files:
            for record in sink.records:
                files.offer(KINDS[record.kind].stream, record.at_ms, partial(list, [record]))
    return archive


async def _bases(cluster: Cluster, archive: Archive, more: int) -> None:
    wanted = _base_rounds(archive) + more
    await cluster.until(lambda: _base_rounds(archive) >= wanted, within_s=300.0)
    ticks = archive.count("tick")
    await cluster.until(lambda: archive.count("tick") > ticks)


def _base_rounds(archive: Archive) -> int:
    return sum(
        record.kind == "round" and record.body["base"]
        for sink in archive.sinks
        for record in sink.records
    )
