import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from loadmanager.common.context import Context
from loadmanager.core.bounds import DAY_MS
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import Namespace, namespace_of
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.seed import Seed, hour_of_week
from loadmanager.core.seeding import seeded
from loadmanager.ports.coordination import CoordinationError
from loadmanager.ports.history import SeedUnreadable

log = structlog.get_logger()

WITHIN_S: Final = 10.0
"""The limit of a leader's wait for the seed, during which unowned bundles wait too."""

_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Fills the load tracker of a new term from history where averages are missing.

    ``cluster`` is the cluster whose history a seed must cover; a seed older than
    ``max_age_days`` is not used.
    """

    context: Context
    tracker: LoadTracker
    cluster: str
    max_age_days: float

    async def seed(self) -> None:
        """Read the seed and use its averages for bundles without a sample.

        The seed is not read if the former leader left the averages of at least half of the
        reported bundles. Failures are logged, and the leader continues without it.
        """
        if not self._is_cold():
            return
        try:
            async with asyncio.timeout(WITHIN_S):
                seed = await self.context.seeds.read(hour_of_week(self.context.clock.wall_ms()))
                if seed is not None:
                    await self._use(seed)
        except TimeoutError:
            self._give_up("late", f"it was not read within {WITHIN_S:g} s")
        except (SeedUnreadable, CoordinationError, MalformedContent) as error:
            self._give_up("unreadable", str(error))

    def _is_cold(self) -> bool:
        known = self.tracker.averages().keys()
        brokers = self.context.cluster_state.loads.reports.values()
        reported = {bundle for one in brokers for bundle in one.report.bundles}
        return not known or 2 * len(reported & known) < len(reported)

    async def _use(self, seed: Seed) -> None:
        if seed.head.cluster != self.cluster:
            why = f"it is of cluster {seed.head.cluster!r}, this one is {self.cluster!r}"
            self._give_up("foreign", why)
            return
        age_ms = self.context.clock.wall_ms() - seed.head.until_ms
        if age_ms > self.max_age_days * DAY_MS:
            most = f"older than {self.max_age_days:g}"
            self._give_up("stale", f"its history ended {age_ms / DAY_MS:.1f} days ago, {most}")
            return
        boundaries = await self._boundaries({namespace_of(one) for one in seed.bundles})
        count = self.tracker.suppose(seeded(seed.bundles, boundaries))
        self.context.metrics.learning.seeded("used", count)
        log.info("leadership.warm_start.applied", bundles=count, age_s=round(age_ms / 1000))

    async def _boundaries(self, namespaces: Iterable[Namespace]) -> Mapping[Namespace, Boundaries]:
        cluster_state = self.context.cluster_state
        names = sorted(namespaces)
        found: dict[Namespace, Boundaries] = {}
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            every = await asyncio.gather(*(cluster_state.boundaries(name) for name in some))
            found |= {name: one for name, one in zip(some, every, strict=True) if one is not None}
        return found

    def _give_up(self, result: str, why: str) -> None:
        self.context.metrics.learning.seeded(result)
        log.warning("leadership.warm_start.skipped", result=result, error=why)
