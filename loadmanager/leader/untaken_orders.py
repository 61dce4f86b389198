"""Detects registered brokers that do not take the locks of their ordered bundles.

A free lock is normally taken at once. A broker that takes none of its free locks for half a
session timeout is passed over for a while, as if it were draining: it is assigned no bundles,
and the bundles that it did not take are placed on others. Then it is tried again, after
increasing delays, until it takes a lock. Locks held by others, and ranges that are not in their
namespace, do not count against a broker.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId, namespace_of
from loadmanager.leader.disagreements import Disagreement, Kind
from loadmanager.leader.task_controller import TaskController

log = structlog.get_logger()

TAKEN_WITHIN_FRACTION: Final = 0.5
"""Fraction of a session timeout within which a broker has to take a free lock."""

REST_S: Final = 60.0
MOST_REST_S: Final = 600.0


class _Taker(NamedTuple):
    broker: BrokerId
    registered_as: int


@dataclass(frozen=True, slots=True)
class _Rest:
    """Until when a broker is passed over, in which registration, and for how long."""

    until_s: float
    registered_as: int
    rest_s: float


@dataclass(slots=True, eq=False)
class UntakenOrders:
    context: Context
    tasks: TaskController
    _since_s: dict[BundleId, tuple[_Taker, float]] = field(default_factory=dict, init=False)
    _took_at_s: dict[BrokerId, float] = field(default_factory=dict, init=False)
    _rests: dict[BrokerId, _Rest] = field(default_factory=dict, init=False)

    @property
    def passed_over(self) -> frozenset[BrokerId]:
        """The brokers passed over now; none if no other broker could take bundles."""
        now_s, brokers = self.context.clock.monotonic_s(), self.context.cluster_state.brokers
        resting = frozenset(
            broker
            for broker, rest in self._rests.items()
            if rest.until_s > now_s
            and broker in brokers
            and brokers[broker].registered_as == rest.registered_as
        )
        return resting if self._has_others(resting) else frozenset()

    @property
    def waiting(self) -> bool:
        return bool(self._since_s)

    def bundles(self) -> Mapping[BundleId, BrokerId]:
        passed_over, owners = self.passed_over, self.context.cluster_state.owners
        if not passed_over or not self.context.cluster_state.current:
            return {}
        assigned = self.tasks.assigned.items()
        return {b: to for b, to in assigned if to in passed_over and b not in owners}

    def disagreements(self) -> list[Disagreement]:
        now_s = self.context.clock.monotonic_s()
        return [
            Disagreement(
                Kind.LOCKS_UNTAKEN,
                broker,
                f"gets nothing for {self._rests[broker].until_s - now_s:.0f} s",
                repaired=True,
            )
            for broker in sorted(self.passed_over)
        ]

    async def check(self) -> None:
        """Pass over brokers that are too late. Raises `CoordinationError`."""
        if not self.context.cluster_state.current:
            self._since_s.clear()
            return
        now_s = self.context.clock.monotonic_s()
        self._observe(now_s)
        within_s = TAKEN_WITHIN_FRACTION * self.context.coordination.session.timeout_s
        late: dict[_Taker, list[BundleId]] = {}
        for bundle, (taker, since_s) in self._since_s.items():
            if now_s - max(since_s, self._took_at_s.get(taker.broker, since_s)) >= within_s:
                late.setdefault(taker, []).append(bundle)
        for taker, bundles in sorted(late.items()):
            others = self._has_others({taker.broker, *self.passed_over})
            if others and await self._is_free(min(bundles)):
                self._pass_over(taker, len(bundles), now_s)
            else:
                self._since_s.update(dict.fromkeys(bundles, (taker, now_s)))
        self.context.metrics.brokers_passed_over.set(len(self.passed_over))

    def _observe(self, now_s: float) -> None:
        owners = self.context.cluster_state.owners
        for bundle, (taker, _) in self._since_s.items():
            holding = owners.get(bundle)
            if holding is not None and holding.broker == taker.broker:
                self._took_at_s[taker.broker] = now_s
                self._rests.pop(taker.broker, None)
        before = self._since_s
        self._since_s = {}
        for bundle, taker in self._takeable():
            former, since_s = before.get(bundle, (taker, now_s))
            self._since_s[bundle] = (taker, since_s if former == taker else now_s)

    def _takeable(self) -> Iterator[tuple[BundleId, _Taker]]:
        """Yield each unlisted bundle with the registered broker that is to own it."""
        cluster_state, passed_over = self.context.cluster_state, self.passed_over
        owners = cluster_state.owners
        for bundle, planned in self.tasks.assigned.items():
            if bundle in owners:  # The usual case.
                continue
            if planned in cluster_state.brokers and planned not in passed_over:
                boundaries = cluster_state.known_boundaries(namespace_of(bundle))
                if boundaries is not None and bundle in boundaries:
                    yield bundle, _Taker(planned, cluster_state.brokers[planned].registered_as)

    def _has_others(self, brokers: Container[BrokerId]) -> bool:
        return any(
            other not in brokers and not known.registration.draining
            for other, known in self.context.cluster_state.brokers.items()
        )

    async def _is_free(self, bundle: BundleId) -> bool:
        return await self.context.coordination.get(znodes.lock(bundle)) is None

    def _pass_over(self, taker: _Taker, bundles: int, now_s: float) -> None:
        broker, registered_as = taker
        former = self._rests.get(broker)
        again = former is not None and former.registered_as == registered_as
        rest_s = min(2 * former.rest_s, MOST_REST_S) if former and again else REST_S
        self._rests[broker] = _Rest(now_s + rest_s, registered_as, rest_s)
        log.warning("broker.locks.not_acquired", broker=broker, bundles=bundles, rest_s=rest_s)
