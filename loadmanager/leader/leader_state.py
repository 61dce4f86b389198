"""The leader's state for its successor, in ``/loadbalance/state``.

The leader's times are on its own monotonic clock, which has no meaning in another process. They
are stored in wall-clock time and converted back on reading. This is accurate to about a second
between hosts with synchronized clocks; the planner drops times in the future after a clock was
set back.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

import structlog

from loadmanager.common.context import Context
from loadmanager.common.watching import readable
from loadmanager.core import znodes
from loadmanager.core.bounds import DAY_MS
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import Namespace, namespace_of
from loadmanager.core.joint.document import decode_joint, encode_joint
from loadmanager.core.load_tracker import LoadTracker, TableAverages
from loadmanager.core.memory import RoundMemory, shifted
from loadmanager.core.optimality import BalancePoint, last_hour
from loadmanager.core.seed import Seed, hour_of_week, seeded
from loadmanager.core.wire.standby import Standby, decode_standby, encode_standby
from loadmanager.leader.election import Deposed, Term
from loadmanager.leader.splits import Splits
from loadmanager.ports.coordination import (
    Check,
    CommitRejected,
    CoordinationError,
    SetData,
    TooLarge,
)
from loadmanager.ports.history import SeedUnreadable

log = structlog.get_logger()

_LARGEST_BYTES = 900_000
_KEPT_BUNDLES: Final = 5000
_KEPT_BUNDLES_AT_LEAST: Final = 500
_MOST_POINTS: Final = 120
"""Points stored of the last hour's balance: one every half minute."""
WITHIN_S: Final = 10.0
"""The limit of a leader's wait for the seed, during which unowned bundles wait too."""

_AT_ONCE: Final = 100


@dataclass(slots=True, eq=False, kw_only=True)
class LeaderState:
    context: Context
    term: Term
    tracker: LoadTracker
    splits: Splits
    course: deque[BalancePoint]
    cluster: str
    seed_max_age_days: float

    async def take(self) -> RoundMemory:
        """Restore the state of the former leader; the memory is empty if it is not usable."""
        standby = await self._stored()
        now_s = self.context.clock.monotonic_s()
        departed_at_s = dict(standby.departed_at_s)
        # A broker that was present before and is missing now left while there was no leader.
        brokers = self.context.cluster_state.brokers
        for broker in standby.memory.started_at_ms.keys() - brokers.keys():
            departed_at_s.setdefault(broker, now_s)
        self.tracker.inherit(standby.running, departed_at_s, now_s)
        self.tracker.seed(standby.averages)
        self.splits.inherit(standby.split_rests_s)
        self.course.extend(standby.course)
        memory = standby.memory
        if not standby.joint:
            return memory
        with readable(znodes.STATE, self.context.metrics, "state"):
            joint = decode_joint(f"{znodes.STATE}: joint", standby.joint, now_s)
            return replace(memory, shedder=replace(memory.shedder, joint=joint))
        return memory

    async def leave(self, memory: RoundMemory) -> None:
        """Raises `Deposed`, or `Disconnected`: the state may or may not have been stored."""
        epoch = Check(znodes.EPOCH, self.term.epoch)
        try:
            await self.context.coordination.commit((epoch, await self.write(memory)))
        except TooLarge as error:
            self.context.oversized.refused("state", znodes.STATE, error)
        except CommitRejected as rejected:
            if rejected.index == 0:
                raise Deposed(f"epoch {self.term.epoch} is over") from rejected
            # The node was deleted manually: the next round stores the state again.
            await self.context.coordination.ensure(znodes.STATE)

    async def write(self, memory: RoundMemory) -> SetData:
        offset_s = self._wall_offset_s()
        standby = Standby(
            shifted(memory, offset_s),
            {},
            self.tracker.running(),
            {broker: at_s + offset_s for broker, at_s in self.tracker.departed_at_s.items()},
            {bundle: at_s + offset_s for bundle, at_s in self.splits.rests_s.items()},
            b"",
            last_hour(self.course, self.context.clock.wall_ms(), _MOST_POINTS),
        )
        compute = self.context.computing.compute
        content = await compute(_encoded, standby, self.tracker.averages())
        return SetData(znodes.STATE, content)

    async def _stored(self) -> Standby:
        node = await self.context.coordination.get(znodes.STATE)
        if node is None:
            await self.context.coordination.ensure(znodes.STATE)
        standby = None
        with readable(znodes.STATE, self.context.metrics, "state"):
            standby = decode_standby(znodes.STATE, node.data) if node and node.data else None
        if standby is None:
            return Standby(RoundMemory(), {})
        log.info("leadership.state.inherited", bundles=len(standby.averages))
        by_s = -self._wall_offset_s()
        return replace(
            standby,
            memory=shifted(standby.memory, by_s),
            departed_at_s={b: at_s + by_s for b, at_s in standby.departed_at_s.items()},
            split_rests_s={b: at_s + by_s for b, at_s in standby.split_rests_s.items()},
        )

    def _wall_offset_s(self) -> float:
        return self.context.clock.wall_ms() / 1000 - self.context.clock.monotonic_s()

    async def seed(self) -> None:
        """Use the seed, unless the former leader left averages of half of the reported bundles."""
        read_seed, known = self.context.read_seed, self.tracker.averages().keys()
        brokers = self.context.cluster_state.loads.reports.values()
        reported = {bundle for one in brokers for bundle in one.report.bundles}
        if read_seed is None or (known and 2 * len(reported & known) >= len(reported)):
            return
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._use(await read_seed(hour_of_week(self.context.clock.wall_ms())))
        except TimeoutError:
            self._give_up("late", f"it was not read within {WITHIN_S:g} s")
        except (SeedUnreadable, CoordinationError, MalformedContent) as error:
            self._give_up("unreadable", str(error))

    async def _use(self, seed: Seed) -> None:
        if seed.head.cluster != self.cluster:
            why = f"it is of cluster {seed.head.cluster!r}, this one is {self.cluster!r}"
            self._give_up("foreign", why)
            return
        age_ms = self.context.clock.wall_ms() - seed.head.until_ms
        if age_ms > self.seed_max_age_days * DAY_MS:
            most = f"older than {self.seed_max_age_days:g}"
            self._give_up("stale", f"its history ended {age_ms / DAY_MS:.1f} days ago, {most}")
            return
        namespaces = {namespace_of(one) for one in seed.bundles}
        cluster_state = self.context.cluster_state
        names = sorted(namespaces)
        boundaries: dict[Namespace, Boundaries] = {}
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            every = await asyncio.gather(*(cluster_state.boundaries(name) for name in some))
            boundaries |= {
                name: one for name, one in zip(some, every, strict=True) if one is not None
            }
        count = self.tracker.suppose(seeded(seed.bundles, boundaries))
        self.context.metrics.seeded("used", count)
        log.info("leadership.warm_start.applied", bundles=count, age_s=round(age_ms / 1000))

    def _give_up(self, result: str, why: str) -> None:
        self.context.metrics.seeded(result)
        log.warning("leadership.warm_start.skipped", result=result, error=why)


def _encoded(standby: Standby, averages: TableAverages) -> bytes:
    joint = standby.memory.shedder.joint
    learned = b"" if joint is None else encode_joint(joint)

    def content(bundles: int) -> bytes:
        return encode_standby(replace(standby, averages=averages.heaviest(bundles), joint=learned))

    most = content(_KEPT_BUNDLES)
    return most if len(most) <= _LARGEST_BYTES else content(_KEPT_BUNDLES_AT_LEAST)
