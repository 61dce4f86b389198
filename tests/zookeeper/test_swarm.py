import asyncio
from pathlib import Path
from typing import Final

import pytest
from swarm import leader_in, swarm

pytestmark = pytest.mark.zookeeper
SIDECARS: Final = 30
BUNDLES: Final = 600
COUNTED_S: Final = 10.0
MOST_REQUESTS_PER_S: Final = 2.0


async def test_thirty_sidecars_ask_little(zookeeper_address: str, tmp_path: Path) -> None:
    async with swarm(zookeeper_address, tmp_path) as many:
        await asyncio.gather(*(many.add(SIDECARS // 2) for _ in range(2)))
        await many.ready()
        await many.create_namespace(BUNDLES)
        await many.draw_topics()
        await many.look_up()
        await many.all_served(within_s=60.0)
        await many.check()

        before = await many.use()
        await asyncio.sleep(COUNTED_S)
        after = await many.use()
        states = await many.ask_all("state")
        assert [one["ended"] for one in states] == [[], []]
        leader = leader_in(states)
        rates = {
            name: (asked - before.asked[name]) / (after.at_s - before.at_s)
            for name, asked in after.asked.items()
        }
        # One request a second is that for a list that nobody needs, until all were read once.
        others = [rate for name, rate in rates.items() if name not in {leader, *after.successors}]
        assert len(others) == SIDECARS - 3
        assert 0.5 < max(others) <= MOST_REQUESTS_PER_S
